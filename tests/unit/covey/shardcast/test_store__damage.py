"""Copies that go bad: bits that flip on a disk, manifests that change. Clients get the chain's policy all the same."""

import os
import random

import pytest
from starlette.responses import Response

from covey.errors import TransientError
from covey.shardcast.server import Mirror, build_server
from covey.shardcast.store import ShardStore, add_policy
from tests.unit.covey.shardcast.conftest import Recorder, serving

pytestmark = pytest.mark.integration

FILES = {"model.safetensors": random.Random(1).randbytes(2500), "config.json": b"{}"}


def flip(path):
    """Change one bit of a file and nothing that its folder shows: neither its size nor its time."""
    state, data = path.stat(), bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))


def list_shards(store):
    return sorted(path for path in (store.root / "shards").iterdir() if path.name.startswith("0x"))


def list_manifests(store):
    return [path for path in (store.root / "policies").rglob("*.json") if path.is_file()]


def read(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


async def restart(harness, store, upstream):
    """The URL of a relay that starts on a folder with copies."""
    relay, _, _ = await harness.add_relay(upstream, store=ShardStore(store.root))
    return relay


async def fill_relay(harness, manifest):
    """An origin and the folder of a relay that has copies of a policy and has ended."""
    origin, recorder = await harness.add_origin()
    store = ShardStore(harness.tmp_path / "copies")
    mirror = Mirror(store, origin)
    async with serving(build_server(store, mirror)) as relay:
        await harness.fetch(harness.connect(relay), manifest, "first")
    await mirror.close()
    recorder.paths.clear()
    return origin, recorder, store


async def test_relay__bit_flipped_on_its_disk__started_again_it_fetches_that_shard_again(harness):
    manifest = harness.publish(3, FILES)
    origin, recorder, store = await fill_relay(harness, manifest)
    flip(list_shards(store)[1])
    relay = await restart(harness, store, origin)
    client = harness.connect(relay)
    assert read(await harness.fetch(client, manifest)) == FILES
    assert client.scores[0].success == 1.0
    assert recorder.count("/shards/") == 1
    assert recorder.count("/policies/") == 0


async def test_relay__shard_replaced_while_it_runs__is_looked_at_again(harness):
    manifest = harness.publish(3, FILES)
    origin, _ = await harness.add_origin()
    relay, _, store = await harness.add_relay(origin)
    await harness.fetch(harness.connect(relay), manifest, "first")
    list_shards(store)[0].write_bytes(b"torn")
    client = harness.connect(relay)
    assert read(await harness.fetch(client, manifest)) == FILES
    assert client.scores[0].success == 1.0


async def test_relay__bit_flipped_in_its_manifest__is_fetched_again(harness):
    manifest = harness.publish(3, FILES)
    origin, _, store = await fill_relay(harness, manifest)
    flip(list_manifests(store)[0])
    relay = await restart(harness, store, origin)
    assert read(await harness.fetch(harness.connect(relay), manifest)) == FILES


async def test_relay__manifest_was_damaged_upstream__is_not_kept(harness):
    manifest, answers = harness.publish(3, FILES), []
    forged = manifest.model_copy(update={"files": manifest.files[:1]}).to_bytes()
    origin, _ = await harness.add_origin(lambda path: Response(forged) if "/policies/" in path and answers else None)
    relay, _, store = await harness.add_relay(origin)
    answers.append(forged)
    with pytest.raises(TransientError, match="no_relay"):
        await harness.fetch(harness.connect(relay), manifest)
    assert list_manifests(store) == []
    answers.clear()
    assert read(await harness.fetch(harness.connect(relay), manifest)) == FILES


async def test_relay__step_published_again_after_a_reorganisation__serves_both(harness):
    old = harness.publish(3, FILES)
    origin, _ = await harness.add_origin()
    relay, _, store = await harness.add_relay(origin)
    await harness.fetch(harness.connect(relay), old, "old")
    folder = harness.tmp_path / "other"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"learned again")
    new = add_policy(harness.store, folder, pool=1, step=3)
    assert read(await harness.fetch(harness.connect(relay), new, "new")) == {"model.safetensors": b"learned again"}
    assert read(await harness.fetch(harness.connect(relay), old, "old again")) == FILES
    assert store.list_steps(1) == [3]


async def test_origin__bit_flipped_on_its_disk__serves_it_to_nobody_until_it_is_offered_again(harness):
    manifest = harness.publish(3, FILES)
    flip(list_shards(harness.store)[0])
    shard = list_shards(harness.store)[0].name
    recorder = Recorder(build_server(ShardStore(harness.store.root)))
    origin = await harness.serve(recorder)
    refused = await harness.get(f"{origin}/shards/{shard}")
    assert (refused.status_code, refused.json()["code"]) == (503, "unavailable")
    add_policy(ShardStore(harness.store.root), harness.tmp_path / "policy-1-3", pool=1, step=3, shard_bytes=1000)
    assert (await harness.get(f"{origin}/shards/{shard}")).status_code == 200
    assert read(await harness.fetch(harness.connect(origin), manifest)) == FILES


def test_add_policy__bit_flipped_in_a_shard_that_was_seen_whole__writes_it_again(tmp_path):
    """A disk that changes a bit changes neither size nor time."""
    store, folder = ShardStore(tmp_path / "store"), tmp_path / "policy"
    folder.mkdir()
    for name, data in FILES.items():
        (folder / name).write_bytes(data)
    add_policy(store, folder, pool=1, step=3, shard_bytes=1000)
    before = [store.find_shard(path.name).read_bytes() for path in list_shards(store)]
    flip(list_shards(store)[0])
    add_policy(store, folder, pool=1, step=3, shard_bytes=1000)
    assert [path.read_bytes() for path in list_shards(store)] == before


async def test_origin__bit_flipped_in_a_manifest__pruning_keeps_all_shards(harness):
    """Which shards it named is not known any more, and relays that have it may still need them."""
    harness.publish(3, FILES)
    flip(list_manifests(harness.store)[0])
    shards = list_shards(harness.store)
    harness.publish(4, {"a": b"other"})
    ShardStore(harness.store.root).prune(1, harness.retention)
    assert set(shards) < set(list_shards(harness.store))


async def test_relay__many_policies__remembers_no_more_than_it_has(harness):
    origin, _ = await harness.add_origin()
    store = ShardStore(harness.tmp_path / "copies")
    mirror = Mirror(store, origin, keep=2)
    relay = await harness.serve(build_server(store, mirror))
    for step in range(6):
        await harness.fetch(harness.connect(relay), harness.publish(step, {"w": b"of %d" % step}), f"got-{step}")
    assert len(list_shards(store)) == 2
    assert (len(mirror._locks), len(store._whole), len(store._named)) == (0, 2, 1)
    await mirror.close()


async def test_relay__folder_that_cannot_be_read__answers_to_come_later(harness):
    manifest = harness.publish(3, FILES)
    origin, _, store = await fill_relay(harness, manifest)
    (path,) = list_manifests(store)
    path.unlink()
    path.mkdir()
    relay = await restart(harness, store, origin)
    refused = await harness.get_manifest(relay, manifest)
    assert (refused.status_code, refused.json()["code"]) == (503, "unavailable")
