import hashlib
import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from covey.errors import ProtocolError
from covey.protocol import canonical
from covey.protocol.manifest import (
    DATA_SHARD_BYTES,
    MAX_MANIFEST_BYTES,
    DatasetManifest,
    DatasetName,
    File,
    Manifest,
    PolicyName,
    Shard,
)

pytestmark = pytest.mark.unit

ZERO = "0x" + "00" * 32
names = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,20}(\.[a-z]{1,5})?", fullmatch=True)


@st.composite
def files(draw, name):
    contents = draw(st.lists(st.binary(min_size=1, max_size=9), max_size=4))
    shards = tuple(Shard(size=len(c), sha256=canonical.sha256(c)) for c in contents)
    whole = b"".join(contents)
    return File(name=name, size=len(whole), sha256=canonical.sha256(whole), shards=shards)


@st.composite
def manifests(draw):
    chosen = draw(st.lists(names, min_size=1, max_size=4, unique=True))
    return Manifest(
        pool=draw(st.integers(1, 2**63 - 1)),
        step=draw(st.integers(0, 2**63 - 1)),
        files=tuple(draw(files(name)) for name in chosen),
    )


def build(**changes):
    shard = {"size": 3, "sha256": ZERO}
    file = {"name": "a.bin", "size": 3, "sha256": ZERO, "shards": [shard]}
    file |= changes.pop("file", {})
    return {"version": 1, "pool": 1, "step": 0, "kind": "anchor", "files": [file]} | changes


def read(values):
    data = json.dumps(values).encode()
    return Manifest.from_bytes(data, canonical.sha256(data))


@given(manifests())
def test_manifest__any_manifest__round_trips_under_its_hash(manifest):
    data = manifest.to_bytes()
    assert manifest.compute_hash() == "0x" + hashlib.sha256(data).hexdigest()
    assert Manifest.from_bytes(data, manifest.compute_hash()) == manifest
    assert manifest.size == sum(shard.size for file in manifest.files for shard in file.shards)


def test_manifest__worked_example__has_this_text():
    shard = Shard(size=3, sha256=canonical.sha256(b"abc"))
    file = File(name="a.bin", size=3, sha256=canonical.sha256(b"abc"), shards=(shard,))
    digest = "0xba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    expected = (
        f'{{"files":[{{"name":"a.bin","sha256":"{digest}","shards":[{{"sha256":"{digest}","size":3}}],"size":3}}],'
        '"kind":"anchor","pool":1,"step":7,"version":1}'
    )
    assert Manifest(pool=1, step=7, files=(file,)).to_bytes() == expected.encode()


def test_from_bytes__another_hash__refused():
    data = json.dumps(build()).encode()
    assert Manifest.from_bytes(data, canonical.sha256(data)).step == 0
    with pytest.raises(ProtocolError, match="bad_manifest: the manifest does not have the expected hash"):
        Manifest.from_bytes(data, canonical.sha256(data + b" "))


@pytest.mark.parametrize(
    "name",
    [
        "../x",
        "..",
        ".",
        "",
        "a/b",
        "/etc/passwd",
        "a\\b",
        "a..b",
        ".hidden",
        "a\n",
        "a\x00",
        "x" * 129,
        "‥",
        "．．",
        "%2e%2e",
        "é",
    ],
)
def test_from_bytes__not_a_plain_file_name__refused(name):
    with pytest.raises(ProtocolError, match="bad_manifest"):
        read(build(file={"name": name}))


@pytest.mark.parametrize(
    "changes",
    [
        {"pool": 0},
        {"pool": 1 << 63},
        {"pool": "1"},
        {"pool": True},
        {"step": -1},
        {"step": 1.0},
        {"version": 2},
        {"kind": "delta"},
        {"files": []},
        {"extra": 1},
        {"file": {"size": 4}},
        {"file": {"size": -3}},
        {"file": {"shards": []}},
        {"file": {"shards": [{"size": 0, "sha256": ZERO}]}},
        {"file": {"shards": [{"size": 3, "sha256": ZERO.upper()}]}},
        {"file": {"shards": [{"size": 3, "sha256": ZERO + "\n"}]}},
        {"file": {"shards": [{"size": 3, "sha256": ZERO[:-1]}]}},
        {"file": {"shards": [{"size": 5, "sha256": ZERO}, {"size": -2, "sha256": ZERO}]}},
    ],
)
def test_from_bytes__invalid_content__refused(changes):
    with pytest.raises(ProtocolError, match="bad_manifest: the manifest is invalid"):
        read(build(**changes))


