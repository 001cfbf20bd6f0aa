"""Manifests of data sets: their bytes, their digest, and hostile ones."""

import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from covey.errors import ProtocolError
from covey.protocol import canonical
from covey.protocol.dataset_manifest import (
    DATA_PIECE_BYTES,
    MAX_DATASET_MANIFEST_BYTES,
    DatasetFile,
    DatasetManifest,
)
from covey.protocol.ids import ZERO_HASH, Hash, hash_from_bytes
from covey.protocol.pieces import PIECE_BYTES, Piece, compute_blake3

pytestmark = pytest.mark.unit

ABC = Hash("0x6437b3ac38465133ffb63b75273a8db548c558465d79db03fd359c6cd5bd9d85")
"""BLAKE3 hash of "abc", from the reference implementation."""
names = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,20}(\.[a-z]{1,5})?", fullmatch=True)
hashes = st.binary(min_size=32, max_size=32).map(hash_from_bytes)


@st.composite
def files(draw: st.DrawFn, name: str) -> DatasetFile:
    chosen = draw(st.lists(hashes, max_size=4))
    last = draw(st.integers(1, DATA_PIECE_BYTES)) if chosen else DATA_PIECE_BYTES
    return DatasetFile(name=name, size=(len(chosen) - 1) * DATA_PIECE_BYTES + last, hashes=tuple(chosen))


@st.composite
def manifests(draw: st.DrawFn) -> DatasetManifest:
    chosen = draw(st.lists(names, min_size=1, max_size=4, unique=True))
    return DatasetManifest(files=tuple(draw(files(name)) for name in chosen))


def build(**changes: Any) -> dict[str, Any]:
    file = {"name": "rows.jsonl", "size": 3, "hashes": [ABC]} | changes.pop("file", {})
    return {"files": [file], "kind": "dataset", "version": 2} | changes


def read(values: dict[str, Any]) -> DatasetManifest:
    data = canonical.to_bytes(values)
    return DatasetManifest.from_bytes(data, compute_blake3(data))


@given(manifests())
def test_manifest__any_manifest__round_trips_under_its_digest(manifest: DatasetManifest):
    data = manifest.to_bytes()
    assert manifest.digest == compute_blake3(data)
    assert DatasetManifest.from_bytes(data, manifest.digest) == manifest
    assert manifest.size == sum(piece.size for file in manifest.files for piece in file.pieces)
    assert all(piece.size <= DATA_PIECE_BYTES for file in manifest.files for piece in file.pieces)


def test_manifest__by_hand__has_this_text():
    manifest = DatasetManifest(files=(DatasetFile(name="rows.jsonl", size=3, hashes=(ABC,)),))
    text = f'{{"files":[{{"hashes":["{ABC}"],"name":"rows.jsonl","size":3}}],"kind":"dataset","version":2}}'
    assert manifest.to_bytes() == text.encode()
    assert read(build()) == manifest


def test_pieces__by_hand__all_but_the_last_have_the_full_size():
    assert DATA_PIECE_BYTES <= PIECE_BYTES
    file = DatasetFile(name="a", size=(2 << 20) + 5, hashes=(ABC, ZERO_HASH, ABC))
    assert file.pieces == (Piece(1 << 20, ABC), Piece(1 << 20, ZERO_HASH), Piece(5, ABC))
    assert DatasetFile(name="a", size=2 << 20, hashes=(ABC, ABC)).pieces == (Piece(1 << 20, ABC),) * 2
    assert DatasetFile(name="a", size=0, hashes=()).pieces == ()


@pytest.mark.parametrize(("size", "count"), [(0, 1), (1, 0), (1 << 20, 0), (1 << 20, 2), ((1 << 20) + 1, 1)])
def test_file__number_of_hashes_that_contradicts_its_size__is_refused(size: int, count: int):
    with pytest.raises(ValidationError, match="number of hashes"):
        DatasetFile(name="a", size=size, hashes=(ABC,) * count)


