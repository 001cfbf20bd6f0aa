"""The follower on a real chain with reorganisations."""

from contextlib import suppress

import pytest

from covey.chain import events
from covey.chain.follower import Follower
from covey.errors import TransientError
from tests.fakes.lagging import LaggingClient

pytestmark = pytest.mark.integration


def publish(chain, pool: int, step: int, number: int) -> None:
    chain.send("trainer", chain.contracts.policies.publish(pool, step, f"0x{number + 1000:064x}"))


def steps_in(found) -> list[int]:
    return [event.step for event in found if isinstance(event, events.PolicyPublished)]


def test_poll__real_reorganisation__rolls_back_and_reads_the_other_branch(chain):
    pool = chain.open_pool()
    follower = Follower(chain.client, chain.deployment)
    cursor = follower.poll(()).cursor
    for step in range(3):
        publish(chain, pool, step, step)
        progress = follower.poll(cursor)
        assert steps_in(progress.events) == [step]
        cursor = progress.cursor
    common = cursor[-3].number
    chain.client.request("anvil_rollback", 2)
    for step, number in ((1, 101), (2, 102), (3, 103)):
        publish(chain, pool, step, number)
    progress = follower.poll(cursor)
    assert progress.rolled_back_to == common
    assert [int(event.record_hash, 16) - 1000 for event in progress.events] == [101, 102, 103]
    assert progress.cursor[:-1] == cursor[:-2]


def test_poll__small_ranges__find_the_same_as_one(chain):
    pool = chain.open_pool()
    for step in range(4):
        publish(chain, pool, step, step)
    whole = Follower(chain.client, chain.deployment).poll(()).events
    follower = Follower(chain.client, chain.deployment, max_range=3)
    found, cursor, is_caught_up = [], (), False
    while not is_caught_up:
        progress = follower.poll(cursor)
        found += progress.events
        cursor, is_caught_up = progress.cursor, progress.is_caught_up
    assert tuple(found) == whole
    assert steps_in(found) == [0, 1, 2, 3]


def test_poll__finality_safe__does_not_exceed_the_safe_block(chain):
    chain.open_pool()
    safe = chain.client.get_block("safe").number
    progress = Follower(chain.client, chain.deployment, finality="safe").poll(())
    assert progress.cursor[-1].number == safe
    assert all(event.block_number <= safe for event in progress.events)


def test_poll__logs_come_from_a_backend_that_lags__loses_no_event(chain):
    """The head comes from one backend, and the logs from another one that does not have that block yet."""
    pool = chain.open_pool()
    cursor = Follower(chain.client, chain.deployment).poll(()).cursor
    publish(chain, pool, 0, 0)
    behind = {"eth_getLogs"}
    follower = Follower(LaggingClient(chain.client.rpc_url, is_behind=behind.__contains__), chain.deployment)
    with suppress(TransientError):
        cursor = follower.poll(cursor).cursor
    behind.clear()
    assert steps_in(follower.poll(cursor).events) == [0]
