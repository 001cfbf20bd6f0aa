"""Fetches of policies over every kind of route, with damage on this machine, false relays and false trainers.

The relays are sockets in threads, and everything else is real.
"""

import threading
from contextlib import contextmanager

import numpy as np
import pytest

from covey.chain.wallet import wallet_from_key
from covey.errors import ProtocolError, TransientError
from covey.protocol.head import Head, ServedPolicy, Way
from covey.protocol.ids import ZERO_HASH, Hash
from covey.protocol.pieces import build_pieces
from covey.protocol.policy_record import WEIGHTS_FILE
from covey.protocol.transport import DELTA, TransportManifest, TransportObject
from covey.shardcast import download, policy_fetch, source
from covey.shardcast.policy_fetch import FetchProgress
from covey.shardcast.policy_source import look_at_relay
from tests.fakes.offered_policies import DOMAIN, TRAINER
from tests.fakes.policy_relays import FakeRelay, OfferedPolicies, build_client, wait_patiently
from tests.fakes.raw_server import HANG_S
from tests.fakes.served_policies import flip
from tests.fakes.standing_clock import StandingSources

pytestmark = pytest.mark.unit
SMALL = {"a.norm": 100, "b.weight": 20_000, "c.bias": 3}


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Shorten all rests of sources to a twentieth, and wait for late sources."""
    wait_patiently(monkeypatch)
    for name in ("_REST_SECONDS", "_LONGEST_REST_SECONDS", "_LIE_REST_SECONDS", "_LONGEST_LIE_REST_SECONDS"):
        monkeypatch.setattr(source, name, getattr(source, name) / 20)


@pytest.fixture
def policies(tmp_path):
    return OfferedPolicies(tmp_path / "trainer", sizes=SMALL)


@pytest.fixture
def serve():
    """Return a function that starts a relay of a trainer's origin."""
    relays = []

    def start(policies, alter=None):
        relays.append(FakeRelay(policies.store, alter))
        return relays[-1]

    yield start
    for relay in relays:
        relay.close()


@pytest.fixture
def connect(tmp_path):
    """Return a function that returns a client of some relays. All clients of a test share one store."""
    clients = []

    def build(*relays, **settings):
        clients.append(build_client(tmp_path / "policies", *(relay.url for relay in relays), **settings))
        return clients[-1]

    yield build
    for client in clients:
        client.source.downloader.close()


def fetch(client, policies, step, **settings):
    """Fetch a policy, check its folder, release it, and return the kinds of its ways."""
    progress = FetchProgress()
    folder = client.fetch(step, policies.hash_of(step), progress=progress, **settings)
    policies.require_same(folder, step)
    client.store.release(folder)
    assert progress.received == progress.size
    assert not list(client.store.root.glob(".part-*"))
    return progress.ways


def forget_all(client):
    """Remove all policies of a client."""
    for folder in client.store.list_folders().values():
        client.store._remove(folder)


def hold_back(relay, gate):
    """Make a relay send no pieces until an event is set."""

    def alter(path, body):
        if "pieces" in path:
            gate.wait(2 * HANG_S)
        return body

    relay.alter = alter


@contextmanager
def raising(code, text=None):
    with pytest.raises((TransientError, ProtocolError), match=text) as caught:
        yield caught
    assert caught.value.code == code


def test_anchor__then_delta__then_chain(policies, serve, connect):
    relay = serve(policies)
    client = connect(relay)
    for _ in range(6):
        policies.offer()
    assert fetch(client, policies, 0) == ["anchor"]
    assert fetch(client, policies, 1) == ["delta"]
    assert fetch(client, policies, 5) == ["delta"] * 4
    assert fetch(client, policies, 3) == ["delta"] * 2
    assert len(client.store.list_folders()) == 4


def test_anchor_and_jump__from_nothing(policies, serve, connect):
    for step in range(4):
        policies.offer(jump=step == 3)
    assert fetch(connect(serve(policies)), policies, 3) == ["anchor", "delta"]


