"""Rows of a data set from a real origin and relays on loopback: which pieces are fetched, and what happens after
damage.
"""

import asyncio
import os
import random
import socket
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack

import pytest
from starlette.applications import Starlette
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from covey.environments.base import EnvironmentSpec
from covey.environments.registry import compute_fingerprint, load
from covey.errors import OperatorError, ProtocolError, TransientError
from covey.protocol.dataset_manifest import DatasetFile, DatasetManifest
from covey.shardcast.origin import OriginSource
from covey.shardcast.origin_store import OriginStore
from covey.shardcast.piece_cache import PieceCache
from covey.shardcast.piece_server import PieceServer
from covey.tasks import remote as remote_module
from covey.tasks.catalog import DataSetCatalog
from covey.tasks.publishing import add_data_set, require_data_sets
from covey.tasks.remote import RemoteFiles
from tests.fakes.disk import limit_files
from tests.fakes.raw_server import HANG_S
from tests.fakes.served_policies import flip
from tests.fakes.tasks import make_data_set, make_row
from tests.integration.shardcast.conftest import Broadcast, serving

pytestmark = pytest.mark.integration


class Recorder:
    """Passes requests to an application, and notes their paths."""

    def __init__(self, app):
        self.app, self.paths = app, []

    async def __call__(self, scope, receive, send):
        if scope["type"] == "http":
            self.paths.append(scope["path"])
        await self.app(scope, receive, send)

    def count(self, folder):
        return sum(path.startswith(f"/{folder}/") for path in self.paths)


class Relays(Broadcast):
    """Origins, relays and liars that serve data sets."""

    def __init__(self, tmp_path, stack):
        super().__init__(tmp_path, stack)
        self.store = OriginStore(tmp_path / "origin")
        self.serve = lambda app: stack.enter_async_context(serving(app))

    async def add_recorded_origin(self):
        recorder = Recorder(PieceServer(OriginSource(OriginStore(self.store.root))))
        return await self.serve(recorder), recorder

    async def add_liar(self, answer):
        """Serve `answer(path)` at every path."""

        async def lie(request):
            body = answer(request.url.path)
            return body if isinstance(body, Response) else Response(body)

        return await self.serve(Starlette(routes=[Route("/{path:path}", lie)]))


@pytest.fixture
async def relays(tmp_path):
    async with AsyncExitStack() as stack:
        yield Relays(tmp_path, stack)


@pytest.fixture
def local(relays, tmp_path):
    """A data set of 6 MB on the origin, so 6 pieces of rows."""
    text = random.Random(1).randbytes(30_000).hex()
    made = make_data_set(tmp_path / "tasks", [make_row(n, prompt=f"{n} {text}") for n in range(100)])
    assert add_data_set(relays.store, tmp_path / "tasks") == made.digest
    return made


def open_catalog(tmp_path, *relays, home="home"):
    return DataSetCatalog((), relays=relays, cache=tmp_path / home / "datasets")


def list_files(folder):
    return [path for path in folder.rglob("*") if path.is_file()]


async def call(work, *arguments):
    """Call a client in a thread. Those of the event loop's default executor serve it."""
    with ThreadPoolExecutor(1) as executor:
        return await asyncio.get_running_loop().run_in_executor(executor, work, *arguments)


async def draw(local, catalog, *draws):
    """Draw prompts of a pool on the data set, in a thread as a role does."""

    def work():
        environment = load(EnvironmentSpec(kind="math", options={"dataset": local.digest}), catalog)
        return [environment.prompt(number).text for number in draws]

    return await call(work)


async def expect(local, *draws):
    return await draw(local, lambda digest: local, *draws)


async def test_remote__first_draw__fetches_the_pieces_of_its_row_alone(relays, tmp_path, local):
    url, recorder = await relays.add_recorded_origin()
    with open_catalog(tmp_path, url) as catalog:
        assert await draw(local, catalog, 7) == await expect(local, 7)
        assert recorder.count("manifests") == 1
        assert recorder.count("pieces") in (2, 3)  # The index; a row of 60 kB is in one or two pieces.
        before = len(recorder.paths)
        assert await draw(local, catalog, 7) == await expect(local, 7)
        assert len(recorder.paths) == before
        draws = range(200)
        assert await draw(local, catalog, *draws) == await expect(local, *draws)
        assert recorder.count("pieces") == len(set(recorder.paths)) - 1 == 7, "every piece once"


