import asyncio
import errno
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from starlette.responses import Response

from covey.errors import ProtocolError
from covey.protocol import canonical
from covey.runtime.http import find_free_ports
from covey.shardcast.server import Mirror, build_server
from covey.shardcast.store import ShardStore
from tests.fakes.disk import limit_files
from tests.unit.covey.shardcast.conftest import build_liar, serving

pytestmark = pytest.mark.integration

FILES = {"model.safetensors": random.Random(1).randbytes(2500), "config.json": b"{}"}
ABSENT = "0x" + "00" * 32


def shards_of(manifest):
    return [shard for file in manifest.files for shard in file.shards]


async def test_origin__manifest_shard_and_health__as_stored(harness):
    manifest = harness.publish(3, FILES)
    url, _ = await harness.add_origin()
    assert (await harness.get_manifest(url, manifest)).content == manifest.to_bytes()
    shard = shards_of(manifest)[0]
    assert (await harness.get(f"{url}/shards/{shard.sha256}")).content == b"{}"
    assert (await harness.get(f"{url}/health")).json() == {"status": "ok"}


EVIL_PATHS = [
    "/policies/1/3",
    f"/policies/1/4/{ABSENT}",
    f"/policies/2/3/{ABSENT}",
    f"/policies/1/-3/{ABSENT}",
    f"/policies/1/3/{ABSENT}.json",
    "/policies/1/3/..%2f..%2f..%2f..%2fsecret",
    f"/policies/1/..%2f..%2f..%2fsecret/{ABSENT}",
    f"/policies/..%2f..%2fsecret/3/{ABSENT}",
    "/policies/1/" + "9" * 19 + f"/{ABSENT}",
    "/policies/1/" + "9" * 300 + f"/{ABSENT}",
    "/policies/" + "9" * 5000 + f"/1/{ABSENT}",
    f"/policies/1/%D9%A3/{ABSENT}",
    f"/policies/1/3%0a/{ABSENT}",
    f"/policies/1/3/{ABSENT}%0a",
    "/policies/1/3/0x" + "AB" * 32,
    f"/shards/{ABSENT}",
    "/shards/..%2f..%2fsecret",
    "/shards/%2e%2e%2f%2e%2e%2fsecret",
    "/shards/..%252fsecret",
    "/shards/%ef%bc%8e%ef%bc%8e%ef%bc%8fsecret",
    "/shards/0x" + "AB" * 32,
    "/shards/0x" + "0" * 5000,
    "/shards/secret%00",
    "/../secret",
    "//etc/passwd",
    "/secret",
]


