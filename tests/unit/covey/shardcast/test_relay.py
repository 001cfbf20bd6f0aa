"""A relay between a fake upstream in memory and its clients."""

import asyncio
import errno
import itertools
import json
import os
import threading
import time
from collections import Counter
from contextlib import AsyncExitStack

import pytest
from structlog.testing import capture_logs

from covey.errors import TransientError
from covey.protocol.head import Head, ServedPolicy, Way
from covey.protocol.pieces import Piece, compute_blake3
from covey.shardcast import piece_cache, relay_heads
from covey.shardcast.export_preview import PreviewFolder
from covey.shardcast.origin_store import OriginStore
from covey.shardcast.piece_cache import PieceCache
from covey.shardcast.piece_files import read_piece
from covey.shardcast.piece_server import PieceServer, compute_etag
from covey.shardcast.relay import Relay, RelaySettings
from covey.shardcast.upstream import UpstreamReply
from tests.fakes.asgi import ask
from tests.fakes.exposition import read_metrics
from tests.fakes.served_policies import Publisher, flip

pytestmark = pytest.mark.unit
QUICK = {"poll_s": 0.02, "fresh_s": 0.0}
HANG_S = 60.0
"""Deadline in seconds that keeps a test from hanging."""


class FakeUpstream:
    """Upstream that answers from an origin's folder. `alter` may replace the body of an answer, or raise an error."""

    def __init__(self, store, name="http://origin"):
        self.store, self.url, self.requests = store, name, Counter()
        self.previews = PreviewFolder(store.root)
        self.failures, self.rate, self.is_paused = 0, 1.0, False
        self.received_bytes, self.failed_requests = 0, 0
        self.alter = lambda path, body: body

    def request(self, path, target, *, etag=None):
        self.requests[path] += 1
        _, kind, name = path.partition("?")[0].split("/")
        if kind == "heads":
            body = self.store.find_head(int(name.removesuffix(".json")))
        elif kind == "previews":
            body = self.previews.find(int(name))
        elif kind == "pieces":
            location = self.store.find_piece(name) or self.previews.find_piece(name, verify=False)
            body = None if location is None else read_piece(location)
        else:
            body = self.store.find_manifest(name) if kind == "manifests" else self.store.find_record(name)
        body = self.alter(path, body)
        if body is None:
            return UpstreamReply(404, memoryview(b""), None)
        tag = compute_etag(body)
        if etag == tag:
            return UpstreamReply(304, memoryview(b""), tag)
        buffer = memoryview(bytearray(len(body))) if isinstance(target, int) else target
        buffer[: len(body)] = body
        self.received_bytes += len(body)
        return UpstreamReply(200, buffer[: len(body)], tag)

    def fail(self):
        self.failures += 1
        self.failed_requests += 1

    def succeed(self):
        self.failures = 0

    def abort_overdue(self):
        pass

    def close(self):
        pass

    def count(self, kind):
        return sum(count for path, count in self.requests.items() if path.startswith(f"/{kind}/"))


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """Wait longer for upstreams, because the machine may be slow."""
    for name in ("_TOGETHER_SECONDS", "_LONGEST_SECONDS"):
        monkeypatch.setattr(relay_heads, name, 2 * HANG_S)


@pytest.fixture
def publisher(tmp_path):
    return Publisher(OriginStore(tmp_path / "origin"), tmp_path)


@pytest.fixture
def upstream(publisher):
    return FakeUpstream(OriginStore(publisher.store.root))


@pytest.fixture
async def start(tmp_path, upstream):
    """Return a function that starts a relay, and returns the relay and its application."""
    async with AsyncExitStack() as stack:

        def start_relay(*upstreams, is_following=True, max_bytes=None, clock=time.monotonic, **settings):
            cache = PieceCache(tmp_path / "relay", max_bytes=max_bytes)
            relay = Relay(cache, upstreams or (upstream,), RelaySettings(**QUICK | settings), clock=clock)
            stack.push_async_callback(relay.close)
            if is_following:
                relay.start()
            return relay, PieceServer(relay)

        yield start_relay