async def test_remote__many_threads_at_once__fetch_each_piece_once(relays, tmp_path, local):
    url, recorder = await relays.add_recorded_origin()
    with open_catalog(tmp_path, url) as catalog:
        drawn = await asyncio.gather(*(draw(local, catalog, *range(n, 200, 8)) for n in range(8)))
        assert drawn == [await expect(local, *range(n, 200, 8)) for n in range(8)]
        assert len({id(catalog(local.digest)) for _ in range(2)}) == 1
    assert len(recorder.paths) == len(set(recorder.paths)) == 8


async def test_remote__event_loop_of_a_role__is_not_needed(relays, tmp_path, local):
    """A draw in an event loop blocks it, so nothing may depend on the loop."""
    url, _ = await relays.add_recorded_origin()
    expected = await expect(local, 7)

    def draw_in_a_loop():
        async def work():
            with open_catalog(tmp_path, url) as catalog:
                environment = load(EnvironmentSpec(kind="math", options={"dataset": local.digest}), catalog)
                return [environment.prompt(7).text]

        return asyncio.run(work())

    assert await call(draw_in_a_loop) == expected


async def test_remote__fingerprint__needs_the_manifest_alone(relays, tmp_path, local):
    url, recorder = await relays.add_recorded_origin()
    spec = EnvironmentSpec(kind="math", options={"dataset": local.digest})
    with open_catalog(tmp_path, url) as catalog:
        found = await call(lambda: compute_fingerprint(load(spec, catalog)))
    assert found == compute_fingerprint(load(spec, lambda digest: local))
    assert recorder.paths == [f"/manifests/{local.digest}"]


async def test_remote__through_relays__each_fetches_a_piece_once_and_keeps_it_with_the_manifest(
    relays, tmp_path, local
):
    origin, recorder = await relays.add_recorded_origin()
    first, _ = await relays.add_relay(origin)
    second, inner = await relays.add_relay(first)
    for home in ("a", "b"):
        with open_catalog(tmp_path, second, home=home) as catalog:
            assert await draw(local, catalog, 7, 8) == await expect(local, 7, 8)
    assert len(recorder.paths) == len(set(recorder.paths))
    await asyncio.to_thread(inner._cache.prune, keep=1, keep_datasets=1, spare_bytes=0)
    before = len(recorder.paths)
    with open_catalog(tmp_path, second, home="c") as catalog:
        await draw(local, catalog, 7, 8)
    assert len(recorder.paths) == before, "pruning spares the pieces of a kept data set"


async def test_remote__restarted__goes_on_with_what_it_has(relays, tmp_path, local):
    url, recorder = await relays.add_recorded_origin()
    with open_catalog(tmp_path, url) as catalog:
        await draw(local, catalog, 7)
    recorder.paths.clear()
    with open_catalog(tmp_path, url) as catalog:
        assert await draw(local, catalog, 7) == await expect(local, 7)
    assert recorder.paths == []