def test_anchor_and_chain__from_nothing__the_anchor_is_a_policy_of_its_own(policies, serve, connect):
    for _ in range(3):
        policies.offer()
    client = connect(serve(policies))
    assert fetch(client, policies, 2) == ["anchor", "delta", "delta"]
    assert list(client.store.list_folders()) == [policies.hash_of(0), policies.hash_of(2)]


def test_large_tensors__in_pieces(tmp_path, serve, connect):
    policies = OfferedPolicies(tmp_path / "large")
    policies.offer(), policies.offer()
    relay = serve(policies)
    client = connect(relay)
    assert fetch(client, policies, 1) == ["anchor", "delta"]
    assert relay.count_pieces() == 5 + 1 + 1  # Weights: 1 + 2 + 1 + 1; config.json; delta.


def test_policy_that_is_here__is_not_fetched_again(policies, serve, connect):
    policies.offer()
    relay = serve(policies)
    fetch(connect(relay), policies, 0)
    count = len(relay.paths)
    assert fetch(connect(relay), policies, 0) == []
    assert len(relay.paths) == count


def test_file_that_changes__comes_with_its_delta(policies, serve, connect):
    for config in ('{"a": 1}', '{"a": 2}', '{"a": 2}', '{"a": 1}'):
        policies.offer(config=config)
    client = connect(serve(policies))
    assert fetch(client, policies, 0) == ["anchor"]
    assert fetch(client, policies, 2) == ["delta", "delta"]
    assert fetch(client, policies, 3) == ["delta"]


@pytest.mark.parametrize("name", [WEIGHTS_FILE, "config.json", "record.json"])
def test_damaged_base__is_discarded__and_another_route_is_taken(policies, serve, connect, name):
    for _ in range(3):
        policies.offer()
    relay = serve(policies)
    fetch(connect(relay), policies, 0)
    fetch(connect(relay), policies, 1)
    damaged = connect(relay).store.get_folder(1, policies.hash_of(1))
    flip(damaged / name)
    client = connect(relay)
    assert fetch(client, policies, 2) == ["delta", "delta"]
    assert not damaged.exists()


def test_all_bases_damaged__the_anchor_is_fetched(policies, serve, connect):
    for _ in range(3):
        policies.offer()
    relay = serve(policies)
    first = connect(relay)
    for step in (0, 1):
        fetch(first, policies, step)
    for folder in first.store.list_folders().values():
        flip(folder / WEIGHTS_FILE)
    client = connect(relay)
    assert fetch(client, policies, 2) == ["anchor", "delta", "delta"]


def test_damaged_target__is_fetched_again(policies, serve, connect):
    policies.offer()
    relay = serve(policies)
    fetch(connect(relay), policies, 0)
    flip(connect(relay).store.get_folder(0, policies.hash_of(0)) / WEIGHTS_FILE)
    assert fetch(connect(relay), policies, 0) == ["anchor"]


def test_manifest_of_another_signer__is_refused_and_its_relay_blamed(tmp_path, policies, serve, connect):
    """Both heads name the same record. The stranger's delta is smaller, so it is tried first."""
    policies.offer()
    stranger = OfferedPolicies(tmp_path / "stranger", sizes=SMALL, signer=wallet_from_key(b"\x09" * 32))
    stranger.offer()
    assert stranger.hash_of(0) == policies.hash_of(0)
    bad, good = serve(stranger), serve(policies)
    for seed in range(4):
        client = connect(bad, good, seed=seed)
        assert fetch(client, policies, 0) == ["anchor"]
        forget_all(client)
    client = connect(bad)
    with raising("no_relay", "no route leads to the policy of step 0 .* was not signed by"):
        client.fetch(0, policies.hash_of(0))
    assert client.source.downloader.sources[0].success == 0.0


