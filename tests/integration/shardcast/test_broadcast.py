"""Attacks and accidents on real servers: origins, relays of relays, and peers that are late."""

import asyncio

import pytest
from structlog.testing import capture_logs

from covey.protocol.head import Head, ServedPolicy, Way, build_head
from covey.protocol.pieces import Piece, compute_blake3
from covey.runtime.connections import ConnectionLimits
from covey.runtime.http import find_free_ports, serve_http
from covey.shardcast.export_preview import PreviewFolder
from covey.shardcast.origin import OriginSource
from covey.shardcast.piece_server import PieceServer
from tests.fakes.raw_server import HANG_S, respond
from tests.fakes.raw_server import RawServer as ThreadedRawServer
from tests.fakes.served_policies import flip

pytestmark = pytest.mark.integration
SIZES = (9 << 20, 70_000, 300)


async def wait_for_step(broadcast, url, step):
    async with asyncio.timeout(HANG_S):
        while True:
            pool = (await broadcast.http.get(f"{url}/status")).json()["pools"].get("1", {})
            if pool.get("newest_step") == step and pool["is_mirrored"]:
                return
            await asyncio.sleep(0.01)


async def test_chain_of_relays__serves_every_piece(broadcast):
    made = broadcast.publisher.add_anchor(1, sizes=SIZES)
    origin, _ = await broadcast.add_origin()
    first, _ = await broadcast.add_relay(origin, pools=(1,))
    second, _ = await broadcast.add_relay(first, pools=(1,))
    assert await broadcast.get_pieces(second, made.anchor) == [200] * 5
    await wait_for_step(broadcast, second, 1)
    broadcast.publisher.add_delta(2, 1)
    await wait_for_step(broadcast, second, 2)


async def test_chain_of_relays__pieces_arrive_while_the_policy_is_exported(broadcast, tmp_path):
    origin, _ = await broadcast.add_origin()
    first, _ = await broadcast.add_relay(origin, pools=(1,))
    second, relay = await broadcast.add_relay(first, pools=(1,))
    weights, data = tmp_path / "weights", [bytes([number]) * (1 << 20) for number in range(1, 4)]
    weights.touch()
    writer = PreviewFolder(broadcast.publisher.store.root).open(1, weights)
    for number, each in enumerate(data):
        with weights.open("ab") as file:
            file.write(each)
        writer.add(Piece(len(each), compute_blake3(each)), number << 20)
        async with asyncio.timeout(HANG_S):
            while relay.describe()["pieces"] <= number:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    writer.close()
    for each in data:
        answered = await broadcast.http.get(f"{second}/pieces/{compute_blake3(each)}")
        assert (answered.status_code, answered.content) == (200, each)


ABSENT = "0x" + "00" * 32
EVIL_PATHS = [
    "/pieces/../heads/1.json",
    "/heads/%2e%2e/records/x",
    "/../../etc/passwd",
    "/manifests/..%2f..",
    f"/manifests/{ABSENT}",
    f"/manifests/{ABSENT}.json",
    f"/manifests/{ABSENT}%0a",
    "/manifests/0x" + "AB" * 32,
    f"/pieces/{ABSENT}",
    "/pieces/..%2f..%2fsecret",
    "/pieces/%2e%2e%2f%2e%2e%2fsecret",
    "/pieces/..%252fsecret",
    "/pieces/%ef%bc%8e%ef%bc%8e%ef%bc%8fsecret",
    "/pieces/0x" + "0" * 5000,
    "/pieces/secret%00",
    "/heads/..%2fsecret",
    "/heads/-3.json",
    "/heads/1%0a.json",
    "/heads/%D9%A3.json",
    "/heads/" + "9" * 5000 + ".json",
    "/records/..%2f..%2fsecret",
    "/../secret",
    "//etc/passwd",
    "/secret",
]


async def test_path_that_names_nothing__sent_as_it_is__404_and_no_secret(broadcast, tmp_path):
    """docs/threats.md, rows 22 and 27."""
    broadcast.publisher.add_anchor(1)
    for folder in (tmp_path, tmp_path / "origin", tmp_path / "origin" / "objects"):
        (folder / "secret").write_bytes(b"SECRET")
    origin, _ = await broadcast.add_origin()
    relay, _ = await broadcast.add_relay(origin)
    for url in (origin, relay):
        for path in EVIL_PATHS:
            host, port = url.removeprefix("http://").split(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(f"GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode())
            answer = await reader.read()
            writer.close()
            assert answer.startswith(b"HTTP/1.1 404"), (path, answer[:200])
            assert b"SECRET" not in answer, path


async def test_origin_object_damaged_under_a_running_relay__next_offer_repairs_all(broadcast):
    publisher = broadcast.publisher
    made = publisher.add_anchor(1, sizes=SIZES)
    export, copy = made.folder / "model.safetensors", made.folder / "copy"
    copy.write_bytes(export.read_bytes())
    flip(export)
    origin, _ = await broadcast.add_origin()
    relay, _ = await broadcast.add_relay(origin)
    assert sorted(await broadcast.get_pieces(relay, made.anchor)) == [200, 200, 200, 200, 503]
    publisher.store.add_manifest(made.anchor, {**made.files, "weights": copy})
    assert await broadcast.get_pieces(relay, made.anchor) == [200] * 5


class RawServer:
    """Sends `answer` to every request, and then what `drip` yields. Does not end connections."""

    def __init__(self, answer, drip=b""):
        self.answer, self.drip, self.requests = answer, drip, 0

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def __aexit__(self, *_):
        self._server.close()

    async def _serve(self, reader, writer):
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                self.requests += 1
                writer.write(self.answer)
                while self.drip:
                    writer.write(self.drip)
                    await writer.drain()
                    await asyncio.sleep(0.1)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()


PIECE = "/pieces/0x" + "ab" * 32
LONG = b"HTTP/1.1 200 OK\r\ncontent-length: 4194304\r\n\r\n"


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"", "timed out"),
        (LONG + b"x" * 1000, "timed out"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 4194305\r\n\r\n", "at most 4194304 are allowed"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", "timed out"),
        (b"HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n", "status 302"),
        (b"nonsense\r\n\r\n", "nonsense"),
        (b"HTTP/1.1 500 No\r\ncontent-length: 0\r\n\r\n", "status 500"),
    ],
)
async def test_upstream_that_stalls_or_lies__is_given_up(broadcast, answer, reason):
    server = RawServer(answer)
    async with server as url:
        relay, _ = await broadcast.add_relay(url, stalls={url: 0.2} if reason == "timed out" else None)
        with capture_logs() as logs:
            answered = await broadcast.http.get(relay + PIECE)
        assert answered.status_code == 503
        assert url not in answered.text, "where the upstream is concerns nobody"
        assert any(reason in str(each.get("reason")) for each in logs)


