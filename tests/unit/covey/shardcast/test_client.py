import asyncio
import os
import random
import time

import pytest
from starlette.responses import Response, StreamingResponse

from covey.errors import ProtocolError, TransientError
from covey.protocol.manifest import MAX_MANIFEST_BYTES
from covey.shardcast import client as module
from covey.shardcast.client import RelayScore, ShardClient, get_policy_folder, prune_policies
from tests.unit.covey.shardcast.conftest import build_liar

pytestmark = pytest.mark.integration

FILES = {"model.safetensors": random.Random(1).randbytes(7500), "config.json": b'{"a": 1}', "empty.txt": b""}
DEAD = "http://127.0.0.1:9"


def read(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


async def test_fetch__from_the_origin__every_file_whole(harness):
    manifest = harness.publish(3, FILES)
    url, recorder = await harness.add_origin()
    client = harness.connect(url + "/")
    folder = await harness.fetch(client, manifest)
    assert read(folder) == FILES
    assert recorder.count("/shards/") == 9
    assert await harness.fetch(client, manifest) == folder
    assert recorder.count("/") == 10


async def test_fetch__through_two_relays_in_a_row__whole(harness):
    manifest = harness.publish(3, FILES)
    origin, recorder = await harness.add_origin()
    first, _, _ = await harness.add_relay(origin)
    second, _, store = await harness.add_relay(first)
    assert read(await harness.fetch(harness.connect(second), manifest)) == FILES
    assert read(await harness.fetch(harness.connect(second), manifest, "again")) == FILES
    assert recorder.count("/shards/") == 9  # the second fetch came from the relay's folder
    assert store.list_steps(1) == [3]


async def test_fetch__relays_that_know_nothing_yet__none_loses_credit(harness):
    """Only one is asked for the manifest; the others learn from the shard's address whose it is."""
    manifest = harness.publish(3, FILES)
    origin, _ = await harness.add_origin()
    relays = [await harness.add_relay(origin) for _ in range(3)]
    client = harness.connect(*(url for url, _, _ in relays), seed=4)
    assert read(await harness.fetch(client, manifest)) == FILES
    assert [score.success for score in client.scores] == [1.0, 1.0, 1.0]
    assert sum(recorder.count("/shards/") for _, recorder, _ in relays) == 9


async def test_fetch__one_flipped_bit_in_any_shard__refused_and_another_relay_used(harness):
    """docs/threats.md, rows 21 and 27."""
    manifest = harness.publish(3, FILES)
    shards, flipped = [shard.sha256 for file in manifest.files for shard in file.shards], {}
    bad, _ = await harness.add_origin(lambda path: Response(d) if (d := flipped.get(path.rpartition("/")[2])) else None)
    good, _ = await harness.add_origin()
    for place, shard in enumerate(shards):
        data = bytearray(harness.store.get_shard_path(shard).read_bytes())
        data[random.Random(place).randrange(len(data))] ^= 1 << place % 8
        flipped.clear()
        flipped[shard] = bytes(data)
        client = harness.connect(bad, good)
        client.scores[1].bandwidth = 1.0  # so that the bad one is asked first
        assert read(await harness.fetch(client, manifest, f"got-{place}")) == FILES
        alone = harness.connect(bad)
        with pytest.raises(TransientError, match=f"no relay has shard {shard}"):
            await harness.fetch(alone, manifest, f"alone-{place}")
        assert alone.scores[0].success < 1
        assert not (harness.tmp_path / f"alone-{place}").exists()
    assert len(shards) == 9


async def test_fetch__relay_lies__loses_all_credit_and_is_hardly_asked_again(harness):
    manifest = harness.publish(3, FILES)
    liar = await harness.serve(build_liar(lambda path: b"lie"))
    good, _ = await harness.add_origin()
    client = harness.connect(liar, good)
    client.scores[1].bandwidth = 1.0
    await harness.fetch(client, manifest)
    assert client.scores[0].success < 0.02, "it has healed by a thousandth for each answer of the other"
    assert client.scores[1].success == 1.0


async def test_fetch__no_relay_delivers__transient(harness):
    manifest, status = harness.publish(3, FILES), [404]
    headers = {"location": "http://169.254.169.254/"}
    silent = await harness.serve(build_liar(lambda path: Response(b"", status[0], headers)))
    for status[0] in (404, 500, 503, 302):
        client = harness.connect(silent, DEAD)
        answer = "does not have it" if status[0] == 404 else f"answered with status {status[0]}"
        with pytest.raises(TransientError, match="no_relay: no relay has the manifest of step 3: ") as caught:
            await harness.fetch(client, manifest)
        assert f"{silent} {answer}" in caught.value.message
        assert f"{DEAD} did not answer: ConnectError" in caught.value.message
        assert all(score.success == pytest.approx(0.8) for score in client.scores)


async def test_fetch__all_relays_lack_it__is_told_apart(harness):
    """Nobody has it, as far as can be known: a caller may stop to wait."""
    manifest, silent = harness.publish(3, FILES), await harness.serve(build_liar(lambda path: Response(b"", 404)))
    with pytest.raises(TransientError, match="not_at_relays: no relay has the manifest of step 3: ") as caught:
        await harness.fetch(harness.connect(silent), manifest)
    assert caught.value.message.endswith(f"{silent} does not have it")


async def test_fetch__no_relay_answers__is_told_apart(harness):
    with pytest.raises(TransientError, match="no_relay: no relay answers that is asked for the manifest of step 3"):
        await harness.fetch(harness.connect(DEAD), harness.publish(3, FILES))


@pytest.mark.parametrize(("pool", "step"), [(1, 4), (2, 3)])
async def test_fetch__manifest_of_another_policy__refused(harness, pool, step):
    """The chain's hash is right, the manifest is another step's: the publisher lied, and no relay can mend it."""
    other = harness.publish(3, FILES)
    url = await harness.serve(build_liar(lambda path: other.to_bytes()))
    with pytest.raises(ProtocolError, match="bad_manifest: the chain's hash for step"):
        await harness.connect(url).fetch(
            pool=pool, step=step, manifest_hash=other.compute_hash(), folder=harness.tmp_path / "x"
        )
    assert not (harness.tmp_path / "x").exists()


async def test_fetch__manifest_without_the_chains_hash__another_relay_is_asked(harness):
    old, new = harness.publish(2, {"a": b"old"}), harness.publish(3, FILES)
    stale = await harness.serve(build_liar(lambda path: old.to_bytes()))
    good, _ = await harness.add_origin()
    client = harness.connect(stale, good)
    client.scores[1].bandwidth = 1.0
    assert read(await harness.fetch(client, new)) == FILES
    assert client.scores[0].success < 0.02


async def test_fetch__file_hash_that_its_shards_do_not_have__refused(harness):
    honest = harness.publish(3, FILES)
    files = [f.model_copy(update={"sha256": "0x" + "00" * 32}) if f.name == "config.json" else f for f in honest.files]
    forged = honest.model_copy(update={"files": tuple(files)})
    origin, _ = await harness.add_origin(lambda path: Response(forged.to_bytes()) if "/policies/" in path else None)
    with pytest.raises(ProtocolError, match=r"config.json does not have the hash"):
        await harness.fetch(harness.connect(origin), forged)
    assert not (harness.tmp_path / "got").exists()


async def test_fetch__interrupted__finished_shards_are_not_fetched_again(harness):
    manifest = harness.publish(3, FILES)
    shards = [shard.sha256 for file in manifest.files for shard in file.shards]
    broken = set(shards[4:6])
    url, recorder = await harness.add_origin(
        lambda path: Response(b"", 500) if path.rpartition("/")[2] in broken else None
    )
    client = harness.connect(url)
    with pytest.raises(TransientError):
        await harness.fetch(client, manifest)
    assert not (harness.tmp_path / "got").exists()
    assert (harness.tmp_path / "got.part").is_dir()
    broken.clear()
    recorder.paths.clear()
    assert read(await harness.fetch(harness.connect(url), manifest)) == FILES
    assert sorted(path for path in recorder.paths if "/shards/" in path) == sorted(f"/shards/{s}" for s in shards[4:6])
    assert not (harness.tmp_path / "got.part").exists()


async def test_fetch__cancelled_anywhere__torn_folder_never_visible(harness):
    manifest = harness.publish(3, FILES)
    url, _ = await harness.add_origin()
    client = harness.connect(url)
    for pause in (0.0, 0.002, 0.005, 0.01):
        task = asyncio.create_task(harness.fetch(client, manifest))
        await asyncio.sleep(pause)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        got = harness.tmp_path / "got"
        assert not got.exists() or read(got) == FILES
    assert read(await harness.fetch(client, manifest)) == FILES


async def test_fetch__draft_with_junk__cleaned_and_mended(harness):
    manifest = harness.publish(3, FILES)
    url, _ = await harness.add_origin()
    draft = harness.tmp_path / "got.part"
    draft.mkdir()
    (draft / "evil.py").write_bytes(b"x")
    (draft / "config.json").write_bytes(b"x" * 5000)
    (draft / "model.safetensors").write_bytes(bytes(7500))
    assert read(await harness.fetch(harness.connect(url), manifest)) == FILES


def stream_forever(sent):
    async def pieces():
        while True:
            await asyncio.sleep(0)  # the server notices only here that nobody reads
            sent.append(1 << 16)
            yield os.urandom(1 << 16)

    return StreamingResponse(pieces())


async def test_fetch__endless_manifest__cut_off(harness):
    manifest, sent = harness.publish(3, FILES), []
    url = await harness.serve(build_liar(lambda path: stream_forever(sent)))
    with pytest.raises(TransientError):
        await harness.fetch(harness.connect(url), manifest)
    assert sum(sent) < MAX_MANIFEST_BYTES + (16 << 20)  # what the sockets hold comes on top


async def test_fetch__endless_shard__cut_off_and_blamed(harness):
    manifest, sent = harness.publish(3, {"a": b"x"}), []
    url, _ = await harness.add_origin(lambda path: stream_forever(sent) if "/shards/" in path else None)
    client = harness.connect(url)
    with pytest.raises(TransientError, match="no relay has shard"):
        await harness.fetch(client, manifest)
    assert client.scores[0].success == 0.0
    assert sum(sent) < 16 << 20


async def test_fetch__compressed_answer__not_unpacked(harness):
    manifest = harness.publish(3, {"a": b"x" * 1000})
    headers = {"content-encoding": "gzip"}
    import gzip

    bomb = gzip.compress(b"x" * 1000)
    url, _ = await harness.add_origin(lambda path: Response(bomb, headers=headers) if "/shards/" in path else None)
    with pytest.raises(TransientError):
        await harness.fetch(harness.connect(url), manifest)


async def test_fetch__relay_that_drips__given_up(harness, monkeypatch):
    monkeypatch.setattr(module, "_PATIENCE_S", 0.1)
    manifest = harness.publish(3, {"a": b"x" * 100})

    async def drip():
        for _ in range(100):
            yield b"x"
            await asyncio.sleep(0.05)

    url, _ = await harness.add_origin(lambda path: StreamingResponse(drip()) if "/shards/" in path else None)
    started = time.monotonic()
    with pytest.raises(TransientError):
        await harness.fetch(harness.connect(url), manifest)
    assert time.monotonic() - started < 2


def test_client__addresses_that_are_none__left_out():
    wrong = ["http://x:99999999", "http://a:b:c", "ftp://x", "", "/etc", "http://", "\x00"]
    client = ShardClient([*wrong, "http://127.0.0.1:9/"])
    assert [score.url for score in client.scores] == ["http://127.0.0.1:9"]
    for none in ([], wrong):
        with pytest.raises(ProtocolError, match="no_relays"):
            ShardClient(none)


def test_score__by_hand__averages_with_a_fifth_of_the_new():
    score = RelayScore("http://x", success=1.0, bandwidth=100.0)
    score.record(size=300, seconds=1.0, is_good=True)
    assert (score.success, score.bandwidth) == (1.0, pytest.approx(140.0))
    score.record(size=0, seconds=1.0, is_good=False)
    assert (score.success, score.bandwidth) == (pytest.approx(0.8), pytest.approx(140.0))
    assert score.weight == pytest.approx(112.0)
    score.heal()
    assert score.success == pytest.approx(0.809)
    for _ in range(100):
        score.heal()
    assert score.success == 1.0


async def test_draw__order__by_weight_without_repetition_at_most_four(harness):
    client = harness.connect(*(f"http://127.0.0.1:{port}" for port in range(10, 16)))
    for score in client.scores:
        score.bandwidth = 1.0
    client.scores[2].bandwidth = 1e9
    firsts = []
    for _ in range(50):
        order = client._draw()
        assert len(order) == len({id(score) for score in order}) == 4
        firsts.append(order[0])
    assert firsts.count(client.scores[2]) == 50


def test_policy_folder__another_chains_policy__lies_elsewhere(tmp_path):
    a, b = (get_policy_folder(tmp_path, 3, "0x" + digit * 64) for digit in "ab")
    assert a != b
    assert a.name == "3-" + "a" * 16


def test_prune__keeps_the_newest_by_number_and_touches_nothing_else(tmp_path):
    for name in ("9-aa", "10-aa", "2-aa", "11-aa.part", "notes"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "f").write_bytes(b"1")
    prune_policies(tmp_path, keep=3, spare=())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["10-aa", "11-aa.part", "9-aa", "notes"]


async def test_fetch__two_relays__the_unused_one_heals(harness):
    manifest = harness.publish(3, FILES)
    good, _ = await harness.add_origin()
    client = harness.connect(DEAD, good)
    client.scores[0].success = 0.0
    assert read(await harness.fetch(client, manifest)) == FILES
    assert client.scores[0].success >= 10 * 1e-3, "it was unused for a manifest and nine shards"


async def test_fetch__relay_stalls__costs_one_wait_and_all_of_its_credit(harness):
    manifest = harness.publish(3, {"model.safetensors": random.Random(1).randbytes(20_000)})
    release = asyncio.Event()

    async def stall():
        await release.wait()
        yield b""

    stalling, recorder = await harness.add_origin(
        lambda path: StreamingResponse(stall()) if "/shards/" in path else None
    )
    good, _ = await harness.add_origin()
    client = harness.connect(stalling, good, stall_s=0.5)
    started = time.monotonic()
    try:
        await harness.fetch(client, manifest)
    finally:
        release.set()
    assert time.monotonic() - started < 3
    assert recorder.count("/shards/") >= 1, "the seed has it asked"
    assert client.scores[0].success < 0.1
