"""Rows of a data set from a real origin and relays on loopback: which shards are fetched, and what happens after
damage.
"""

import asyncio
import os
import random
import socket
from contextlib import AsyncExitStack

import pytest
from starlette.responses import Response

from covey.environments.base import EnvironmentSpec
from covey.environments.registry import compute_fingerprint, load
from covey.errors import OperatorError, TransientError
from covey.shardcast.store import ShardStore
from covey.tasks.catalog import DataSetCatalog
from covey.tasks.publishing import add_data_set, require_data_sets
from covey.tasks.remote import ShardFetcher
from tests.fakes.tasks import make_data_set, make_row
from tests.unit.covey.shardcast.conftest import ShardcastHarness, build_liar

pytestmark = pytest.mark.integration


@pytest.fixture
async def relays(tmp_path):
    async with AsyncExitStack() as stack:
        yield ShardcastHarness(tmp_path, stack)


@pytest.fixture
def local(relays, tmp_path):
    """A data set of 6 MB on the origin, so 6 shards of rows."""
    text = random.Random(1).randbytes(30_000).hex()
    made = make_data_set(tmp_path / "tasks", [make_row(n, prompt=f"{n} {text}") for n in range(100)])
    assert add_data_set(relays.store, tmp_path / "tasks") == made.digest
    return made


def open_catalog(tmp_path, *relays, home="home"):
    return DataSetCatalog((), relays=relays, cache=tmp_path / home / "datasets")


async def draw(local, catalog, *draws):
    """Draw prompts of a pool on the data set, in a thread as a role does."""

    def work():
        environment = load(EnvironmentSpec(kind="math", options={"dataset": local.digest}), catalog)
        return [environment.prompt(number).text for number in draws]

    return await asyncio.to_thread(work)


async def expect(local, *draws):
    return await draw(local, lambda digest: local, *draws)


async def test_remote__first_draw__fetches_the_shards_of_its_row_alone(relays, tmp_path, local):
    url, recorder = await relays.add_origin()
    with open_catalog(tmp_path, url) as catalog:
        assert await draw(local, catalog, 7) == await expect(local, 7)
        assert recorder.count("/datasets/") == 1
        assert recorder.count("/shards/") in (2, 3)  # the index; a row of 60 kB is in one or two shards
        before = len(recorder.paths)
        assert await draw(local, catalog, 7) == await expect(local, 7)
        assert len(recorder.paths) == before
        draws = range(200)
        assert await draw(local, catalog, *draws) == await expect(local, *draws)
        assert recorder.count("/shards/") == len(set(recorder.paths)) - 1, "no shard twice"


async def test_remote__fingerprint__needs_the_manifest_alone(relays, tmp_path, local):
    url, recorder = await relays.add_origin()
    spec = EnvironmentSpec(kind="math", options={"dataset": local.digest})
    with open_catalog(tmp_path, url) as catalog:
        found = await asyncio.to_thread(lambda: compute_fingerprint(load(spec, catalog)))
    assert found == compute_fingerprint(load(spec, lambda digest: local))
    assert recorder.paths == [f"/datasets/{local.digest}"]


async def test_remote__through_a_relay__which_fetches_each_shard_once(relays, tmp_path, local):
    origin, recorder = await relays.add_origin()
    relay, _, store = await relays.add_relay(origin)
    for home in ("a", "b"):
        with open_catalog(tmp_path, relay, home=home) as catalog:
            assert await draw(local, catalog, 7, 8) == await expect(local, 7, 8)
    assert len(recorder.paths) == len(set(recorder.paths))
    store.prune(1, relays.retention)
    with open_catalog(tmp_path, relay, home="c") as catalog:
        before = len(recorder.paths)
        await draw(local, catalog, 7, 8)
    assert len(recorder.paths) == before, "pruning policies spares a data set's shards"


async def test_remote__restarted__goes_on_with_what_it_has(relays, tmp_path, local):
    url, recorder = await relays.add_origin()
    with open_catalog(tmp_path, url) as catalog:
        await draw(local, catalog, 7)
    recorder.paths.clear()
    with open_catalog(tmp_path, url) as catalog:
        assert await draw(local, catalog, 7) == await expect(local, 7)
    assert recorder.paths == []