def make_false_heads(policies):
    """Return heads with false claims about manifests, by the kind of claim."""
    head = policies.head()
    (first,) = (each for each in head.policies if each.step == 0)
    (way,) = first.ways
    other = Hash("0x" + "12" * 32)
    return {
        "size": [first.model_copy(update={"ways": (way.model_copy(update={"size": 1}),)})],
        "base": [
            first.model_copy(update={"ways": (Way(manifest=way.manifest, base=other, size=1),)}),
            ServedPolicy(step=7, record=other, ways=(way,)),
        ],
        "record": [ServedPolicy(step=1, record=policies.hash_of(1), ways=(Way(manifest=way.manifest, size=1),))],
        "absent": [first.model_copy(update={"ways": (Way(manifest=other, size=1),)})],
        "absent base": [
            first.model_copy(update={"ways": (Way(manifest=way.manifest, base=other, size=1),)}),
            ServedPolicy(step=7, record=other, ways=(Way(manifest=Hash("0x" + "34" * 32), size=1),)),
        ],
    }


@pytest.mark.parametrize("kind", ["size", "base", "record", "absent", "absent base"])
@pytest.mark.parametrize("seed", [1, 4, 7])  # With seeds 4 and 7, the liar is asked first.
def test_head_that_lies_about_a_true_manifest__does_not_spoil_the_manifest(policies, serve, connect, kind, seed):
    """The false claim is refused, but the same manifest is used when an honest head names it."""
    policies.offer(), policies.offer()
    step = 1 if kind == "record" else 0
    false = Head(pool=1, policies=tuple(make_false_heads(policies)[kind])).to_bytes()
    liar = serve(policies, lambda path, body: false if path.startswith("/heads") else body)
    client = connect(liar, serve(policies), seed=seed)
    fetch(client, policies, step)
    lone = connect(liar)
    forget_all(lone)
    with pytest.raises(TransientError):
        lone.fetch(step, policies.hash_of(step))


def test_head_of_another_pool__or_garbage__is_a_lie(policies, serve, connect):
    policies.offer()
    other = policies.head().model_copy(update={"pool": 2}).to_bytes()
    for false in (other, b"{", b"null", b'{"pool": 1}'):
        liar = serve(policies, lambda path, body, false=false: false if path.startswith("/heads") else body)
        with raising("no_relay", "sent wrong bytes"):
            connect(liar).fetch(0, policies.hash_of(0))


def add_false_delta(policies, step, data=None, base=None):
    """Offer a policy, and replace its delta with a signed one that leads to another policy."""
    record = policies.offer()
    head = policies.head()
    objects = (TransportObject(name=DELTA, pieces=build_pieces(memoryview(data))),)
    manifest = TransportManifest(record=record.compute_hash(), base=policies.hash_of(step - 1), objects=objects)
    manifest = manifest.sign(DOMAIN, TRAINER)
    path = policies.root / "false-delta"
    path.write_bytes(data)
    policies.store.add_manifest(manifest, {DELTA: path})
    way = Way(manifest=manifest.address, base=manifest.base, size=manifest.size)
    changed = [each.model_copy(update={"ways": (way,)}) if each.step == step else each for each in head.policies]
    policies.store.write_head(1, Head(pool=1, policies=tuple(changed)))


def read_delta(policies, step):
    """Return the bytes of the delta that leads to this step."""
    (served,) = (each for each in policies.head().policies if each.step == step)
    return (policies.store.find_objects(served.ways[0].manifest) / DELTA).read_bytes()


@pytest.mark.parametrize("kind", ["garbage", "elsewhere", "too large"])
def test_signed_delta_that_leads_elsewhere__is_refused__and_the_anchor_is_used_once_there_is_one(
    policies, serve, connect, kind
):
    policies.offer(), policies.offer()
    data = {"garbage": b"x" * 100, "elsewhere": read_delta(policies, 1), "too large": b"x" * 50_000}[kind]
    add_false_delta(policies, 2, data)
    client = connect(serve(policies))
    assert fetch(client, policies, 1) == ["anchor", "delta"]
    with raising("no_relay", "no route leads to the policy of step 2"):
        client.fetch(2, policies.hash_of(2))
    assert [path.name for path in client.store.list_folders().values()] == [
        f"{step}-{policies.hash_of(step)}" for step in (0, 1)
    ]
    policies.offering._add_anchor(policies.exports[2])
    assert fetch(client, policies, 2) == ["anchor"]  # The folder contains nothing of the false delta.


