"""Previews of exports in the folder of an origin, and what the origin serves of them."""

import os
import threading

import pytest

from covey.protocol.ids import Hash
from covey.protocol.pieces import Piece, compute_blake3
from covey.protocol.preview import ROW_BYTES, parse_preview
from covey.shardcast import export_preview
from covey.shardcast.export_preview import PreviewFolder
from covey.shardcast.origin import OriginSource
from covey.shardcast.origin_store import OriginStore
from covey.shardcast.piece_files import read_piece
from covey.shardcast.piece_server import PieceServer
from tests.fakes.asgi import ask

pytestmark = pytest.mark.unit
POOL = 3


@pytest.fixture
def root(tmp_path):
    return tmp_path / "origin"


@pytest.fixture
def weights(tmp_path):
    """Return a weights file that grows: a header of 100 bytes, then pieces."""
    path = tmp_path / "model.safetensors"
    path.write_bytes(bytes(100))
    return path


def write(path, writer, data):
    """Append a piece to the weights file, and add it to the preview."""
    offset = path.stat().st_size
    with path.open("ab") as file:
        file.write(data)
    writer.add(Piece(len(data), compute_blake3(data)), offset)
    return compute_blake3(data)


def test_pieces__are_served_as_soon_as_they_are_named(root, weights):
    writer, folder = PreviewFolder(root).open(POOL, weights), PreviewFolder(root)
    assert folder.find(POOL) == b""
    first = write(weights, writer, b"one")
    assert read_piece(folder.find_piece(first, verify=False)) == b"one"
    second = write(weights, writer, b"second")
    assert read_piece(folder.find_piece(second, verify=True)) == b"second"
    assert [(row.piece.digest, row.offset) for row in parse_preview(folder.find(POOL))] == [(first, 100), (second, 103)]
    assert folder.find_piece(Hash("0x" + "00" * 32), verify=False) is None
    assert folder.find(POOL + 1) is None
    writer.close()


def test_find_piece__complaint_about_damaged_bytes__is_right(root, weights):
    writer, folder = PreviewFolder(root).open(POOL, weights), PreviewFolder(root)
    digest = write(weights, writer, b"one")
    writer.close()
    with weights.open("r+b") as file:
        file.seek(101)
        file.write(b"X")
    assert folder.find_piece(digest, verify=False) is not None
    assert folder.find_piece(digest, verify=True) is None


def test_open__again__replaces_the_preview_of_this_pool_only(root, weights):
    folder = PreviewFolder(root)
    writers = [folder.open(POOL, weights), folder.open(POOL + 1, weights)]
    first = write(weights, writers[0], b"one")
    writers.append(folder.open(POOL, weights))
    assert (folder.find(POOL), folder.find(POOL + 1)) == (b"", b"")
    assert folder.find_piece(first, verify=False) is None
    writers[0].add(Piece(3, first), 100)
    assert folder.find(POOL) == b"", "the earlier export has no preview any more"
    for each in writers:
        each.close()


def test_remove__preview_of_another_file__stays(root, weights, tmp_path):
    folder, other = PreviewFolder(root), tmp_path / "other"
    other.write_bytes(b"x")
    folder.open(POOL, weights).close()
    folder.remove(POOL, other)
    assert folder.find(POOL) == b""
    folder.remove(POOL, weights)
    assert folder.find(POOL) is None


def test_open__another_file_system__is_no_preview(root, weights, monkeypatch):
    def fail(*_):
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(export_preview.os, "link", fail)
    assert PreviewFolder(root).open(POOL, weights) is None
    assert PreviewFolder(root).find(POOL) is None


def test_find__row_that_is_being_written__is_left_out(root, weights):
    writer, folder = PreviewFolder(root).open(POOL, weights), PreviewFolder(root)
    write(weights, writer, b"one")
    writer.close()
    (path,) = root.glob("previews/*/*/pieces")
    with path.open("ab") as file:
        file.write(b"half a row")
    assert len(folder.find(POOL)) == ROW_BYTES
    assert folder.find_piece(compute_blake3(b"one"), verify=False) is not None


def test_add__full_preview__later_pieces_are_not_named(root, weights, monkeypatch):
    monkeypatch.setattr(export_preview, "MAX_PREVIEW_BYTES", 2 * ROW_BYTES + 1)
    writer = PreviewFolder(root).open(POOL, weights)
    threads = [threading.Thread(target=writer.add, args=(Piece(1, Hash("0x" + "00" * 32)), n)) for n in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    writer.close()
    assert len(PreviewFolder(root).find(POOL)) == 2 * ROW_BYTES


async def test_origin__preview_and_its_pieces__until_the_policy_is_offered(root, weights):
    app = PieceServer(OriginSource(OriginStore(root)))
    assert (await ask(app, f"/previews/{POOL}")).status == 404
    writer = PreviewFolder(root).open(POOL, weights)
    digest = write(weights, writer, os.urandom(5000))
    writer.close()
    answered = await ask(app, f"/previews/{POOL}")
    assert (answered.status, answered.headers["cache-control"]) == (200, "no-store")
    assert parse_preview(answered.body)[0].piece.digest == digest
    piece = await ask(app, f"/pieces/{digest}")
    assert (piece.status, compute_blake3(piece.body)) == (200, digest)
    PreviewFolder(root).remove(POOL)
    assert (await ask(app, f"/previews/{POOL}")).status == 404
    assert (await ask(app, f"/pieces/{digest}")).status == 404


@pytest.mark.parametrize("path", ["/previews/0", "/previews/x", "/previews/1.json", "/previews/../heads", "/previews/"])
async def test_origin__odd_paths__are_not_found(root, path):
    assert (await ask(PieceServer(OriginSource(OriginStore(root))), path)).status == 404