async def test_remote__damaged_copies__are_fetched_again(relays, tmp_path, local):
    url, recorder = await relays.add_recorded_origin()
    with open_catalog(tmp_path, url) as catalog:
        await draw(local, catalog, 7)
    kept = list_files(tmp_path / "home")
    for path in kept:
        state = path.stat()
        flip(path, state.st_size // 2)
        os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
    recorder.paths.clear()
    with open_catalog(tmp_path, url) as catalog:
        assert await draw(local, catalog, 7) == await expect(local, 7)
        assert len(recorder.paths) == len(kept)
        flip(next(path for path in list_files(tmp_path / "home") if path.parent.parent.name == "pieces"))
        assert await draw(local, catalog, 7) == await expect(local, 7)
    assert len(recorder.paths) == len(kept) + 1


async def test_remote__relay_that_lies__is_passed_over(relays, tmp_path, local):
    liar = await relays.add_liar(lambda path: b"x" * (1 << 20))
    url, _ = await relays.add_recorded_origin()
    with open_catalog(tmp_path, liar, url) as catalog:
        assert await draw(local, catalog, *range(20)) == await expect(local, *range(20))


async def test_remote__another_data_sets_manifest__is_not_taken(relays, tmp_path, local):
    other = make_data_set(tmp_path / "other", [make_row(1)])
    liar = await relays.add_liar(lambda path: other.manifest.to_bytes())
    with RemoteFiles([liar], tmp_path / "home", seconds=0.5) as remote:
        with pytest.raises(TransientError, match="no_relay"):
            await call(remote.open, local.digest)
        assert list_files(tmp_path / "home") == []


async def test_remote__manifest_of_a_policy__is_not_a_data_set(relays, tmp_path):
    made = relays.publisher.add_anchor(1)
    url, _ = await relays.add_recorded_origin()
    with (
        RemoteFiles([url], tmp_path / "home", seconds=0.5) as remote,
        pytest.raises(TransientError, match="no_relay"),
    ):
        await call(remote.open, made.anchor.address)


async def test_remote__nobody_has_it__transient_and_wrong_for_a_trainer(relays, tmp_path, local):
    url = await relays.add_liar(lambda path: Response(status_code=404))
    with open_catalog(tmp_path, url) as catalog:
        with pytest.raises(TransientError, match="not_at_relays"):
            await draw(local, catalog, 7)
        with pytest.raises(OperatorError, match="wrong_dataset"):
            await call(require_data_sets, [local.digest], catalog)


async def test_remote__relay_that_cannot_serve_now__transient(relays, tmp_path, local):
    url = await relays.add_liar(lambda path: Response(status_code=503))
    with RemoteFiles([url], tmp_path / "home", seconds=0.3) as remote, pytest.raises(TransientError, match="no_relay"):
        await call(remote.open, local.digest)


async def test_remote__no_relay__is_refused(tmp_path):
    with pytest.raises(ProtocolError, match="no_relays"):
        RemoteFiles(["ftp://x"], tmp_path / "home")


async def test_remote__relay_that_says_nothing__ends_at_the_deadline(tmp_path, local):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        remote = RemoteFiles([f"http://127.0.0.1:{silent.getsockname()[1]}"], tmp_path / "home", seconds=0.3)
        with pytest.raises(TransientError, match=r"within 0\.3 s"):
            await call(remote.open, local.digest)
        with pytest.raises(TransientError, match=r"within 0\.3 s"):
            await call(remote.read, local.manifest.files[0], 0, 1)
        remote.close()
    with pytest.raises(TransientError, match=r"stopped: .*while this process was shutting down"):
        remote.open(local.digest)


async def test_remote__relay_that_drips__ends_at_the_deadline(relays, tmp_path, local):
    async def drip():
        for _ in range(int(2 * HANG_S / 0.05)):
            yield b"x"
            await asyncio.sleep(0.05)

    url = await relays.add_liar(lambda path: StreamingResponse(drip()))
    with RemoteFiles([url], tmp_path / "home", seconds=0.5) as remote:
        started = time.monotonic()
        with pytest.raises(TransientError, match=r"within 0\.5 s"):
            await call(remote.open, local.digest)
        assert time.monotonic() - started < HANG_S


async def test_close__calls_that_wait__end_at_once(tmp_path, local, monkeypatch):
    monkeypatch.setattr(remote_module, "_STOP_SECONDS", 2 * HANG_S)
    with socket.create_server(("127.0.0.1", 0), backlog=16) as silent, ThreadPoolExecutor(3) as threads:
        catalog = open_catalog(tmp_path, f"http://127.0.0.1:{silent.getsockname()[1]}")
        waiting = [threads.submit(catalog, local.digest) for _ in range(3)]  # Two wait for the first.
        connection, _ = await asyncio.to_thread(silent.accept)
        with connection:
            started = time.monotonic()
            await call(catalog.close)
            assert time.monotonic() - started < HANG_S
            for opening in waiting:
                with pytest.raises(TransientError, match="stopped"):
                    opening.result(HANG_S)


async def test_remote__full_disk__transient_and_nothing_half_written(relays, tmp_path, local):
    url, _ = await relays.add_recorded_origin()
    with open_catalog(tmp_path, url) as catalog:
        await call(catalog, local.digest)
        kept = list_files(tmp_path / "home")
        with limit_files(500_000), pytest.raises(TransientError, match="disk_full"):
            await draw(local, catalog, 7)
        assert all(path in kept or path.stat().st_size < 500_000 for path in list_files(tmp_path / "home"))
        assert not [path for path in list_files(tmp_path / "home") if path.name.startswith(".")]
        assert await draw(local, catalog, 7) == await expect(local, 7)
    with RemoteFiles([url], tmp_path / "second") as remote, limit_files(100):
        with pytest.raises(TransientError, match="disk_full"):
            await call(remote.open, local.digest)
        assert list_files(tmp_path / "second") == []


async def test_remote__piece_of_another_size_than_the_manifest_says__bad_dataset(relays, tmp_path, local):
    """The author of a second data set names a piece of the first one, which is here, with a wrong size."""
    index = local.manifest.find_file("train.math.index")
    wrong = DatasetFile(name="rows.jsonl", size=index.size + 1, hashes=index.hashes)
    url, _ = await relays.add_recorded_origin()
    with RemoteFiles([url], tmp_path / "home") as remote:
        await call(remote.read, index, 0, 1)
        with pytest.raises(OperatorError, match="bad_dataset"):
            remote.read(wrong, 0, wrong.size)
    manifest = DatasetManifest(files=(index,))
    await asyncio.to_thread(PieceCache(tmp_path / "third").add_manifest, manifest.digest, manifest.to_bytes())
    with RemoteFiles([url], tmp_path / "third") as remote, pytest.raises(OperatorError, match="does not list the file"):
        remote.open(manifest.digest)


async def test_remote__memory__does_not_grow_with_what_is_read(relays, tmp_path, local):
    url, _ = await relays.add_recorded_origin()
    rows = local.manifest.find_file("rows.jsonl")
    with RemoteFiles([url], tmp_path / "home") as remote:

        def read_all():
            for piece in range(len(rows.pieces) - 1):
                remote.read(rows, piece << 20, 1 << 20)
            tracemalloc.start()
            for piece in range(len(rows.pieces) - 1):
                remote.read(rows, piece << 20, 1 << 20)
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            return peak

        assert await call(read_all) < 3 << 20


async def test_relay__more_data_sets_than_it_keeps__drops_the_oldest_with_its_pieces(relays, tmp_path):
    made = [make_data_set(tmp_path / f"d{n}", [make_row(n)]) for n in range(3)]
    for n in range(3):
        add_data_set(relays.store, tmp_path / f"d{n}")
    origin, _ = await relays.add_recorded_origin()
    relay, inner = await relays.add_relay(origin)
    for each in made:
        with open_catalog(tmp_path, relay, home=each.digest) as catalog:
            for (split, kind), count in each.groups.items():
                assert (await call(catalog, each.digest)).count(split, kind) == count
                await call(catalog(each.digest).read, split, kind, 0)
    root = inner._cache.root
    assert {path.name for path in (root / "manifests").iterdir()} == {each.digest for each in made}
    await asyncio.to_thread(inner._cache.prune, keep=1, keep_datasets=2, spare_bytes=0)
    assert {path.name for path in (root / "manifests").iterdir()} == {each.digest for each in made[1:]}
    pieces = {piece.digest for each in made[1:] for file in each.manifest.files for piece in file.pieces}
    assert {path.name for path in (root / "pieces").glob("*/*")} == pieces
    with open_catalog(tmp_path, relay, home="again") as catalog:
        assert await call(catalog, made[0].digest), "it comes back on request"