def test_false_delta_after_an_anchor__the_anchor_is_not_refused_with_it(policies, serve, connect):
    policies.offer()
    policies.offer()
    add_false_delta(policies, 2, b"x" * 100)
    client = connect(serve(policies))
    with raising("no_relay"):
        client.fetch(2, policies.hash_of(2))
    assert list(client.store.list_folders()) == [policies.hash_of(0)]
    forget_all(client)
    assert fetch(client, policies, 0) == ["anchor"]


def test_false_tensor_in_a_shared_piece__is_found(policies, serve, connect):
    """The hash of a shared piece does not prove the digest of each tensor in it. The trainer signs a wrong digest."""
    policies.offer()
    export = policies.exports[0]
    (served,) = policies.head().policies
    data = policies.store.find_manifest(served.ways[0].manifest)
    manifest = TransportManifest.from_bytes(data, served.ways[0].manifest)
    weights = bytearray((export.folder / WEIGHTS_FILE).read_bytes())
    weights[-1] ^= 1
    path = policies.root / "weights"
    path.write_bytes(weights)
    (piece,) = build_pieces(memoryview(bytes(weights[-export.record.size :])))
    objects = (TransportObject(name="weights", pieces=(piece,)), *manifest.objects[1:])
    false = TransportManifest(record=manifest.record, objects=objects).sign(DOMAIN, TRAINER)
    policies.store.add_manifest(false, {"weights": path, "config.json": export.folder / "config.json"})
    way = Way(manifest=false.address, size=false.size)
    policies.store.write_head(1, Head(pool=1, policies=(served.model_copy(update={"ways": (way,)}),)))
    client = connect(serve(policies))
    with raising("no_relay", r"the tensor c.bias .* does not match"):
        client.fetch(0, policies.hash_of(0))
    assert client.store.list_folders() == {}


def test_record_of_another_step__is_an_error_of_the_chain__not_of_the_relay(policies, serve, connect):
    policies.offer()
    client = connect(serve(policies))
    with raising("bad_record", "belongs to step 0, not 5"):
        client.fetch(5, policies.hash_of(0))
    assert client.source.downloader.sources[0].success == 1.0


def test_bad_record__another_relay_is_asked__and_the_liar_not_again(policies, serve, connect):
    policies.offer()
    liar = serve(policies, lambda path, body: body.replace(b'"step":0', b'"step":1') if "records" in path else body)
    good = serve(policies)
    for seed in range(3):
        client = connect(liar, good, seed=seed)
        fetch(client, policies, 0)
        forget_all(client)
    assert liar.count("/records") <= 3
    assert not any("verify" in path for path in liar.paths)


def test_pieces_of_the_cheapest_route_are_nowhere__the_anchor_is_used(policies, serve, connect):
    """An origin does not serve files that are damaged on its disk."""
    policies.offer(), policies.offer()
    policies.offering._add_anchor(policies.exports[1])
    client = connect(serve(policies))
    fetch(client, policies, 0)
    (served,) = (each for each in policies.head().policies if each.step == 1)
    (delta,) = (way for way in served.ways if way.base != ZERO_HASH)
    flip(policies.store.find_objects(delta.manifest) / DELTA)
    assert fetch(client, policies, 1) == ["anchor"]