async def test_remote__damaged_copies__are_fetched_again(relays, tmp_path, local):
    url, recorder = await relays.add_origin()
    with open_catalog(tmp_path, url) as catalog:
        await draw(local, catalog, 7)
    kept = [path for path in (tmp_path / "home").rglob("*") if path.is_file()]
    for path in kept:
        state, data = path.stat(), bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
        os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
    recorder.paths.clear()
    with open_catalog(tmp_path, url) as catalog:
        assert await draw(local, catalog, 7) == await expect(local, 7)
    assert len(recorder.paths) == len(kept)


async def test_remote__relay_that_lies__is_passed_over(relays, tmp_path, local):
    liar = await relays.serve(build_liar(lambda path: b"x" * (1 << 20)))
    url, _ = await relays.add_origin()
    with open_catalog(tmp_path, liar, url) as catalog:
        assert await draw(local, catalog, *range(20)) == await expect(local, *range(20))


async def test_remote__another_data_sets_manifest__is_not_taken(relays, tmp_path, local):
    other = make_data_set(tmp_path / "other", [make_row(1)])
    liar = await relays.serve(build_liar(lambda path: other.manifest.to_bytes()))
    with open_catalog(tmp_path, liar) as catalog, pytest.raises(TransientError, match="sent something else"):
        await draw(local, catalog, 7)


@pytest.mark.parametrize("answer", [Response(status_code=404), Response(status_code=503)])
async def test_remote__nobody_has_it__transient_and_wrong_for_a_trainer(relays, tmp_path, local, answer):
    url = await relays.serve(build_liar(lambda path: answer))
    with open_catalog(tmp_path, url) as catalog:
        with pytest.raises(TransientError):
            await draw(local, catalog, 7)
        with pytest.raises(OperatorError, match="wrong_dataset"):
            await asyncio.to_thread(require_data_sets, [local.digest], catalog)


async def test_remote__relay_that_says_nothing__ends_at_the_deadline(local):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        fetcher = ShardFetcher([f"http://127.0.0.1:{silent.getsockname()[1]}"], seconds=0.3)
        with pytest.raises(TransientError, match=r"within 0\.3 s"):
            await asyncio.to_thread(fetcher.fetch_manifest, local.digest)
        fetcher.close()
    with pytest.raises(TransientError, match="while this process was shutting down"):
        fetcher.fetch_manifest(local.digest)


async def test_relay__more_data_sets_than_it_keeps__drops_the_oldest_with_its_shards(relays, tmp_path):
    made = [make_data_set(tmp_path / f"d{n}", [make_row(n)]) for n in range(3)]
    for n in range(3):
        add_data_set(relays.store, tmp_path / f"d{n}")
    origin, _ = await relays.add_origin()
    relay, _, store = await relays.add_relay(origin, keep_datasets=2)
    for each in made:
        with open_catalog(tmp_path, relay, home=each.digest) as catalog:
            for (split, kind), count in each.groups.items():
                assert (await asyncio.to_thread(catalog, each.digest)).count(split, kind) == count
                await asyncio.to_thread(catalog(each.digest).read, split, kind, 0)
    kept = {path.stem for path in (store.root / "datasets").iterdir()}
    assert kept == {each.digest for each in made[1:]}
    assert {path.name for path in (store.root / "shards").iterdir()} <= {
        shard.sha256 for each in made[1:] for shard in each.manifest.shards
    }


def test_add_data_set__damaged_folder__is_not_served(tmp_path):
    make_data_set(tmp_path / "tasks", [make_row(n) for n in range(9)])
    rows = tmp_path / "tasks" / "rows.jsonl"
    rows.write_bytes(rows.read_bytes().replace(b"What", b"That"))
    store = ShardStore(tmp_path / "origin")
    with pytest.raises(OperatorError, match=r"bad_dataset: shard 0 of .*rows\.jsonl"):
        add_data_set(store, tmp_path / "tasks")
    assert not (tmp_path / "origin" / "datasets").exists()