def test_from_bytes__another_hash__is_refused():
    data = canonical.to_bytes(build())
    with pytest.raises(ProtocolError, match=r"bad_manifest: .*do not have the hash") as caught:
        DatasetManifest.from_bytes(data, compute_blake3(data + b" "))
    assert caught.value.status == 502


@pytest.mark.parametrize(
    "text", [json.dumps(build()), json.dumps(build(), separators=(",", ":"))[:-1] + ',"kind":"dataset"}']
)
def test_from_bytes__another_encoding_of_the_same_values__is_refused(text: str):
    with pytest.raises(ProtocolError, match=r"bad_manifest: .*not canonical"):
        DatasetManifest.from_bytes(text.encode(), compute_blake3(text.encode()))


@pytest.mark.parametrize(
    "name",
    ["../x", "..", ".", "", "a/b", "/etc/passwd", "a\\b", "a..b", ".hidden", "a\n", "a\x00", "x" * 129, "‥", "．．",
     "%2e%2e", "é"],
)  # fmt: skip
def test_from_bytes__not_a_plain_file_name__is_refused(name: str):
    with pytest.raises(ProtocolError, match="bad_manifest"):
        read(build(file={"name": name}))


@pytest.mark.parametrize(
    "changes",
    [
        {"version": 1},
        {"version": "2"},
        {"version": True},
        {"kind": "anchor"},
        {"files": []},
        {"extra": 1},
        {"file": {"size": -3}},
        {"file": {"size": 3.0}},
        {"file": {"size": 1 << 45, "hashes": []}},
        {"file": {"hashes": []}},
        {"file": {"hashes": [ABC, ABC]}},
        {"file": {"hashes": [ABC.upper()]}},
        {"file": {"hashes": [ABC + "\n"]}},
        {"file": {"hashes": [ABC[:-1]]}},
        {"file": {"hashes": [None]}},
        {"file": {"sha256": ABC}},
    ],
)
def test_from_bytes__invalid_content__is_refused(changes: dict[str, Any]):
    with pytest.raises(ProtocolError, match="bad_manifest: the manifest of the data set is invalid"):
        read(build(**changes))


def test_from_bytes__same_name_twice__is_refused():
    twice = build()
    twice["files"] *= 2
    with pytest.raises(ProtocolError, match="lists a file name twice"):
        read(twice)


@pytest.mark.parametrize("data", [b"", b"{", b"null", b"[]", b"\xff", b"[" * 100_000])
def test_from_bytes__not_a_json_object__is_refused(data: bytes):
    with pytest.raises(ProtocolError, match="bad_manifest"):
        DatasetManifest.from_bytes(data, compute_blake3(data))


def test_from_bytes__too_large__is_refused_before_parsing():
    data = canonical.to_bytes(build()).ljust(MAX_DATASET_MANIFEST_BYTES + 1)
    with pytest.raises(ProtocolError, match="bad_manifest: the manifest of the data set exceeds 4194304 bytes"):
        DatasetManifest.from_bytes(data, compute_blake3(data))


def test_from_bytes__millions_of_wrong_values__give_a_short_error():
    with pytest.raises(ProtocolError) as caught:
        read(build(file={"hashes": ["x"] * 60_000}))
    assert len(caught.value.message) < 2000


def test_from_bytes__mutations__raise_no_other_error():
    rng, data = random.Random(20), canonical.to_bytes(build())
    codes = []
    for _ in range(1000):
        altered = bytearray(data)
        for _ in range(rng.randint(1, 4)):
            altered[rng.randrange(len(altered))] = rng.randrange(256)
        try:
            DatasetManifest.from_bytes(bytes(altered), compute_blake3(altered))
        except ProtocolError as error:
            codes.append(error.code)
    assert set(codes) == {"bad_manifest"}
    assert len(codes) > 300


def test_find_file__by_name():
    manifest = read(build())
    assert manifest.find_file("rows.jsonl") is manifest.files[0]
    assert manifest.find_file("other") is None