@pytest.mark.parametrize("is_relay", [False, True])
async def test_server__path_that_names_nothing__404_and_no_secret(harness, is_relay):
    """docs/threats.md, rows 22 and 27; the paths go over the wire as they stand above."""
    harness.publish(3, FILES)
    (harness.tmp_path / "secret").write_bytes(b"SECRET")
    (harness.tmp_path / "origin" / "secret").write_bytes(b"SECRET")
    url, _ = await harness.add_origin()
    if is_relay:
        url, _, _ = await harness.add_relay(url)
    host, port = url.removeprefix("http://").split(":")
    for path in EVIL_PATHS:
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(f"GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode())
        answer = await reader.read()
        writer.close()
        await writer.wait_closed()
        assert b"SECRET" not in answer, path
        assert answer.split(b" ", 2)[1] == b"404", (path, answer[:200])


async def test_relay__shard__only_for_a_policy_that_names_it(harness):
    manifest = harness.publish(3, FILES)
    origin, recorder = await harness.add_origin()
    relay, _, _ = await harness.add_relay(origin)
    shard = shards_of(manifest)[1]
    refused = await harness.get(f"{relay}/shards/{shard.sha256}")
    assert (refused.status_code, refused.json()["code"]) == (404, "not_found")
    assert recorder.paths == []
    assert (await harness.get_shard(relay, shard, manifest)).status_code == 200
    assert recorder.paths == [manifest.compute_name().path, f"/shards/{shard.sha256}"]
    assert (await harness.get(f"{relay}/shards/{shard.sha256}")).status_code == 200
    query = f"pool=1&step=3&manifest={manifest.compute_hash()}"
    assert (await harness.get(f"{relay}/shards/{ABSENT}?{query}")).status_code == 404
    short = "pool=1&step=3"
    for query in (short, f"{short}&manifest=x", f"pool=-1&step=3&manifest={ABSENT}", f"pool=1&step={'9' * 5000}"):
        assert (await harness.get(f"{relay}/shards/{ABSENT}?{query}")).status_code == 404
    assert len(recorder.paths) == 2


async def test_relay__many_ask_at_once__upstream_is_asked_once(harness):
    manifest = harness.publish(3, FILES)
    origin, recorder = await harness.add_origin()
    relay, _, _ = await harness.add_relay(origin)
    shard = shards_of(manifest)[1]
    answers = await asyncio.gather(*(harness.get_shard(relay, shard, manifest) for _ in range(10)))
    assert len({answer.content for answer in answers}) == 1
    assert recorder.count("/shards/") == recorder.count("/policies/") == 1


async def test_relay__asked_for_what_is_not__remembers_nothing(harness):
    """Else anybody could fill its memory."""
    mirror = Mirror(ShardStore(harness.tmp_path / "m"), "http://127.0.0.1:9")
    for i in range(50):
        with pytest.raises(ProtocolError, match="not_found"):
            await mirror.require_shard(f"0x{i:064x}")
    assert len(mirror._locks) == 0
    await mirror.close()


async def test_relay__corrupted_upstream__neither_kept_nor_served(harness):
    manifest = harness.publish(3, FILES)
    shard = shards_of(manifest)[1]
    data = harness.store.get_shard_path(shard.sha256).read_bytes()
    bad = [b""]
    origin, recorder = await harness.add_origin(lambda path: Response(bad[0]) if shard.sha256 in path else None)
    relay, _, store = await harness.add_relay(origin)
    for bad[0] in (b"", data[:-1], data + b"x", bytes([data[0] ^ 1]) + data[1:]):
        refused = await harness.get_shard(relay, shard, manifest)
        assert (refused.status_code, refused.json()["code"]) == (503, "unavailable")
        assert list((store.root / "shards").iterdir()) == []
    recorder.alter = None
    assert (await harness.get_shard(relay, shard, manifest)).content == data


async def test_relay__junk_manifest__refused_and_not_kept(harness):
    answer = [b""]
    upstream = await harness.serve(build_liar(lambda path: answer[0]))
    relay, _, store = await harness.add_relay(upstream)
    for answer[0] in (b"", b"{", b"[" * 10_000, b"\xff", b'{"version":1}'):
        for name in (ABSENT, canonical.sha256(answer[0])):
            refused = await harness.get(f"{relay}/policies/1/3/{name}")
            assert (refused.status_code, refused.json()["code"]) == (502, "bad_manifest")
    assert store.list_steps(1) == []


async def test_relay__another_policys_manifest__refused(harness):
    other = harness.publish(4, FILES)
    upstream = await harness.serve(build_liar(lambda path: other.to_bytes()))
    relay, _, store = await harness.add_relay(upstream)
    refused = await harness.get(f"{relay}/policies/1/3/{other.compute_hash()}")
    assert (refused.status_code, refused.json()["code"]) == (502, "bad_manifest")
    assert store.list_steps(1) == store.list_steps(4) == []


async def test_relay__huge_manifest__cut_off(harness):
    upstream = await harness.serve(build_liar(lambda path: bytes((4 << 20) + 1)))
    relay, _, _ = await harness.add_relay(upstream)
    refused = await harness.get(f"{relay}/policies/1/3/{ABSENT}")
    assert (refused.status_code, refused.json()["code"]) == (502, "oversized")


async def test_relay__upstream_gone__503_and_what_it_has_is_still_served(harness):
    manifest = harness.publish(3, FILES)
    async with serving(build_server(harness.store)) as origin:
        relay, _, _ = await harness.add_relay(origin)
        kept, missing = shards_of(manifest)[:2]
        await harness.get_shard(relay, kept, manifest)
    assert (await harness.get_manifest(relay, manifest)).status_code == 200
    assert (await harness.get(f"{relay}/shards/{kept.sha256}")).status_code == 200
    assert (await harness.get_shard(relay, missing, manifest)).status_code == 503
    away = await harness.get(f"{relay}/policies/1/4/{ABSENT}")
    assert away.status_code == 503
    assert origin not in away.text, "where a relay has its copies from is for its own log"


async def test_relay__many_policies__keeps_five(harness):
    origin, _ = await harness.add_origin()
    relay, _, store = await harness.add_relay(origin)
    for step in range(8):
        manifest = harness.publish(step, {"weights": b"of %d" % step})
        await harness.get_shard(relay, manifest.files[0].shards[0], manifest)
    assert store.list_steps(1) == [3, 4, 5, 6, 7]
    assert len(list((store.root / "shards").iterdir())) == 5


def test_command__origin__serves_until_sigterm_and_says_when_the_port_is_taken(tmp_path):
    (port,) = find_free_ports(1)
    command = [sys.executable, "-m", "covey", "origin", "run", "--root", str(tmp_path), "--port", str(port)]
    root = Path(__file__).resolve().parents[4]
    with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            transport = httpx.HTTPTransport(retries=8)
            with httpx.Client(transport=transport, trust_env=False) as client:
                assert client.get(f"http://127.0.0.1:{port}/health").status_code == 200
            second = subprocess.run(command, cwd=root, capture_output=True, timeout=20, check=False)
            assert second.returncode == 1
            last = second.stderr.decode().splitlines()[-1]
            assert last.startswith(f"covey: address_in_use: cannot listen on 127.0.0.1:{port}")
        finally:
            os.kill(process.pid, signal.SIGTERM)
            process.communicate(timeout=10)
        assert process.returncode == 0


@pytest.mark.parametrize("keep", [1, 3])
async def test_relay__more_than_it_keeps__the_oldest_goes_and_comes_back_when_asked_for(harness, keep):
    origin, recorder = await harness.add_origin()
    relay, _, store = await harness.add_relay(origin, keep=keep)
    manifests = [harness.publish(step, {"w": b"weights of %d" % step}) for step in range(5)]
    for manifest in manifests:
        assert (await harness.get_manifest(relay, manifest)).status_code == 200
    assert store.list_steps(1) == list(range(5))[-keep:]
    asked = len(recorder.paths)
    assert (await harness.get_manifest(relay, manifests[0])).status_code == 200
    assert len(recorder.paths) == asked + 1
    assert 0 in store.list_steps(1)


async def test_relay__full_disk__answers_to_come_later(harness, monkeypatch):
    manifest = harness.publish(3, {"model.safetensors": bytes(3_000_000)}, shard_bytes=2_000_000)
    origin, _ = await harness.add_origin()
    relay, _, store = await harness.add_relay(origin)

    def refuse(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(store, "add_manifest", refuse)
    refused = await harness.get_manifest(relay, manifest)
    assert (refused.status_code, refused.json()["code"]) == (503, "unavailable")
    monkeypatch.undo()
    shard = shards_of(manifest)[0]
    with limit_files(1_000_000):
        refused = await harness.get_shard(relay, shard, manifest)
    assert (refused.status_code, refused.json()["code"]) == (503, "unavailable")
    assert list((store.root / "shards").iterdir()) == []
    assert (await harness.get_shard(relay, shard, manifest)).content == bytes(2_000_000)
