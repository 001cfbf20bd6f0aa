"""A client and its store: existing policies are held, and missing ones are fetched once by concurrent callers."""

import threading

import pytest

from covey.errors import TransientError
from covey.protocol.policy_record import WEIGHTS_FILE
from covey.shardcast import policy_fetch, policy_store
from tests.fakes.policy_relays import FakeRelay, OfferedPolicies, build_client, wait_patiently
from tests.fakes.raw_server import HANG_S
from tests.fakes.served_policies import flip

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    wait_patiently(monkeypatch)


@pytest.fixture
def policies(tmp_path):
    offered = OfferedPolicies(tmp_path / "trainer", sizes={"w": 20_000})
    offered.offer(), offered.offer()
    return offered


@pytest.fixture
def relay(policies):
    with FakeRelay(policies.store) as started:
        yield started


@pytest.fixture
def connect(tmp_path, relay):
    """Return a function that returns a client. All clients share one store, like the processes of one machine."""
    clients = []

    def build(**settings):
        clients.append(build_client(tmp_path / "policies", relay.url, **settings))
        return clients[-1]

    yield build
    for client in clients:
        client.source.downloader.close()


def test_fetch__holds_the_folder_until_it_is_released(policies, connect):
    client, other = connect(keep=1), connect(keep=1)
    folder = client.fetch(0, policies.hash_of(0))
    assert client.fetch(0, policies.hash_of(0)) == folder
    client.store.release(folder)
    other.store.release(other.fetch(1, policies.hash_of(1)))
    assert folder.exists()
    client.store.release(folder)
    other.store.make_room(0)
    assert not folder.exists()


def test_folder_without_a_record__is_fetched_again(policies, connect):
    folder = connect().fetch(0, policies.hash_of(0))
    (folder / "record.json").unlink()
    assert connect().fetch(0, policies.hash_of(0)) == folder
    policies.require_same(folder, 0)


def test_damage_is_found_by_the_next_process__and_mended(policies, connect, relay):
    folder = connect().fetch(0, policies.hash_of(0))
    flip(folder / WEIGHTS_FILE)
    count = relay.count_pieces()
    connect().fetch(0, policies.hash_of(0))
    policies.require_same(folder, 0)
    assert relay.count_pieces() == 2 * count


@pytest.mark.parametrize("is_stopped", [False, True])
def test_another_process_downloads__is_waited_for(policies, connect, relay, is_stopped):
    first, second, stop, begun = connect(), connect(), threading.Event(), threading.Event()
    gate, folders, errors = threading.Event(), [], []

    def alter(path, body):
        if "pieces" in path:
            begun.set()
            gate.wait(2 * HANG_S)
        return body

    relay.alter = alter

    def work(client, **settings):
        try:
            folders.append(client.fetch(0, policies.hash_of(0), **settings))
        except TransientError as error:
            errors.append(error.code)

    threads = [threading.Thread(target=work, args=(first,))]
    threads[0].start()
    assert begun.wait(HANG_S)
    threads.append(threading.Thread(target=work, args=(second,), kwargs={"stop": stop}))
    threads[1].start()
    if is_stopped:
        stop.set()
        threads[1].join(HANG_S)
        assert errors == ["stopped"]
    gate.set()
    for thread in threads:
        thread.join(HANG_S)
    assert len(folders) == (1 if is_stopped else 2)
    assert relay.count_pieces() == 2


def test_failed_fetch__frees_the_lock_for_the_next_process(policies, connect, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(policy_fetch.PolicyFetch, "_follow", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            connect().fetch(0, policies.hash_of(0))
    monkeypatch.setattr(policy_store, "LOCK_SECONDS", 0.0)  # A held lock would fail the fetch immediately.
    policies.require_same(connect().fetch(0, policies.hash_of(0)), 0)
