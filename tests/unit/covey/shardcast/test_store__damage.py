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


async def restart(world, store, upstream):
    """The URL of a relay that starts on a folder with copies."""
    relay, _, _ = await world.add_relay(upstream, store=ShardStore(store.root))
    return relay


async def fill_relay(world, manifest):
    """An origin and the folder of a relay that has copies of a policy and has ended."""
    origin, recorder = await world.add_origin()
    store = ShardStore(world.tmp_path / "copies")
    mirror = Mirror(store, origin)
    async with serving(build_server(store, mirror)) as relay:
        await world.fetch(world.connect(relay), manifest, "first")
    await mirror.close()
    recorder.paths.clear()
    return origin, recorder, store


async def test_relay__bit_flipped_on_its_disk__started_again_it_fetches_that_shard_again(world):
    manifest = world.publish(3, FILES)
    origin, recorder, store = await fill_relay(world, manifest)
    flip(list_shards(store)[1])
    relay = await restart(world, store, origin)
    client = world.connect(relay)
    assert read(await world.fetch(client, manifest)) == FILES
    assert client.scores[0].success == 1.0
    assert recorder.count("/shards/") == 1
    assert recorder.count("/policies/") == 0


async def test_relay__shard_replaced_while_it_runs__is_looked_at_again(world):
    manifest = world.publish(3, FILES)
    origin, _ = await world.add_origin()
    relay, _, store = await world.add_relay(origin)
    await world.fetch(world.connect(relay), manifest, "first")
    list_shards(store)[0].write_bytes(b"torn")
    client = world.connect(relay)
    assert read(await world.fetch(client, manifest)) == FILES
    assert client.scores[0].success == 1.0


async def test_relay__bit_flipped_in_its_manifest__is_fetched_again(world):
    manifest = world.publish(3, FILES)
    origin, _, store = await fill_relay(world, manifest)
    flip(list_manifests(store)[0])
    relay = await restart(world, store, origin)
    assert read(await world.fetch(world.connect(relay), manifest)) == FILES


async def test_relay__manifest_was_damaged_upstream__is_not_kept(world):
    manifest, answers = world.publish(3, FILES), []
    forged = manifest.model_copy(update={"files": manifest.files[:1]}).to_bytes()
    origin, _ = await world.add_origin(lambda path: Response(forged) if "/policies/" in path and answers else None)
    relay, _, store = await world.add_relay(origin)
    answers.append(forged)
    with pytest.raises(TransientError, match="no_relay"):
        await world.fetch(world.connect(relay), manifest)
    assert list_manifests(store) == []
    answers.clear()
    assert read(await world.fetch(world.connect(relay), manifest)) == FILES


async def test_relay__step_published_again_after_a_reorganisation__serves_both(world):
    old = world.publish(3, FILES)
    origin, _ = await world.add_origin()
    relay, _, store = await world.add_relay(origin)
    await world.fetch(world.connect(relay), old, "old")
    folder = world.tmp_path / "other"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"learned again")
    new = add_policy(world.store, folder, pool=1, step=3)
    assert read(await world.fetch(world.connect(relay), new, "new")) == {"model.safetensors": b"learned again"}
    assert read(await world.fetch(world.connect(relay), old, "old again")) == FILES
    assert store.list_steps(1) == [3]


async def test_origin__bit_flipped_on_its_disk__serves_it_to_nobody_until_it_is_offered_again(world):
    manifest = world.publish(3, FILES)
    flip(list_shards(world.store)[0])
    shard = list_shards(world.store)[0].name
    recorder = Recorder(build_server(ShardStore(world.store.root)))
    origin = await world.serve(recorder)
    refused = await world.get(f"{origin}/shards/{shard}")
    assert (refused.status_code, refused.json()["code"]) == (503, "unavailable")
    add_policy(ShardStore(world.store.root), world.tmp_path / "policy-1-3", pool=1, step=3, shard_bytes=1000)
    assert (await world.get(f"{origin}/shards/{shard}")).status_code == 200
    assert read(await world.fetch(world.connect(origin), manifest)) == FILES


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


async def test_origin__bit_flipped_in_a_manifest__pruning_keeps_all_shards(world):
    """Which shards it named is not known any more, and relays that have it may still need them."""
    world.publish(3, FILES)
    flip(list_manifests(world.store)[0])
    shards = list_shards(world.store)
    world.publish(4, {"a": b"other"})
    ShardStore(world.store.root).prune(1, world.retention)
    assert set(shards) < set(list_shards(world.store))


async def test_relay__many_policies__remembers_no_more_than_it_has(world):
    origin, _ = await world.add_origin()
    store = ShardStore(world.tmp_path / "copies")
    mirror = Mirror(store, origin, keep=2)
    relay = await world.serve(build_server(store, mirror))
    for step in range(6):
        await world.fetch(world.connect(relay), world.publish(step, {"w": b"of %d" % step}), f"got-{step}")
    assert len(list_shards(store)) == 2
    assert (len(mirror._locks), len(store._whole), len(store._named)) == (0, 2, 1)
    await mirror.close()


async def test_relay__folder_that_cannot_be_read__answers_to_come_later(world):
    manifest = world.publish(3, FILES)
    origin, _, store = await fill_relay(world, manifest)
    (path,) = list_manifests(store)
    path.unlink()
    path.mkdir()
    relay = await restart(world, store, origin)
    refused = await world.get_manifest(relay, manifest)
    assert (refused.status_code, refused.json()["code"]) == (503, "unavailable")
