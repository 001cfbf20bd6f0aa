"""Policies of a role: required by version, kept as long as an engine may load them, one download at a time."""

import asyncio
import threading
from types import SimpleNamespace

import numpy as np
import pytest

from covey.errors import ProtocolError, TransientError
from covey.network.policies import Policies
from covey.protocol.ids import PoolId, Step
from covey.protocol.policy_record import RECORD_FILE
from covey.shardcast.policy_export import build_record
from covey.shardcast.policy_store import PolicyStore
from tests.fakes.offered_policies import write_export

pytestmark = pytest.mark.unit

POOL = PoolId(1)
HANG_S = 60.0
"""Deadline against hanging, in seconds."""


class Client:
    """A client whose relays are exports in a folder. The store is real."""

    def __init__(self, root, *, keep=2):
        self.exports, self.store = root / "exports", PolicyStore(root / "store", keep=keep, threads=1)
        self.fetched, self.most, self._running = [], 0, 0
        self.started = threading.Event()
        self.obsolete_at: int | None = None
        """Missing bytes with which `is_obsolete` is asked. None does not ask."""
        self.waits: threading.Event | None = None
        """Event for which a fetch waits, unless it is stopped."""
        self.ways = {}
        """Sizes of the ways to each record."""
        self.source = SimpleNamespace(
            find_route=lambda record, held: SimpleNamespace(size=sum(way.size for way in self.ways[record])),
            downloader=SimpleNamespace(close=lambda: self.fetched.append("closed")),
        )

    def build(self, step):
        """Write a policy, and return its folder and record. Several threads may do so, because equal bytes result."""
        folder = write_export(self.exports / f"{step}-{threading.get_ident()}", {"weight": np.array([step], np.uint16)})
        return folder, build_record(folder, pool=POOL, step=step, parent="0x" + "00" * 32)

    def fetch(self, step, record_hash, *, stop, is_obsolete):
        self._running += 1
        self.most = max(self.most, self._running)
        self.started.set()
        try:
            if self.obsolete_at is not None and is_obsolete(self.obsolete_at):
                raise TransientError("obsolete", "a newer policy is cheaper")
            while self.waits is not None and not self.waits.wait(0.01):
                if stop.is_set():
                    raise TransientError("stopped", "stopped")
            folder, record = self.build(step)
            if record.compute_hash() not in self.store.list_folders():
                (folder / RECORD_FILE).write_bytes(record.to_bytes())
                self.store.make_room(0)
                self.store.add(folder, record)
            self.fetched.append(step)
            self.store.hold(self.store.get_folder(step, record_hash))
            return self.store.get_folder(step, record_hash)
        finally:
            self._running -= 1


@pytest.fixture
def client(tmp_path):
    return Client(tmp_path)


@pytest.fixture
def policies(client):
    """The policies of a pool that has published ten."""
    chain = SimpleNamespace(steps_of=lambda pool: 10, policy_of=lambda pool, step: client.build(step)[1].compute_hash())
    return Policies(SimpleNamespace(policies=chain), client, pool=POOL)


def list_steps(client):
    return [int(path.name.partition("-")[0]) for path in client.store.list_folders().values()]


async def test_require__several_versions__fetches_the_hash_on_chain_and_keeps_only_the_newest(client, policies):
    for version in (1, 2, 5):
        folder = await policies.require(Step(version))
        assert folder == client.store.get_folder(version, policies.get_record_hash(Step(version)))
    assert client.fetched == [1, 2, 5]
    assert list_steps(client) == [2, 5]
    await policies.close()
    assert client.fetched[-1] == "closed"


async def test_require__to_load__is_kept_while_newer_ones_arrive(client, policies):
    """An engine that takes a minute to start reads the folder only at the end."""
    await policies.require(Step(1), to_load=True)
    for version in range(2, 5):
        await policies.require(Step(version))
    assert 1 in list_steps(client)
    for version in (5, 6):
        await policies.require(Step(version), to_load=True)
    for version in range(7, 10):
        await policies.require(Step(version))
    assert list_steps(client) == [5, 6, 9]


async def test_require__twice_to_load__is_released_once(client, policies):
    for _ in range(2):
        await policies.require(Step(1), to_load=True)
    for version in (2, 3, 4, 5):
        await policies.require(Step(version), to_load=True)
    await policies.require(Step(6))
    assert list_steps(client) == [4, 5, 6]


async def test_list_versions__some_are_here__returns_those_with_the_hash_on_chain(client, policies):
    assert policies.list_versions([1, 2]) == []
    await policies.require(Step(2))
    client.store.get_folder(1, "0x" + "cd" * 32).mkdir()  # A policy of another chain.
    assert policies.list_versions([1, 2, 3]) == [2]


async def test_require__several_at_once__are_fetched_one_after_the_other(client, policies):
    await asyncio.gather(*(policies.require(Step(version)) for version in (3, 4, 3)))
    assert client.most == 1


async def test_require__policy_that_is_here__does_not_wait_for_a_download(client, policies):
    await policies.require(Step(1))
    client.waits = threading.Event()
    downloading = asyncio.create_task(policies.require(Step(2)))
    await asyncio.sleep(0)
    await asyncio.wait_for(policies.require(Step(1)), HANG_S)
    client.waits.set()
    await downloading


async def test_require__cancelled__ends_the_thread_before_the_next_fetch(client, policies):
    client.waits = threading.Event()
    downloading = asyncio.create_task(policies.require(Step(1)))
    assert await asyncio.to_thread(client.started.wait, HANG_S)
    downloading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await downloading
    assert client._running == 0


@pytest.mark.parametrize(
    ("version", "cost", "may_skip", "is_given_up"),
    [(3, 99, True, True), (3, 100, True, False), (9, 1, True, False), (3, 1, False, False)],
)
async def test_require__newer_policy_is_out__given_up_if_that_needs_fewer_bytes(
    client, policies, version, cost, may_skip, is_given_up
):
    client.obsolete_at = 100
    client.ways[policies.get_record_hash(Step(9))] = [SimpleNamespace(size=cost - 1), SimpleNamespace(size=1)]
    if is_given_up:
        with pytest.raises(TransientError, match="obsolete"):
            await policies.require(Step(version), may_skip=may_skip)
    else:
        await policies.require(Step(version), may_skip=may_skip)


async def test_require__unknown_to_the_chain__refused(client):
    def revert(pool, version):
        raise ProtocolError("reverted", "NoSuchStep")

    policies = Policies(SimpleNamespace(policies=SimpleNamespace(policy_of=revert)), client, pool=POOL)
    with pytest.raises(ProtocolError, match="unknown_policy: policy 7 has not been published on chain"):
        await policies.require(Step(7))
