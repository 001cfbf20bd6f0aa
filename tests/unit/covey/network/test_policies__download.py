"""The policies of a role: cancelled waits, what stays for engines, and when a download is given up for a newer one."""

import asyncio
import threading
from types import SimpleNamespace

import pytest

from covey.errors import ProtocolError, TransientError
from covey.network.policies import Policies
from covey.shardcast import policy_fetch
from tests.fakes.policy_relays import FakeRelay, OfferedPolicies, build_client, wait_patiently
from tests.fakes.raw_server import HANG_S

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    wait_patiently(monkeypatch)


@pytest.fixture
def offered(tmp_path):
    offered = OfferedPolicies(tmp_path / "trainer", sizes={"w": 20_000})
    for _ in range(5):
        offered.offer()
    return offered


@pytest.fixture
def relay(offered):
    with FakeRelay(offered.store) as started:
        yield started


class Registry:
    """The policies on chain."""

    def __init__(self, hashes):
        self.hashes, self.failure = hashes, None
        self.is_asked = threading.Event()
        """Set when a download looks for a newer policy."""

    def policy_of(self, pool, step):
        try:
            return self.hashes[step]
        except IndexError:
            raise ProtocolError("reverted", "no such step") from None

    def steps_of(self, pool):
        self.is_asked.set()
        if self.failure:
            raise self.failure
        return len(self.hashes)


@pytest.fixture
def registry(offered):
    return Registry([offered.hash_of(step) for step in range(5)])


@pytest.fixture
def client(tmp_path, relay):
    client = build_client(tmp_path / "policies", relay.url, keep=1)
    yield client
    client.source.downloader.close()


@pytest.fixture
def policies(registry, client):
    return Policies(SimpleNamespace(policies=registry), client, pool=1)


def list_steps(client):
    return [int(path.name.partition("-")[0]) for path in client.store.list_folders().values()]


async def test_require__hash_from_the_chain_or_the_caller(policies, offered):
    offered.require_same(await policies.require(0), 0)
    offered.require_same(await policies.require(1, offered.hash_of(1)), 1)
    assert policies.list_versions([0, 1, 2, 3]) == [0, 1]
    with pytest.raises(ProtocolError) as caught:
        await policies.require(9)
    assert caught.value.code == "unknown_policy"


async def test_require__the_last_two_to_load_stay__others_do_not(policies, client):
    for step in (0, 1, 1, 0):
        await policies.require(step, to_load=True)
    await policies.require(2)
    assert list_steps(client) == [0, 1, 2]
    await policies.require(3, to_load=True)
    await policies.require(4)
    assert list_steps(client) == [1, 3, 4]


async def wait_for(event):
    assert await asyncio.to_thread(event.wait, HANG_S)


def hold_back(relay, begun, gate):
    def alter(path, body):
        if "pieces" in path:
            begun.set()
            gate.wait(2 * HANG_S)
        return body

    relay.alter = alter


async def test_cancelled__the_thread_ends_soon__and_the_next_one_goes_on(policies, relay, offered):
    begun, gate = threading.Event(), threading.Event()
    hold_back(relay, begun, gate)
    task = asyncio.create_task(policies.require(0))
    await wait_for(begun)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        async with asyncio.timeout(HANG_S):
            await task
    gate.set()
    offered.require_same(await policies.require(0), 0)


@pytest.mark.parametrize("is_here", [False, True])
async def test_cancelled__when_the_policy_has_come__does_not_hold_it_for_ever(policies, client, monkeypatch, is_here):
    if is_here:
        await policies.require(0)
    owner, name = (client.store, "hold_if_sound") if is_here else (client, "fetch")
    obtain, begun, gate = getattr(owner, name), threading.Event(), threading.Event()

    def obtain_slowly(*arguments, **settings):
        held = obtain(*arguments, **settings)
        begun.set()
        assert gate.wait(2 * HANG_S)
        return held

    monkeypatch.setattr(owner, name, obtain_slowly)
    task = asyncio.create_task(policies.require(0))
    await wait_for(begun)
    task.cancel()
    await asyncio.sleep(0)
    gate.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    client.store.make_room(0)
    assert list_steps(client) == []


async def test_cancelled__while_the_fetch_fails__leaves_no_unheard_error(policies, client, monkeypatch):
    unheard, begun, gate = [], threading.Event(), threading.Event()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unheard.append(context))

    def fail(*_, **__):
        begun.set()
        assert gate.wait(2 * HANG_S)
        raise TransientError("no_relay", "nobody answers")

    monkeypatch.setattr(client, "fetch", fail)
    task = asyncio.create_task(policies.require(0))
    await wait_for(begun)
    task.cancel()
    await asyncio.sleep(0)
    gate.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    del task
    await asyncio.sleep(0.01)
    assert unheard == []


@pytest.fixture
def gate(relay, monkeypatch):
    """Let the client look for newer policies all the time, and the relay send no piece before an event is set."""
    monkeypatch.setattr(policy_fetch, "_LOOK_EVERY_SECONDS", 0.0)
    gate = threading.Event()
    hold_back(relay, threading.Event(), gate)
    return gate


async def test_may_skip__given_up_when_the_newest_one_needs_fewer_bytes(policies, offered, client, gate):
    """From step 3, which is here, a delta leads to the newest step. Step 1 needs the anchor."""
    gate.set()
    await policies.require(3, to_load=True)
    for step in (0, 1, 2):
        client.store._remove(client.store.get_folder(step, offered.hash_of(step)))
    gate.clear()
    with pytest.raises(TransientError) as caught:
        await policies.require(1, may_skip=True)
    assert caught.value.code == "obsolete"
    gate.set()
    await policies.require(1)


async def require_once_asked(policies, registry, gate, step):
    """Require a policy that arrives only after the client has looked for a newer one."""
    task = asyncio.create_task(policies.require(step, may_skip=True))
    await wait_for(registry.is_asked)
    gate.set()
    return await task


async def test_may_skip__not_for_the_newest__and_not_without_leave(policies, offered, registry, gate):
    offered.require_same(await require_once_asked(policies, registry, gate, 4), 4)
    offered.require_same(await policies.require(0, may_skip=False), 0)


@pytest.mark.parametrize(
    "failure", [TransientError("chain_unreachable", "x"), ProtocolError("reverted", "x"), None], ids=str
)
async def test_may_skip__newest_cannot_be_asked_about__the_download_goes_on(policies, offered, registry, gate, failure):
    """It may be on chain and not at the relays yet. Neither ends a download, nor is it the fault of its route."""
    registry.failure = failure
    registry.hashes.append("0x" + "ab" * 32)
    offered.require_same(await require_once_asked(policies, registry, gate, 0), 0)
