"""What relays, disks and signals can do to a client, with real servers and real processes.

A relay that stalls does so until the end of its test, so a client that waited for it would exceed the deadline.

The sizes of the default suite are slices. `make nightly` runs the full ones.
"""

import asyncio
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from covey.errors import TransientError
from covey.protocol.head import Head
from covey.protocol.ids import ZERO_HASH, Hash
from covey.protocol.policy_record import WEIGHTS_FILE
from covey.protocol.transport import TransportManifest
from covey.shardcast import download, source
from covey.shardcast.downloader import CONNECTIONS
from covey.shardcast.policy_fetch import FetchProgress
from covey.shardcast.policy_store import PolicyStore
from tests.fakes.policy_relays import (
    FakeRelay,
    OfferedPolicies,
    ThrottledRelay,
    build_client,
    close_client,
    flip_bit,
)
from tests.fakes.raw_server import HANG_S, drip, respond
from tests.fakes.served_policies import flip
from tests.fakes.standing_clock import StandingSources

pytestmark = pytest.mark.integration
ROOT = Path(__file__).resolve().parents[3]
PIECE = 4 << 20
PROCESS_S = 180.0
"""Deadline against hanging of a process that fetches a policy, in seconds. Its imports take long on a slow machine."""
FETCH = """
import sys
from pathlib import Path
from covey.shardcast import download
from tests.fakes.policy_relays import build_client
download._SILENCE_SECONDS = download._LONE_SILENCE_SECONDS = 1000.0
client = build_client(Path(sys.argv[1]), *sys.argv[3:])
print("ready", flush=True)
print(client.fetch(0, sys.argv[2]), flush=True)
"""