async def wait_for(condition):
    async with asyncio.timeout(HANG_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


def is_mirrored(relay, step):
    pool = relay.describe()["pools"].get("1", {})
    return pool.get("newest_step") == step and pool["is_mirrored"]


async def get_pieces(app, manifest):
    """Return the statuses of all pieces, and check the bytes of the served ones."""
    statuses = []
    for piece in manifest.pieces:
        answered = await ask(app, f"/pieces/{piece.digest}")
        statuses.append(answered.status)
        assert answered.status != 200 or compute_blake3(answered.body) == piece.digest
    return statuses


async def test_known_pool__is_fetched_ahead(publisher, upstream, start):
    made = publisher.add_anchor(1, sizes=(5 << 20, 1000))
    publisher.add_delta(2, 1)
    relay, app = start(pools=(1,))
    await wait_for(lambda: is_mirrored(relay, 2))
    assert upstream.count("pieces") == 5
    assert await get_pieces(app, made.anchor) == [200] * 4
    assert (await ask(app, f"/records/{publisher.get_record(2)}")).status == 200
    assert upstream.count("pieces") == 5
    delta = publisher.add_delta(3, 2)
    await wait_for(lambda: is_mirrored(relay, 3))
    assert upstream.count("pieces") == 6
    assert await get_pieces(app, delta) == [200]


async def test_unknown_pool__is_followed_after_the_first_request(publisher, start):
    publisher.add_anchor(1)
    relay, app = start()
    assert (await ask(app, "/heads/1.json")).body == publisher.store.find_head(1)
    await wait_for(lambda: is_mirrored(relay, 1))


async def test_head__is_fetched_once_for_many_clients(publisher, upstream, start):
    publisher.add_anchor(1)
    _, app = start(is_following=False, fresh_s=60.0)
    answers = await asyncio.gather(*(ask(app, "/heads/1.json") for _ in range(50)))
    assert {answered.status for answered in answers} == {200}
    assert upstream.requests["/heads/1.json"] == 1


async def test_head__unchanged__is_confirmed_with_its_etag(publisher, upstream, start):
    publisher.add_anchor(1)
    _, app = start(is_following=False)
    bodies = [(await ask(app, "/heads/1.json")).body for _ in range(3)]
    assert set(bodies) == {publisher.store.find_head(1)}
    assert upstream.requests["/heads/1.json"] == 3


async def test_head__wrong_at_first__is_replaced_with_the_next_poll(publisher, upstream, start):
    publisher.add_anchor(1)
    wrong = Head(pool=1, policies=()).to_bytes()
    upstream.alter = lambda path, body: wrong if path.startswith("/heads") else body
    relay, app = start(pools=(1,))
    await wait_for(lambda: upstream.count("heads"))
    upstream.alter = lambda path, body: body
    await wait_for(lambda: is_mirrored(relay, 1))
    assert (await ask(app, "/heads/1.json")).body == publisher.store.find_head(1)


async def test_head__invalid_or_unreachable__last_one_is_served(publisher, upstream, start):
    def fail(path, body):
        raise TransientError("upstream_unreachable", "x")

    publisher.add_anchor(1)
    _, app = start(is_following=False)
    good = (await ask(app, "/heads/1.json")).body
    for alter in (lambda path, body: b"{", fail):
        upstream.alter = alter
        assert (await ask(app, "/heads/1.json")).body == good
    assert upstream.failures >= 1


async def test_head__relay_restarts_without_upstream__last_one_is_served(publisher, upstream, start):
    def fail(path, body):
        raise TransientError("upstream_unreachable", "x")

    publisher.add_anchor(1)
    _, app = start(is_following=False)
    good = (await ask(app, "/heads/1.json")).body
    upstream.alter = fail
    _, app = start(is_following=False)
    assert (await ask(app, "/heads/1.json")).body == good


async def test_hundred_requests_for_an_unknown_piece__reach_the_upstream_once(upstream, start):
    _, app = start(is_following=False, clock=lambda: 0.0)
    path = "/pieces/0x" + "ab" * 32
    answers = await asyncio.gather(*(ask(app, path) for _ in range(50)))
    answers += [await ask(app, path) for _ in range(50)]
    assert {answered.status for answered in answers} == {404}
    assert upstream.count("pieces") == 1


async def test_many_different_unknown_pieces__reach_the_upstream_a_bounded_number_of_times(publisher, upstream, start):
    made = publisher.add_anchor(1)
    relay, app = start(pools=(1,), clock=lambda: 0.0)
    await wait_for(lambda: is_mirrored(relay, 1))
    before = upstream.count("pieces")
    statuses = Counter([(await ask(app, f"/pieces/0x{number:064x}")).status for number in range(300)])
    assert upstream.count("pieces") - before == statuses[404] < 80
    assert statuses[503] == 300 - statuses[404]
    flip(piece_path(relay, made), 3)
    assert await get_pieces(app, made.anchor) == [200, 200]  # Listed pieces are still fetched.


async def test_flood_of_unknown_pieces__those_of_a_data_set_are_still_fetched(publisher, start):
    made = publisher.add_dataset(1)
    _, app = start(is_following=False, clock=lambda: 0.0)
    assert (await ask(app, f"/manifests/{made.digest}")).body == made.to_bytes()
    statuses = {(await ask(app, f"/pieces/0x{number:064x}")).status for number in range(300)}
    assert statuses == {404, 503}
    assert await get_pieces(app, made.files[0]) == [200]


async def test_data_set__is_fetched_on_request_and_piece_by_piece(publisher, upstream, start):
    made = publisher.add_dataset(1, size=(3 << 20) + 7)
    relay, app = start()
    assert (await ask(app, f"/manifests/{made.digest}")).body == made.to_bytes()
    assert upstream.count("pieces") == 0
    path = f"/pieces/{made.files[0].hashes[1]}"
    answers = await asyncio.gather(*(ask(app, path) for _ in range(20)))
    assert {answered.status for answered in answers} == {200}
    assert upstream.count("pieces") == upstream.count("manifests") == 1
    assert await get_pieces(app, made.files[0]) == [200] * 4
    assert upstream.count("pieces") == 4
    relay._cache.prune(keep=1, keep_datasets=1, spare_bytes=0)
    assert await get_pieces(app, made.files[0]) == [200] * 4
    assert upstream.count("pieces") == 4


def piece_path(relay, made):
    digest = made.anchor.objects[0].pieces[0].digest
    return relay._cache.root / "pieces" / digest[2:4] / digest


async def test_byte_flipped_on_disk__is_fetched_again(publisher, upstream, start):
    made = publisher.add_anchor(1)
    relay, app = start(pools=(1,))
    await wait_for(lambda: is_mirrored(relay, 1))
    before = upstream.count("pieces")
    flip(piece_path(relay, made))
    assert await get_pieces(app, made.anchor) == [200, 200]
    assert upstream.count("pieces") == before + 1


async def test_wrong_bytes_once__are_requested_again_with_verification(publisher, upstream, start):
    made = publisher.add_anchor(1)
    upstream.alter = lambda path, body: b"wrong" if path.startswith("/pieces") and "verify" not in path else body
    _, app = start(is_following=False)
    assert await get_pieces(app, made.anchor) == [200, 200]
    digest = made.anchor.objects[0].pieces[0].digest
    assert upstream.requests[f"/pieces/{digest}?verify=1"] == 1


@pytest.mark.parametrize(
    "alter", [lambda body: b"", lambda body: body[:-1], lambda body: body + b"x"], ids=["empty", "short", "long"]
)
@pytest.mark.parametrize("kind", ["pieces", "manifests"])
async def test_wrong_size_from_the_upstream__is_neither_kept_nor_served(publisher, upstream, start, kind, alter):
    policy, data_set = publisher.add_anchor(1), publisher.add_dataset(1)
    names = {
        "pieces": [policy.anchor.objects[0].pieces[0].digest, data_set.files[0].hashes[0]],
        "manifests": [policy.anchor.address, data_set.digest],
    }
    upstream.alter = lambda path, body: alter(body)
    relay, app = start(is_following=False)
    for name in names[kind]:
        answered = await ask(app, f"/{kind}/{name}")
        assert (answered.status, json.loads(answered.body)["code"]) == (503, "bad_upstream")
    assert not [path for path in relay._cache.root.rglob("*") if path.is_file()]
    upstream.alter = lambda path, body: body
    assert [(await ask(app, f"/{kind}/{name}")).status for name in names[kind]] == [200, 200]


@pytest.mark.parametrize("data", [b"", b"{", b"[" * 10_000, b"\xff", b"CVT1", b'{"files":[]}', b'{"version":1}'])
async def test_manifest_that_is_none__is_neither_kept_nor_served(upstream, start, data):
    upstream.alter = lambda path, body: data
    relay, app = start(is_following=False)
    for address in (compute_blake3(data), "0x" + "ab" * 32):
        answered = await ask(app, f"/manifests/{address}")
        assert (answered.status, json.loads(answered.body)["code"]) == (503, "bad_upstream")
    assert not list((relay._cache.root / "manifests").iterdir())


async def test_manifest_damaged_on_disk__is_fetched_again(publisher, upstream, start):
    made = publisher.add_dataset(1)
    relay, app = start(is_following=False)
    path = f"/manifests/{made.digest}"
    assert (await ask(app, path)).status == 200
    flip(relay._cache.root / "manifests" / made.digest)
    os.utime(relay._cache.root / "manifests" / made.digest, ns=(0, 0))
    assert (await ask(app, path)).body == made.to_bytes()
    assert upstream.count("manifests") == 2


async def test_manifest_that_cannot_be_read__is_answered_with_503(publisher, start):
    made = publisher.add_dataset(1)
    relay, app = start(is_following=False)
    (relay._cache.root / "manifests" / made.digest).mkdir()
    answered = await ask(app, f"/manifests/{made.digest}")
    assert (answered.status, json.loads(answered.body)["code"]) == (503, "unavailable")


@pytest.mark.parametrize("kind", ["pieces", "manifests", "records"])
async def test_one_flipped_bit_from_the_upstream__is_never_served(publisher, upstream, start, kind):
    made = publisher.add_anchor(1)
    names = {
        "pieces": made.anchor.objects[0].pieces[0].digest,
        "manifests": made.anchor.address,
        "records": made.record.compute_hash(),
    }

    def flip_one(path, body):
        return body[:40] + bytes([body[40] ^ 1]) + body[41:]

    upstream.alter = flip_one
    relay, app = start(is_following=False)
    answered = await ask(app, f"/{kind}/{names[kind]}")
    assert (answered.status, json.loads(answered.body)["code"]) == (503, "bad_upstream")
    assert upstream.count(kind) == 2
    assert relay.describe()["upstreams"][0]["failures"] == 2
    upstream.alter = lambda path, body: body
    assert (await ask(app, f"/{kind}/{names[kind]}")).status == 200
    assert relay.describe()["upstreams"][0]["failures"] == 0


async def test_second_upstream__is_used_if_the_first_lies_or_lacks_it(publisher, upstream, start):
    made, liar = publisher.add_anchor(1), FakeUpstream(OriginStore(publisher.store.root), "http://liar")
    liar.alter = lambda path, body: b"wrong"
    empty = FakeUpstream(OriginStore(publisher.scratch / "empty"), "http://empty")
    _, app = start(empty, liar, upstream, is_following=False)
    assert await get_pieces(app, made.anchor) == [200, 200]
    assert liar.count("pieces") == 2  # Afterwards the liar has failures, so the others are asked first.


async def test_full_disk__is_served_from_memory_and_recovers(publisher, upstream, start, monkeypatch):
    made, write = publisher.add_anchor(1), piece_cache._write

    def fail(path, data):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(piece_cache, "_write", fail)
    _, app = start(is_following=False)
    assert (await ask(app, "/heads/1.json")).status == 200
    assert await get_pieces(app, made.anchor) == [200, 200]
    assert (await ask(app, f"/manifests/{made.anchor.address}")).status == 200
    status = json.loads((await ask(app, "/status")).body)
    assert (status["is_full"], status["pieces"]) == (True, 0)
    monkeypatch.setattr(piece_cache, "_write", write)
    assert await get_pieces(app, made.anchor) == [200, 200]
    status = json.loads((await ask(app, "/status")).body)
    assert (status["is_full"], status["pieces"]) == (False, 2)


async def test_full_disk__fetching_ahead_goes_on_with_the_next_head(publisher, upstream, start, monkeypatch):
    publisher.add_anchor(1)
    write = piece_cache._write

    def fail_for_pieces(path, data):
        if "pieces" in path.parts:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(path, data)

    monkeypatch.setattr(piece_cache, "_write", fail_for_pieces)
    relay, _ = start(pools=(1,))
    await wait_for(lambda: relay.describe()["is_full"])
    assert not is_mirrored(relay, 1)
    monkeypatch.setattr(piece_cache, "_write", write)
    publisher.add_delta(2, 1)
    await wait_for(lambda: is_mirrored(relay, 2))


async def test_full_disk__spare_pieces_make_room(publisher, upstream, start, monkeypatch, tmp_path):
    made, write = publisher.add_anchor(1), piece_cache._write
    relay, app = start(is_following=False)
    spare = compute_blake3(b"spare")
    relay._cache.add_piece(spare, b"spare")

    def fail_while_spare(path, data):
        if relay._cache.has_piece(spare):
            raise OSError(errno.ENOSPC, "No space left on device")
        write(path, data)

    monkeypatch.setattr(piece_cache, "_write", fail_while_spare)
    assert await get_pieces(app, made.anchor) == [200, 200]
    assert not relay._cache.has_piece(spare)
    assert relay._cache.describe()["pieces"] == 2


async def test_old_policies__are_pruned_when_newer_ones_are_here__and_come_back_on_request(publisher, start):
    first = publisher.add_anchor(1)
    relay, app = start(pools=(1,), keep=2, spare_bytes=0)
    for step in (2, 3, 4):
        publisher.add_anchor(step)
        await wait_for(lambda step=step: is_mirrored(relay, step))
    await wait_for(lambda: relay._cache.describe()["pieces"] == 3)
    assert relay._cache.find_manifest(first.anchor.address) is None
    assert (await ask(app, f"/manifests/{first.anchor.address}")).status == 200
    assert await get_pieces(app, first.anchor) == [200, 200]


async def test_limit__what_does_not_fit__is_served_from_memory(publisher, upstream, start):
    made = publisher.add_anchor(1, sizes=(5 << 20, 1000))
    _, app = start(is_following=False, max_bytes=3000)
    with capture_logs() as logs:
        for _ in range(2):
            assert await get_pieces(app, made.anchor) == [200] * 4
    (warning,) = (each for each in logs if each["event"] == "cannot store an item, so it is served from memory")
    assert "limit of 3000 bytes" in warning["reason"]
    assert "--max-gigabytes" in warning["fix"]
    status = json.loads((await ask(app, "/status")).body)
    assert (status["pieces"], status["bytes_on_disk"], status["max_bytes"]) == (2, 1022, 3000)
    large = made.anchor.objects[0].pieces[0].digest
    assert (await ask(app, f"/pieces/{large}")).status == 200
    assert json.loads((await ask(app, "/status")).body)["is_full"]
    assert upstream.count("pieces") == 2 + 3 * 2 - 1


async def test_limit__newest_policy_replaces_the_oldest(publisher, start):
    """The limit fits two anchors of 1,300 bytes, but the relay is set to keep five policies."""
    limit = 2 * 1300 + 22
    relay, _ = start(pools=(1,), keep=5, max_bytes=limit)
    for step in range(1, 6):
        pieces = publisher.add_anchor(step).anchor.pieces
        await wait_for(lambda pieces=pieces: all(relay._cache.has_piece(piece.digest) for piece in pieces))
        assert relay._cache.describe()["bytes_on_disk"] <= limit
    await wait_for(lambda: relay.describe()["is_full"])
    assert not is_mirrored(relay, 5)


async def test_limit__clients_fetch_old_policies__the_newest_one_is_kept_nevertheless(publisher, start):
    old = [publisher.add_anchor(step).anchor for step in range(1, 5)]
    relay, app = start(pools=(1,), keep=1, max_bytes=2 * 1300 + 22)
    await wait_for(lambda: is_mirrored(relay, 4))
    for manifest in old[:3] * 2:
        assert await get_pieces(app, manifest) == [200, 200]
        assert relay._cache.describe()["bytes_on_disk"] <= 2 * 1300 + 22
    publisher.add_anchor(5)
    await wait_for(lambda: is_mirrored(relay, 5))


@pytest.fixture
def liar(publisher):
    """Return an upstream whose heads `set_false_head` replaces."""
    return FakeUpstream(OriginStore(publisher.store.root), "http://liar")


def set_false_head(liar, head):
    liar.alter = lambda path, body: head.to_bytes() if path.startswith("/heads") else body


def invent(steps, *, ways=1):
    """Return policies that do not exist."""
    hashes = iter(f"0x{number:064x}" for number in range(10**6))
    return tuple(
        ServedPolicy(
            step=step,
            record=next(hashes),
            ways=tuple(Way(manifest=next(hashes), size=1) for _ in range(ways)),
        )
        for step in steps
    )


def list_mirrored_steps(relay, number):
    """Return the newest step of pool 1 at an upstream, if it is mirrored."""
    pool = relay.describe()["upstreams"][number]["pools"].get("1", {})
    return pool.get("newest_step") if pool.get("is_mirrored") else None


@pytest.mark.parametrize("is_liar_first", [True, False])
@pytest.mark.parametrize("kind", ["invented", "stale", "empty", "damaged"])
async def test_one_upstream_lies__what_the_other_says_is_served_and_fetched_ahead(
    publisher, upstream, start, liar, kind, is_liar_first
):
    publisher.add_anchor(1)
    heads = {
        "invented": Head(pool=1, policies=invent(range(10**6, 10**6 - 100, -1), ways=8)),
        "stale": publisher.build_head(),
        "empty": Head(pool=1, policies=()),
        "damaged": Head(pool=2, policies=()),
    }
    set_false_head(liar, heads[kind])
    order = (liar, upstream) if is_liar_first else (upstream, liar)
    relay, app = start(*order, pools=(1,), keep=2, spare_bytes=0)
    honest = order.index(upstream)
    for step in (2, 3, 4):
        made = publisher.add_anchor(step)
        await wait_for(lambda step=step: list_mirrored_steps(relay, honest) == step)
        before = upstream.count("pieces") + liar.count("pieces")
        assert await get_pieces(app, made.anchor) == [200, 200]
        assert upstream.count("pieces") + liar.count("pieces") == before
        served = Head.from_bytes((await ask(app, "/heads/1.json")).body)
        assert set(publisher.build_head().policies) <= set(served.policies)
    pieces = 4 if kind == "stale" else 3
    await wait_for(lambda: relay._cache.describe()["pieces"] == pieces), "old policies are pruned nevertheless"


async def test_false_policies_of_one_step__do_not_displace_the_true_one(publisher, upstream, start, liar):
    publisher.add_anchor(7)
    set_false_head(liar, Head(pool=1, policies=invent([7] * 50)))
    relay, _ = start(liar, upstream, pools=(1,))
    await wait_for(lambda: list_mirrored_steps(relay, 1) == 7)


async def test_upstream_is_away_for_a_moment__what_it_said_stays(publisher, upstream, start, liar):
    def fail(path, body):
        raise TransientError("upstream_unreachable", "x")

    made = publisher.add_anchor(1)
    set_false_head(liar, Head(pool=1, policies=()))
    relay, app = start(liar, upstream, pools=(1,), spare_bytes=0)
    await wait_for(lambda: list_mirrored_steps(relay, 1) == 1)
    upstream.alter = fail
    set_false_head(liar, Head(pool=1, policies=invent([9])))
    await wait_for(lambda: relay.describe()["pools"]["1"]["newest_step"] == 9)
    served = Head.from_bytes((await ask(app, "/heads/1.json")).body)
    assert [policy.step for policy in served.policies] == [9, 1]
    assert await get_pieces(app, made.anchor) == [200, 200]


async def test_upstream_is_late__head_of_the_other_is_served_and_that_of_the_late_one_later(
    publisher, upstream, start, liar, monkeypatch
):
    monkeypatch.setattr(relay_heads, "_TOGETHER_SECONDS", 0.01)
    released = threading.Event()

    def delay(path, body):
        assert released.wait(2 * HANG_S)
        return body

    publisher.add_anchor(1)
    upstream.alter = delay
    set_false_head(liar, Head(pool=1, policies=invent([9])))
    _, app = start(upstream, liar, is_following=False)
    async with asyncio.timeout(HANG_S):
        for _ in range(3):
            served = Head.from_bytes((await ask(app, "/heads/1.json")).body)
            assert [policy.step for policy in served.policies] == [9]
            monkeypatch.setattr(relay_heads, "_TOGETHER_SECONDS", 2 * HANG_S)  # The late upstream is awaited once.
    assert upstream.count("heads") == 1
    released.set()
    steps = []
    async with asyncio.timeout(HANG_S):
        while steps != [9, 1]:
            served = Head.from_bytes((await ask(app, "/heads/1.json")).body)
            steps = [policy.step for policy in served.policies]


async def test_limit__large_policies_of_a_liar__leave_room_for_true_ones(publisher, upstream, start, tmp_path):
    other = Publisher(OriginStore(tmp_path / "other"), tmp_path / "scratch")
    (tmp_path / "scratch").mkdir()
    other.add_anchor(100, sizes=(50_000,))
    liar = FakeUpstream(OriginStore(other.store.root), "http://liar")
    limit = 60_000
    relay, app = start(liar, upstream, pools=(1,), max_bytes=limit)
    for step in range(1, 8):
        publisher.add_anchor(step, sizes=(5000,))
        await wait_for(lambda step=step: list_mirrored_steps(relay, 1) == step)
        other.add_anchor(100 + step, sizes=(50_000,))
        assert relay._cache.describe()["bytes_on_disk"] <= limit
    assert await get_pieces(app, publisher.policies[7].anchor) == [200, 200]


async def test_metrics__upstreams_pools_and_disk(publisher, upstream, start, liar):
    made = publisher.add_anchor(3)
    liar.alter = lambda path, body: b"{" if path.startswith("/heads") else body
    relay, app = start(liar, upstream, pools=(1,), max_bytes=5000)
    await wait_for(lambda: list_mirrored_steps(relay, 1) == 3)
    values = read_metrics((await ask(app, "/metrics")).body)
    assert (
        values["covey_upstream_received_bytes_total", "1"] + values["covey_upstream_received_bytes_total", "2"]
        == liar.received_bytes + upstream.received_bytes
    )
    assert values["covey_upstream_failures_total", "1"] >= 1
    assert values["covey_upstream_failures_total", "2"] == 0
    assert 0 <= values["covey_head_age_seconds", "1"] < HANG_S
    assert values["covey_newest_step", "1"] == 3
    assert values["covey_disk_bytes", None] == made.anchor.size == 1322
    assert values["covey_disk_limit_bytes", None] == 5000
    assert values["covey_disk_is_full", None] == 0


async def test_metrics__number_of_pools__is_bounded(publisher, start):
    publisher.add_anchor(1)
    _, app = start(is_following=False, pools=tuple(range(1, 201)))
    for pool in range(1, 201):
        publisher.store.write_head(pool, publisher.build_head().model_copy(update={"pool": pool}))
        assert (await ask(app, f"/heads/{pool}.json")).status == 200
    values = read_metrics((await ask(app, "/metrics")).body)
    assert sum(name == "covey_newest_step" for name, _ in values) == 64
    assert ("covey_disk_limit_bytes", None) not in values


async def test_head__of_more_pools_than_are_followed__is_not_kept(publisher, start, monkeypatch):
    """A client and a lying upstream could otherwise fill the disk with the heads of invented pools."""
    monkeypatch.setattr(relay_heads, "_MAX_POOLS", 3)
    relay, app = start(is_following=False)
    for pool in range(10, 20):
        publisher.store.write_head(pool, Head(pool=pool, policies=()))
        assert (await ask(app, f"/heads/{pool}.json")).status == 200
    assert len(relay._heads.pools) == 3
    assert len(relay._cache.list_pools()) == 3


def preview(publisher, data, *, offset=100):
    """Start an export whose weights file has these bytes at `offset`, and return their hashes."""
    weights = publisher.scratch / "export"
    weights.write_bytes(bytes(offset) + b"".join(data))
    writer = PreviewFolder(publisher.store.root).open(1, weights)
    for each in data:
        writer.add(Piece(len(each), compute_blake3(each)), offset)
        offset += len(each)
    writer.close()
    return [compute_blake3(each) for each in data]


async def test_preview__pieces_are_fetched_ahead__before_a_manifest_names_them(publisher, upstream, start):
    relay, app = start(pools=(1,))
    digests = preview(publisher, [b"one", b"two"])
    await wait_for(lambda: relay.describe()["pieces"] == 2)
    assert (await ask(app, "/previews/1")).body == PreviewFolder(publisher.store.root).find(1)
    asked = upstream.count("pieces")
    assert [(await ask(app, f"/pieces/{digest}")).status for digest in digests] == [200, 200]
    assert upstream.count("pieces") == asked
    PreviewFolder(publisher.store.root).remove(1)
    polls = upstream.requests["/previews/1"]
    await wait_for(lambda: upstream.requests["/previews/1"] >= polls + 2)
    assert (await ask(app, "/previews/1")).status == 404


async def test_preview__pieces_that_are_made_up__cost_a_budget_only(publisher, upstream, start):
    ticks = itertools.count()
    relay, _ = start(pools=(1,), spare_bytes=10, clock=lambda: 1e-9 * next(ticks))
    for number in range(5):
        (digest,) = preview(publisher, [bytes([number]) * 4])
        polls = upstream.requests["/previews/1"]
        await wait_for(lambda polls=polls: upstream.requests["/previews/1"] >= polls + 3)
        assert relay._cache.has_piece(digest) == (number < 2)


async def test_preview__no_upstream_has_the_piece__is_not_asked_for_again(publisher, upstream, start):
    start(pools=(1,))
    upstream.alter = lambda path, body: None if path.startswith("/pieces") else body
    preview(publisher, [b"one"])
    await wait_for(lambda: upstream.count("pieces") > 0)
    polls, asked = upstream.requests["/previews/1"], upstream.count("pieces")
    await wait_for(lambda: upstream.requests["/previews/1"] >= polls + 3)
    assert upstream.count("pieces") == asked


@pytest.mark.parametrize("data", [b"x", bytes(44)])
async def test_preview__invalid__upstream_is_blamed_and_nothing_is_served(publisher, upstream, start, data):
    _, app = start(is_following=False)
    upstream.alter = lambda path, body: data if path.startswith("/previews") else body
    assert (await ask(app, "/previews/1")).status == 503
    assert upstream.failures > 0


async def test_preview__many_unknown_pools__upstream_is_protected(upstream, start):
    _, app = start(is_following=False, clock=lambda: 0.0)
    statuses = [(await ask(app, f"/previews/{pool}")).status for pool in range(1, 101)]
    assert (statuses.count(404), statuses.count(503)) == (50, 50)
    assert upstream.count("previews") == 50