async def test_upstream_that_drips__is_given_up_at_its_deadline__and_another_is_used(broadcast, monkeypatch):
    made = broadcast.publisher.add_anchor(1)
    origin, _ = await broadcast.add_origin()
    monkeypatch.setattr("covey.shardcast.upstream._PATIENCE", 0.0)
    server = RawServer(LONG, drip=b"x")
    async with server as url:
        relay, inner = await broadcast.add_relay(url, origin)
        inner._fetcher.upstreams[0]._base_s = 1.0
        assert await broadcast.get_pieces(relay, made.anchor) == [200, 200]
        assert server.requests >= 1


async def test_upstream_closes_idle_connections__requests_go_on(broadcast):
    made = broadcast.publisher.add_anchor(1)
    app, (port,) = PieceServer(OriginSource(broadcast.publisher.store)), find_free_ports(1)
    stop, bound = asyncio.Event(), asyncio.Event()
    limits = ConnectionLimits(idle_s=0)
    serve = serve_http(app, host="127.0.0.1", port=port, stop=stop, on_bound=bound.set, limits=limits)
    task = asyncio.create_task(serve)
    async with asyncio.timeout(HANG_S):
        await bound.wait()
    relay, inner = await broadcast.add_relay(f"http://127.0.0.1:{port}", pools=(1,))
    await wait_for_step(broadcast, relay, 1)
    broadcast.publisher.add_anchor(2)
    await wait_for_step(broadcast, relay, 2)
    assert await broadcast.get_pieces(relay, made.anchor) == [200, 200]
    assert inner.describe()["upstreams"][0]["failures"] == 0
    stop.set()
    await task


@pytest.mark.parametrize("does_stall", [True, False], ids=["stall", "404"])
async def test_upstream_with_a_false_head__what_the_other_one_says_is_fetched_ahead_and_served(broadcast, does_stall):
    """The false policies are newer. Their manifests do not exist, or never arrive."""
    hashes = iter(f"0x{number:064x}" for number in range(1000))
    invented = [
        ServedPolicy(step=step, record=next(hashes), ways=tuple(Way(manifest=next(hashes), size=1) for _ in range(8)))
        for step in range(1000, 900, -1)
    ]
    false = build_head(1, invented)

    def lie(path, send):
        if path.startswith("/heads"):
            send(respond(false.to_bytes()))
        elif does_stall:
            liar.is_closed.wait(2 * HANG_S)
        else:
            send(respond(b"", 404))
        return True

    with ThreadedRawServer(lie) as liar:
        origin, _ = await broadcast.add_origin()
        broadcast.publisher.add_anchor(1)
        relay, _ = await broadcast.add_relay(liar.url, origin, pools=(1,), stalls={liar.url: 1})
        for step in (2, 3):
            made = broadcast.publisher.add_anchor(step)
            async with asyncio.timeout(HANG_S):
                while True:
                    status = (await broadcast.http.get(f"{relay}/status")).json()
                    pool = status["upstreams"][1]["pools"].get("1", {})
                    if pool.get("newest_step") == step and pool["is_mirrored"]:
                        break
                    await asyncio.sleep(0.01)
            assert await broadcast.get_pieces(relay, made.anchor) == [200, 200]
            served = Head.from_bytes((await broadcast.http.get(f"{relay}/heads/1.json")).content)
            assert {*broadcast.publisher.build_head().policies, *false.policies} == set(served.policies)


async def test_upstream_away_and_back__relay_serves_meanwhile_and_recovers(broadcast):
    made = broadcast.publisher.add_anchor(1)
    (port,) = find_free_ports(1)
    relay, _ = await broadcast.add_relay(f"http://127.0.0.1:{port}", pools=(1,))
    for step in (1, 2):
        if step > 1:
            broadcast.publisher.add_anchor(step)
        stop = asyncio.Event()
        app = PieceServer(OriginSource(broadcast.publisher.store))
        task = asyncio.create_task(serve_http(app, host="127.0.0.1", port=port, stop=stop))
        await wait_for_step(broadcast, relay, step)
        stop.set()
        await task
        assert (await broadcast.http.get(f"{relay}/heads/1.json")).status_code == 200
        assert await broadcast.get_pieces(relay, made.anchor) == [200, 200]
        assert (await broadcast.http.get(relay + PIECE)).status_code == 503