def test_nothing_but_a_route_whose_pieces_are_nowhere__says_so(policies, serve, connect):
    policies.offer()
    relay = serve(policies, lambda path, body: None if "pieces" in path else body)
    client = connect(relay)
    with raising("not_at_relays", "the policy's pieces"):
        client.fetch(0, policies.hash_of(0))
    relay.alter = None
    assert fetch(client, policies, 0) == ["anchor"]


def test_unknown_policy__is_not_at_the_relays(policies, serve, connect):
    policies.offer()
    with raising("not_at_relays"):
        connect(serve(policies)).fetch(1, Hash("0x" + "ab" * 32))


def stop_after(relay, stop, count):
    """Make a relay set an event when it sends piece number `count`, and send no later pieces."""

    def alter(path, body):
        if "pieces" in path and relay.count_pieces() >= count:
            if stop.is_set():
                relay.is_closed.wait(2 * HANG_S)
            stop.set()
        return body

    relay.alter = alter


def test_stop__keeps_what_has_come__and_the_next_fetch_downloads_only_the_rest(tmp_path, serve, connect):
    policies = OfferedPolicies(tmp_path / "large", sizes={f"t{index:02}": 2_097_152 for index in range(12)})
    policies.offer()
    relay, stop = serve(policies), threading.Event()
    stop_after(relay, stop, 5)
    with raising("stopped"):
        connect(relay).fetch(0, policies.hash_of(0), stop=stop)
    first = relay.count_pieces()
    assert 5 <= first < 13
    assert len(list((tmp_path / "policies").glob(".part-*"))) == 1
    relay.alter = None
    assert fetch(connect(relay), policies, 0) == ["anchor"]
    assert relay.count_pieces() <= 13 + 4  # At most one piece per connection is sent twice.
    assert relay.count_pieces() >= 13


@pytest.mark.parametrize("place", ["write_child", "find_wrong_tensor"])
def test_crash_after_the_last_piece__costs_no_piece(policies, serve, connect, monkeypatch, place):
    for config in ("{}", '{"a": 1}'):
        policies.offer(config=config)
    relay = serve(policies)
    fetch(connect(relay), policies, 0)
    with monkeypatch.context() as patch:

        def crash(*_, **__):
            raise KeyboardInterrupt

        patch.setattr(policy_fetch, place, crash)
        with pytest.raises(KeyboardInterrupt):
            connect(relay).fetch(1, policies.hash_of(1))
    count = relay.count_pieces()
    assert fetch(connect(relay), policies, 1) == ["delta"]
    assert relay.count_pieces() == count


def test_obsolete__is_asked_with_the_missing_bytes__and_keeps_what_has_come(policies, serve, connect, monkeypatch):
    policies.offer()
    monkeypatch.setattr(policy_fetch, "_LOOK_EVERY_SECONDS", 0.0)
    relay, gate = serve(policies), threading.Event()
    hold_back(relay, gate)
    asked = []

    def is_obsolete(missing):
        asked.append(missing)
        return True

    with raising("obsolete"):
        connect(relay).fetch(0, policies.hash_of(0), is_obsolete=is_obsolete)
    gate.set()
    assert asked == [policies.exports[0].record.size + 2]
    assert fetch(connect(relay), policies, 0, is_obsolete=lambda missing: False) == ["anchor"]


def test_disk_full__says_so_with_values__and_nothing_is_left_in_the_way(policies, serve, connect, monkeypatch):
    policies.offer()
    client = connect(serve(policies))
    monkeypatch.setattr(client.store, "count_free", lambda: 100)
    size = policies.exports[0].record.size + 2
    with raising("disk_full", f"needs {int(size * 1.02)} free bytes for a policy but has 100"):
        client.fetch(0, policies.hash_of(0))
    monkeypatch.undo()
    assert fetch(client, policies, 0) == ["anchor"]


