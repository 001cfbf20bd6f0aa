"""The online filter through the API: live groups in the validators' evidence decide when a batch is full."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from covey.protocol import canonical
from covey.protocol.api.validator import JudgeOrder, RevealRequest
from tests.fakes.network import CoordinatorHarness, create_pool, open_harness
from tests.fakes.pool import make_params
from tests.integration.chain.conftest import Chain
from tests.integration.coordinator.handing import (
    FILE,
    build_bundle,
    build_reveal,
    claim_order,
    commit,
    hand_in,
)

pytestmark = pytest.mark.integration
SILENT = object()


@pytest.fixture(scope="module")
def standing(running: Chain, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CoordinatorHarness]:
    """A step requires four live groups in tasks of two groups, and samples at most eight groups."""
    params = make_params(online_filter=True, max_sampling=2.0, epoch_leaves=4, max_submission_bytes=24_576)
    pool = create_pool(running, params)
    with open_harness(running, pool, tmp_path_factory.mktemp("coordinator")) as harness:
        yield harness


async def work(harness: CoordinatorHarness, number: int, told: tuple[Any, Any]) -> None:
    """Submit work that validators 0 and 1 accept, each with its own count of live groups."""
    async with harness.client("node") as node:
        await hand_in(harness, node, FILE + bytes([number]))
    harness.run_job("dispatch_validation")
    requests = []
    for i, word in enumerate(told):
        async with harness.client(f"validator-{i}") as client:
            order = await claim_order(client, wait_seconds=0)
            assert isinstance(order, JudgeOrder)
            requests.append(build_request(harness, i, order, word))
            await commit(harness, client, requests[-1])
    for i, request in enumerate(requests):
        async with harness.client(f"validator-{i}") as client:
            await claim_order(client, wait_seconds=0)
            await client.reveal_verdict(request)
    harness.run_job("dispatch_validation")


def build_request(harness: CoordinatorHarness, validator: int, order: JudgeOrder, word: Any) -> RevealRequest:
    bundle = json.loads(build_bundle(harness, validator, order).to_bytes())
    if word is not SILENT:
        bundle["details"]["live_groups"] = word
    evidence = canonical.to_bytes(bundle)
    request = build_reveal(harness, validator, order, evidence_hash=canonical.sha256(evidence))
    return request.model_copy(update={"evidence": evidence.decode()})


async def see(harness: CoordinatorHarness) -> tuple[str, int, int, bool]:
    async with harness.client("stranger") as anybody:
        (step,) = (await anybody.get_status()).steps
    return step.state, step.groups_sampled, step.groups_live, step.is_capped


async def test_step__dead_groups_among_live_ones__closes_with_enough_live_and_all_are_paid(harness: CoordinatorHarness):
    assert await see(harness) == ("OPEN", 0, 0, False)
    for number, (told, live) in enumerate([((1, 1), 1), ((0, 0), 1), ((2, 1), 2)]):
        await work(harness, number, told)
        assert await see(harness) == ("OPEN", 2 * number + 2, live, False)
    async with harness.client("trainer") as trainer:
        assert await trainer.claim_batch(0, wait_seconds=0) is None
        await work(harness, 3, (2, 2))
        assert await see(harness) == ("READY", 8, 4, False)
        order = await trainer.claim_batch(0, wait_seconds=0)
    assert [item.task for item in order.items] == [1, 2, 3, 4], "eight groups, four of them live"
    harness.run_job("settle")
    with harness.ctx.database.read() as rows:
        assert rows.sum_settled_units(until=0) == {(harness.chain.address("contributor"), 0): 80}


@pytest.mark.parametrize(
    "word", [SILENT, None, True, "2", 2.0, -1, 3, 1 << 62, [2], {"live_groups": 2}], ids=lambda word: str(word)[:12]
)
async def test_step__hostile_word_of_one_validator__counts_nothing_and_work_is_paid(
    harness: CoordinatorHarness, word: Any
):
    await work(harness, 0, (word, 2))
    assert await see(harness) == ("OPEN", 2, 0, False)
    with harness.ctx.database.read() as rows:
        (row,) = rows.list_recent_submissions(10)
        assert (row.state, row.units, [j.live_groups for j in row.turns]) == ("ACCEPTED", 20, [None, 2])


async def test_step__no_group_is_live__closes_at_the_cap(harness: CoordinatorHarness):
    for number in range(3):
        await work(harness, number, (0, 0))
        assert await see(harness) == ("OPEN", 2 * number + 2, 0, False)
    await work(harness, 3, (0, 0))
    assert await see(harness) == ("READY", 8, 0, True)
    async with harness.client("trainer") as trainer:
        order = await trainer.claim_batch(0, wait_seconds=0)
        assert len(order.items) == 4
        assert (await trainer.get_status()).tasks.get("PENDING", 0) == 0