def make_policies(root, size):
    """Offer one policy of `size` bytes in tensors of two pieces."""
    sizes = {f"t{index:03}": PIECE for index in range(size // (2 * PIECE))}
    policies = OfferedPolicies(root / "trainer", sizes=sizes)
    policies.offer()
    return policies


@pytest.fixture(scope="module")
def policies(tmp_path_factory):
    """Return one policy of 64 MiB that no test changes."""
    return make_policies(tmp_path_factory.mktemp("shared"), 64 << 20)


def fetch(policies, root, *urls, step=0, seed=0, keep=4, progress=None, slow=None, hang_s=HANG_S):
    """Fetch a policy, without waiting for relays that stall, and compare it with the trainer's.

    Returns the seconds that the fetch took. With `slow`, its clock only shows waits for relays with these URLs, and
    waits in which no relay is asked.
    """
    client = build_client(root, *urls, seed=seed, keep=keep)
    if slow is not None:
        client.source.downloader._sources = StandingSources(urls, slow=slow, seed=seed)
    begun_at = client.source.downloader._sources.clock()
    try:
        begun = time.monotonic()
        folder = client.fetch(step, policies.hash_of(step), progress=progress)
        seconds = time.monotonic() - begun
        shown = client.source.downloader._sources.clock() - begun_at
        assert max(seconds, shown) < hang_s, "it has waited for a relay that stalls or rests"
        client.store.release(folder)
    finally:
        close_client(client)
    policies.require_same(folder, step)
    return seconds


@pytest.fixture
def quick_looks(monkeypatch):
    """Let a look, by which a clock that stands moves, follow the previous one at once."""
    monkeypatch.setattr(download, "_LOOK_SECONDS", 0.002)


@pytest.fixture
def short_rests(monkeypatch):
    """Let a relay that has lied be asked again soon."""
    for name in ("_LIE_REST_SECONDS", "_LONGEST_LIE_REST_SECONDS"):
        monkeypatch.setattr(source, name, 0.1)


@pytest.fixture
def servers():
    """Return a list of servers that are closed at the end."""
    started = []
    yield started
    for server in started:
        server.close()


@pytest.fixture
def start(tmp_path):
    """Return a function that starts a process which fetches policy 0."""
    processes = []

    def start_process(root, record, *urls):
        command = [sys.executable, "-c", FETCH, str(root), record, *urls]
        log = (tmp_path / "processes.log").open("ab")
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        process = subprocess.Popen(command, stdout=-1, stderr=log, text=True, env=environment)
        log.close()
        processes.append(process)
        return process

    yield start_process
    for process in processes:
        process.kill()
        process.wait()
        process.stdout.close()


def wait_for(condition):
    deadline = time.monotonic() + PROCESS_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


@pytest.mark.parametrize(
    ("size", "rate", "instants"),
    [
        pytest.param(64 << 20, 150e6, 3, id="slice"),
        pytest.param(1 << 30, 400e6, 20, id="full", marks=[pytest.mark.full, pytest.mark.slow]),
    ],
)
def test_kill_at_any_instant__fetches_hardly_anything_twice(policies, tmp_path, start, servers, size, rate, instants):
    policies = policies if size == 64 << 20 else make_policies(tmp_path, size)
    worst, rng = 0, random.Random(5)
    relay = ThrottledRelay(policies.store, rate=rate)
    servers.append(relay)
    for number in range(instants):
        root = tmp_path / f"policies-{number}"
        instant = (number + rng.random()) / instants * size
        relay.sent, relay.limit = 0, min(instant, size - PIECE)
        process = start(root, policies.hash_of(0), relay.url)
        wait_for(lambda: relay.sent >= relay.limit)
        process.send_signal(signal.SIGKILL)
        process.wait()
        relay.limit = math.inf
        relay.wait_until_idle()
        assert not list(root.glob("0-*"))
        if number % 2 and instants < 10:
            fetch(policies, root, relay.url)
        else:
            again = start(root, policies.hash_of(0), relay.url)
            assert again.wait(PROCESS_S) == 0
        worst = max(worst, relay.sent - policies.exports[0].record.size - 2)
        policies.require_same(root / f"0-{policies.hash_of(0)}", 0)
        shutil.rmtree(root)
    print(f"killed {instants} times: at most {worst / size:.2%} of {size >> 20} MiB came twice")
    assert worst <= CONNECTIONS * PIECE + (1 << 20)
    assert size < 1 << 30 or worst <= 0.02 * size


def test_two_processes_of_one_store__the_one_that_downloads_is_killed__the_other_goes_on(
    policies, tmp_path, start, servers
):
    root = tmp_path / "policies"
    relay = ThrottledRelay(policies.store, rate=100e6)
    servers.append(relay)
    relay.limit = 16 << 20
    first = start(root, policies.hash_of(0), relay.url)
    wait_for(lambda: relay.sent >= relay.limit)
    second = start(root, policies.hash_of(0), relay.url)
    assert second.stdout.readline() == "ready\n"
    first.kill()
    relay.limit = math.inf
    assert second.wait(PROCESS_S) == 0
    policies.require_same(root / f"0-{policies.hash_of(0)}", 0)
    assert relay.sent <= policies.exports[0].record.size + 2 + (CONNECTIONS + 1) * PIECE


def test_two_processes_of_one_store__one_downloads_and_both_use_it(policies, tmp_path, start, servers):
    root = tmp_path / "policies"
    relay = ThrottledRelay(policies.store, rate=100e6)
    servers.append(relay)
    processes = [start(root, policies.hash_of(0), relay.url) for _ in range(2)]
    for process in processes:
        assert process.wait(PROCESS_S) == 0
        assert process.stdout.read().endswith(f"0-{policies.hash_of(0)}\n")
    assert relay.sent == policies.exports[0].record.size + 2


def make_answer(kind, policies, relay):
    """Return what a bad relay does with requests for pieces."""
    answer = relay.answer

    def harm(path, send):
        if not path.startswith("/pieces"):
            return answer(path, send)
        body = relay.find(path)
        if kind == "mute":
            relay.is_closed.wait(2 * HANG_S)
        elif kind == "stall":
            send(respond(body[:1000], length=len(body)))
            relay.is_closed.wait(2 * HANG_S)
        elif kind == "drip":
            send(respond(b"", length=len(body)))
            drip(send, body, rate=1000)
        elif kind == "drip headers":
            drip(send, b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 10_000, rate=5)
        elif kind == "liar":
            send(respond(flip_bit(body, len(body) // 2)))
            return True
        elif kind == "endless":
            send(b"HTTP/1.1 200 OK\r\n\r\n")
            while not relay.is_closed.is_set():
                send(body)
        elif kind == "close":
            send(respond(body[: len(body) // 2], length=len(body)))
        return False

    return harm


@pytest.mark.parametrize("number", [pytest.param(1, marks=pytest.mark.full), 2])
@pytest.mark.parametrize("kind", ["mute", "stall", "drip", "drip headers", "liar", "endless", "close"])
async def test_bad_relay_beside_a_good_one__is_left(policies, broadcast, tmp_path, servers, kind, number):
    """One bad relay, and two."""
    broadcast.publisher = policies
    origin, _ = await broadcast.add_origin()
    clean = await asyncio.to_thread(fetch, policies, tmp_path / "clean", origin)
    for _ in range(number):
        relay = FakeRelay(policies.store)
        relay.answer = make_answer(kind, policies, relay)
        servers.append(relay)
    urls = [server.url for server in servers] + [origin]
    worst = await asyncio.to_thread(fetch, policies, tmp_path / "policies", *urls)
    print(f"{number} x {kind}: {worst:.2f} s instead of {clean:.2f} s")


async def test_relay_behind_a_slow_link_beside_a_good_one(policies, broadcast, tmp_path, servers):
    broadcast.publisher = policies
    origin, _ = await broadcast.add_origin()
    clean = await asyncio.to_thread(fetch, policies, tmp_path / "clean", origin)
    servers.append(ThrottledRelay(policies.store, rate=2e4))
    slow, _ = await broadcast.add_relay(servers[0].url)
    worst = 0.0
    for seed in range(2):
        worst = max(worst, await asyncio.to_thread(fetch, policies, tmp_path / f"{seed}", slow, origin, seed=seed))
    print(f"slow upstream: {worst:.2f} s instead of {clean:.2f} s")


@pytest.mark.full
@pytest.mark.slow
def test_lone_relay_of_50_kilobytes_per_second__finishes_and_sends_nothing_twice(tmp_path, servers):
    policies = make_policies(tmp_path, 8 << 20)
    relay = ThrottledRelay(policies.store, rate=50e3)
    servers.append(relay)
    seconds = fetch(policies, tmp_path / "policies", relay.url, hang_s=600)
    print(f"50 kB/s: {seconds:.0f} s, {(8 << 20) / 50e3:.0f} s at best")
    assert relay.sent == policies.exports[0].record.size + 2


def decay(path, position=-1):
    """Invert a bit of a file as a disk does, so that its time does not change."""
    stamp = path.stat()
    flip(path, position)
    os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))


@pytest.mark.usefixtures("short_rests")
async def test_lone_relay_whose_disk_has_one_flipped_bit__heals_when_a_client_complains(broadcast, tmp_path):
    policies = broadcast.publisher = make_policies(tmp_path, 32 << 20)
    origin, _ = await broadcast.add_origin()
    relay, inner = await broadcast.add_relay(origin)
    await asyncio.to_thread(fetch, policies, tmp_path / "first", relay)
    path = max((tmp_path / "relay-1" / "pieces").glob("*/*"), key=lambda path: path.stat().st_size)
    before = path.read_bytes()
    decay(path, 12345)
    seconds = await asyncio.to_thread(fetch, policies, tmp_path / "second", relay)
    assert path.read_bytes() == before
    print(f"healed in {seconds:.2f} s")
    received = inner._fetcher.upstreams[0].received_bytes
    await asyncio.to_thread(fetch, policies, tmp_path / "third", relay)
    assert inner._fetcher.upstreams[0].received_bytes == received, "the relay has everything again"


@pytest.mark.usefixtures("short_rests")
async def test_damage_at_the_origin__is_not_spread__and_repaired_by_the_next_offer(broadcast, tmp_path):
    policies = broadcast.publisher = make_policies(tmp_path, 32 << 20)
    (served,) = policies.head().policies
    path = policies.store.find_objects(served.ways[0].manifest) / "weights"
    data = path.read_bytes()
    path.unlink()  # It is a link to the export.
    path.write_bytes(data)
    flip(path)
    origin, _ = await broadcast.add_origin()
    relay, _ = await broadcast.add_relay(origin)
    with pytest.raises(TransientError) as caught:
        await asyncio.to_thread(fetch, policies, tmp_path / "policies", relay)
    assert caught.value.code == "no_relay"
    await asyncio.to_thread(policies.offering.offer, policies.exports[0], None)
    await asyncio.to_thread(fetch, policies, tmp_path / "policies", relay)


def make_heads(policies):
    """Return heads that a relay may send instead of the true one of two policies."""
    head, absent = policies.head(), Hash("0x" + "ab" * 32)
    newest, oldest = head.policies
    (way,) = newest.ways
    fake = newest.model_copy(
        update={"ways": (way.model_copy(update={"manifest": absent, "base": ZERO_HASH, "size": 1}),)}
    )
    wrong = newest.model_copy(update={"ways": (way.model_copy(update={"size": 1, "base": ZERO_HASH}),)})
    return {
        "garbage": b"{",
        "empty": Head(pool=1, policies=()).to_bytes(),
        "old": Head(pool=1, policies=(oldest,)).to_bytes(),
        "other pool": head.model_copy(update={"pool": 2}).to_bytes(),
        "absent manifest": Head(pool=1, policies=(fake, oldest)).to_bytes(),
        "true manifest, false size": Head(pool=1, policies=(wrong, oldest)).to_bytes(),
        "huge": b" " * (5 << 20),
        "deep": b"[" * (1 << 20),
    }


@pytest.fixture
def long_rests(monkeypatch):
    """Let a relay that has lied rest for longer than a test may take, so a client that waits for one is found."""
    for name in ("_LIE_REST_SECONDS", "_LONGEST_LIE_REST_SECONDS"):
        monkeypatch.setattr(source, name, 2 * HANG_S)


@pytest.mark.usefixtures("long_rests", "quick_looks")
async def test_wrong_heads__are_outlived(broadcast, tmp_path, servers):
    policies = broadcast.publisher = OfferedPolicies(tmp_path / "trainer")
    policies.offer(), policies.offer()
    origin, _ = await broadcast.add_origin()
    relay, _ = await broadcast.add_relay(origin)
    for kind, false in make_heads(policies).items():
        liar = FakeRelay(policies.store, lambda path, body, false=false: false if "heads" in path else body)
        servers.append(liar)
        for seed in (4, 7):  # The liar is asked first.
            root = tmp_path / f"{kind}-{seed}"
            await asyncio.to_thread(fetch, policies, root, liar.url, relay, step=1, seed=seed, slow=())


@pytest.mark.usefixtures("quick_looks")
async def test_relay_whose_head_lacks_the_delta__beside_a_whole_one__the_delta_is_used(broadcast, tmp_path, servers):
    """The head of the first has only anchors, the silent one has no head, and the liar names a shorter way."""
    policies = broadcast.publisher = OfferedPolicies(tmp_path / "trainer", anchor_every=1)
    policies.offer(), policies.offer()
    origin, _ = await broadcast.add_origin()
    whole, _ = await broadcast.add_relay(origin)
    newest, oldest = policies.head().policies
    anchors = tuple(way for way in newest.ways if way.base == ZERO_HASH)
    assert len(anchors) == 1 < len(newest.ways)
    hiding = Head(pool=1, policies=(newest.model_copy(update={"ways": anchors}), oldest)).to_bytes()
    servers.append(FakeRelay(policies.store, lambda path, body: hiding if "heads" in path else body))
    servers.append(FakeRelay(policies.store))
    answer = servers[1].answer
    servers[1].answer = lambda path, send: (
        servers[1].is_closed.wait(2 * HANG_S) if "heads" in path else answer(path, send)
    )
    absent = anchors[0].model_copy(update={"manifest": Hash("0x" + "ab" * 32), "size": 1})
    false = Head(pool=1, policies=(newest.model_copy(update={"ways": (absent,)}), oldest)).to_bytes()
    servers.append(FakeRelay(policies.store, lambda path, body: false if "heads" in path else body))
    hider, silent, liar = (server.url for server in servers)
    for number, urls in enumerate(([hider, whole], [whole, hider], [hider, silent, whole], [hider, liar, whole])):
        for seed in range(3):
            root = tmp_path / f"policies-{number}-{seed}"
            await asyncio.to_thread(fetch, policies, root, origin)
            progress = FetchProgress()
            seconds = await asyncio.to_thread(
                fetch, policies, root, *urls, step=1, seed=seed, progress=progress, slow=[silent]
            )
            assert progress.ways == ["delta"]
            print(f"{number} with seed {seed}: {seconds:.2f} s")


def list_manifest_fields(data):
    """Return a position in each field of an encoded anchor with weights and config.json."""
    names = data.index(b"weights")
    pieces = data.index(b"config.json") + len(b"config.json") + 4
    end = len(data) - 65
    return {
        "mark": 0, "record": 20, "base": 60, "objects": 68, "length": names - 1, "name": names + 2,
        "pieces": names + 7, "hash": pieces + 5, "size": pieces + 33, "last size": end - 1, "signature": end + 10,
        "recovery": len(data) - 1,
    }  # fmt: skip


@pytest.mark.usefixtures("long_rests", "quick_looks")
async def test_one_flipped_bit_in_each_field_and_piece__beside_a_good_relay(broadcast, tmp_path, servers):
    policies = broadcast.publisher = OfferedPolicies(tmp_path / "trainer")
    policies.offer()
    origin, _ = await broadcast.add_origin()
    (served,) = policies.head().policies
    (way,) = served.ways
    manifest = policies.store.find_manifest(way.manifest)
    record = policies.store.find_record(served.record)
    pieces = TransportManifest.from_bytes(manifest, way.manifest).pieces
    changes = [
        (f"/manifests/{way.manifest}", flip_bit(manifest, at, 3)) for at in list_manifest_fields(manifest).values()
    ]
    changes += [(f"/records/{served.record}", flip_bit(record, at)) for at in range(5, len(record), len(record) // 9)]
    rng = random.Random(3)
    liar = FakeRelay(policies.store)
    servers.append(liar)
    for path in [f"/pieces/{piece.digest}" for piece in pieces]:
        body = liar.find(path)
        changes.append((path, flip_bit(body, rng.randrange(len(body)), rng.randrange(8))))
    for number, (path, changed) in enumerate(changes):
        liar.alter = lambda asked, body, path=path, changed=changed: changed if asked.startswith(path) else body
        root = tmp_path / f"policies-{number}"
        await asyncio.to_thread(fetch, policies, root, liar.url, origin, seed=number, slow=())
        shutil.rmtree(root)
    print(f"{len(changes)} flipped bits")


@contextmanager
def mounting(path, size):
    """Mount a file system of `size` bytes, or skip the test where that is not allowed."""
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)]
    if os.geteuid() or subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("file systems cannot be mounted here")
    try:
        yield
    finally:
        subprocess.run(["umount", str(path)], check=True)


@pytest.mark.parametrize("keep", [1, 2])
def test_disk_with_room_for_one_more_than_are_kept__is_never_stuck(tmp_path, servers, keep):
    """Deltas, an anchor in between, a client that is late, and a draft that was left."""
    policies = OfferedPolicies(tmp_path / "trainer", anchor_every=4)
    size = policies.offer().size
    relay = FakeRelay(policies.store)
    servers.append(relay)
    disk = tmp_path / "disk"
    with mounting(disk, int((keep + 1) * size * 1.06)):
        for step in range(10):
            if step:
                policies.offer()
            if step in (5, 6):
                continue  # The client sleeps.
            if step == 7:
                draft = PolicyStore(disk, keep=keep).get_draft("0x" + "ab" * 32)
                draft.mkdir()
                (draft / WEIGHTS_FILE).write_bytes(bytes(min(size // 3, shutil.disk_usage(disk).free)))
            fetch(policies, disk, relay.url, step=step, keep=keep)
        assert len(PolicyStore(disk, keep=keep).list_folders()) <= max(
            keep, 2
        )  # A base stays until its child is there.


def test_disk_that_fills_up_during_a_download__goes_on_when_there_is_room(tmp_path, servers):
    policies = make_policies(tmp_path, 32 << 20)
    relay = ThrottledRelay(policies.store, rate=1e9)
    servers.append(relay)
    disk = tmp_path / "disk"
    with mounting(disk, 40 << 20):
        stranger = disk / "stranger"
        find = relay.find

        def find_and_fill(path):
            if path.startswith("/pieces") and relay.sent > 12 << 20 and not stranger.exists():
                stranger.write_bytes(bytes(shutil.disk_usage(disk).free - (6 << 20)))
            return find(path)

        relay.find = find_and_fill
        with pytest.raises(TransientError) as caught:
            fetch(policies, disk, relay.url)
        assert caught.value.code == "disk_full"
        with pytest.raises(TransientError, match=r"needs \d+ free bytes"):
            fetch(policies, disk, relay.url)
        stranger.write_bytes(b"")
        fetch(policies, disk, relay.url)
    assert relay.sent <= policies.exports[0].record.size + 2 + 2 * CONNECTIONS * PIECE