def test_write_fails__is_disk_full__and_the_download_goes_on_later(policies, serve, connect, monkeypatch):
    policies.offer()
    client = connect(serve(policies))

    def fail(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(policy_fetch.PartialFile, "write", fail)
        with raising("disk_full", "No space left on device"):
            client.fetch(0, policies.hash_of(0))
    assert fetch(client, policies, 0) == ["anchor"]


def test_two_clients_of_one_store__one_downloads_and_both_use_it(policies, serve, connect):
    policies.offer()
    relay, gate = serve(policies), threading.Event()
    hold_back(relay, gate)
    folders = []
    threads = [
        threading.Thread(target=lambda: folders.append(connect(relay).fetch(0, policies.hash_of(0)))) for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    gate.set()
    for thread in threads:
        thread.join(HANG_S)
    assert len(folders) == 2
    assert relay.count_pieces() == 2
    policies.require_same(folders[0], 0)


@pytest.mark.parametrize(
    ("header", "step", "bound"),
    [
        (b"content-length: 1000\r\n", 1, 3),
        (b"", 1, 3),
        (b"content-length: 16000000\r\n", 1, 20),
        (b"content-length: 16000000\r\n", 10_000, 20),
        (None, 0, 4),
    ],
    ids=["small", "no size", "large", "large and not slow", "silent"],
)
def test_relay_that_drips_a_document_only_it_has__costs_a_bounded_time(
    policies, serve, connect, monkeypatch, header, step, bound
):
    """A false head names a manifest that does not exist elsewhere, and its relay sends it forever.

    Only the time while the relay sends it counts.
    """
    monkeypatch.undo()
    monkeypatch.setattr(download, "_LOOK_SECONDS", 0.001)
    slow = []
    policies.offer()
    absent = Hash("0x" + "12" * 32)
    (first,) = policies.head().policies
    false = Head(pool=1, policies=(first.model_copy(update={"ways": (Way(manifest=absent, size=1),)}),)).to_bytes()
    liar = serve(policies, lambda path, body: false if path.startswith("/heads") else body)
    honest, answer = serve(policies), liar.answer

    def drip(path, send):
        if absent not in path:
            return answer(path, send)
        send(b"" if header is None else b"HTTP/1.1 200 X\r\n" + header + b"\r\n")
        slow.append(liar.url)
        sources = client.source.downloader._sources
        while not sources.is_closed and sources.now < 10 * bound:  # Ten times the bound is forever for a client.
            sources.wait_until(sources.now + sources.STEP_S)
            send(b"x" * step)
        return False

    liar.answer = drip
    for seed in range(2):
        slow.clear()
        client = connect(liar, honest, seed=seed)
        client.source.downloader._sources = StandingSources([liar.url, honest.url], slow=slow, seed=seed)
        assert fetch(client, policies, 0) == ["anchor"]
        assert liar.count(f"/manifests/{absent}") == seed + 1  # The liar names the shortest route.
        assert client.source.downloader._sources.now < bound + 3
        forget_all(client)


def test_look_at_relay__record_and_route(policies, serve):
    policies.offer(), policies.offer()
    relay = serve(policies)
    assert look_at_relay(relay.url, pool=1, record_hash=policies.hash_of(1)) == policies.exports[1].record
    with raising("not_at_relays"):
        look_at_relay(relay.url, pool=2, record_hash=policies.hash_of(1))
    with raising("no_relays"):
        look_at_relay("ftp://x", pool=1, record_hash=policies.hash_of(1))


def test_progress__counts_what_an_earlier_attempt_left(tmp_path, serve, connect):
    policies = OfferedPolicies(tmp_path / "large", sizes={f"t{index:02}": 2_097_152 for index in range(6)})
    policies.offer()
    relay, stop = serve(policies), threading.Event()
    stop_after(relay, stop, 5)  # By then, one of four connections has delivered a piece.
    progress = FetchProgress()
    with raising("stopped"):
        connect(relay).fetch(0, policies.hash_of(0), stop=stop, progress=progress)
    assert progress.size == 6 * (4 << 20) + 2
    assert 0 < progress.received < progress.size
    assert np.mod(progress.received, 4 << 20) in (0, 2)