def test_from_bytes__same_name_twice__refused():
    twice = build()
    twice["files"] *= 2
    with pytest.raises(ProtocolError, match="lists a file name twice"):
        read(twice)


def test_from_bytes__too_large__refused_before_hashing():
    with pytest.raises(ProtocolError, match="the manifest exceeds"):
        Manifest.from_bytes(bytes(MAX_MANIFEST_BYTES + 1), ZERO)


def test_from_bytes__deeply_nested__refused():
    data = b"[" * 100_000
    with pytest.raises(ProtocolError, match="bad_manifest"):
        Manifest.from_bytes(data, canonical.sha256(data))


def test_from_bytes__mutations__raise_no_other_error():
    rng, data = random.Random(20), json.dumps(build()).encode()
    codes = []
    for _ in range(1000):
        altered = bytearray(data)
        for _ in range(rng.randint(1, 4)):
            altered[rng.randrange(len(altered))] = rng.randrange(256)
        try:
            Manifest.from_bytes(bytes(altered), canonical.sha256(bytes(altered)))
        except ProtocolError as error:
            codes.append(error.code)
    assert set(codes) == {"bad_manifest"}
    assert len(codes) > 700


def test_manifest__frozen():
    manifest = read(build())
    with pytest.raises(ValidationError):
        manifest.step = 1


def test_policy_name__by_hand__paths_name_pool_step_and_hash():
    name = PolicyName(pool=1, step=3, manifest_hash=ZERO)
    shard = "0x" + "ab" * 32
    assert name.path == f"/policies/1/3/{ZERO}"
    assert name.get_shard_path(shard) == f"/shards/{shard}?pool=1&step=3&manifest={ZERO}"
    assert PolicyName.parse({"pool": "1", "step": "3", "manifest": ZERO}) == name


@pytest.mark.parametrize(
    "wrong",
    [{"pool": ""}, {"pool": "-1"}, {"step": "9" * 19}, {"step": "٣"}, {"step": "3\n"}, {"manifest": ZERO[:-1]},
     {"manifest": ZERO + "\n"}, {"manifest": "0x" + "AB" * 32}, {"manifest": "../" + ZERO}],
)  # fmt: skip
def test_policy_name__malformed__refused(wrong):
    with pytest.raises(ProtocolError, match="not_found") as caught:
        PolicyName.parse({"pool": "1", "step": "3", "manifest": ZERO} | wrong)
    assert caught.value.status == 404
    with pytest.raises(ProtocolError, match="not_found"):
        PolicyName.parse({})


def test_dataset_name__paths__parse_back():
    name = DatasetName(digest=ZERO)
    assert name.path == f"/datasets/{ZERO}"
    assert name.get_shard_path(ZERO) == f"/shards/{ZERO}?dataset={ZERO}"
    assert DatasetName.parse({"dataset": ZERO}) == name


@pytest.mark.parametrize("wrong", [{}, {"dataset": ""}, {"dataset": "0x12"}, {"dataset": "../" + ZERO}])
def test_dataset_name__anything_else__not_found(wrong):
    with pytest.raises(ProtocolError, match="not_found"):
        DatasetName.parse(wrong)


def build_dataset(*sizes):
    shards = tuple(Shard(size=size, sha256=ZERO) for size in sizes)
    return DatasetManifest(files=(File(name="rows.jsonl", size=sum(sizes), sha256=ZERO, shards=shards),))


def test_dataset_manifest__even_shards__round_trips_under_its_digest():
    manifest = build_dataset(DATA_SHARD_BYTES, 5)
    name = manifest.compute_name()
    assert name.read_manifest(manifest.to_bytes()) == manifest
    assert b'"kind":"dataset"' in manifest.to_bytes()
    with pytest.raises(ProtocolError, match="bad_manifest"):
        DatasetName(digest=ZERO).read_manifest(manifest.to_bytes())
    with pytest.raises(ProtocolError, match="the manifest is invalid"):
        Manifest.from_bytes(manifest.to_bytes(), name.digest)


@pytest.mark.parametrize("sizes", [(5, 5), (DATA_SHARD_BYTES + 1,), (DATA_SHARD_BYTES, DATA_SHARD_BYTES - 1, 1)])
def test_dataset_manifest__uneven_shards__are_refused(sizes):
    """The shard of a row is computed from its offset, which requires shards of equal size."""
    with pytest.raises(ValidationError, match="shard"):
        build_dataset(*sizes)
