"""Records of policies: their hash recomputed, their weights file read by safetensors, and hostile bytes."""

import json
import math
from collections import deque
from typing import Any

import pytest
import safetensors
from eth_abi.abi import encode
from eth_utils.crypto import keccak
from hypothesis import given, settings
from hypothesis import strategies as st

from covey.errors import ProtocolError
from covey.protocol import policy_record
from covey.protocol.ids import ZERO_HASH, Hash, hash_from_bytes
from covey.protocol.pieces import compute_digest
from covey.protocol.policy_record import (
    DTYPE_BYTES,
    MAX_RECORD_BYTES,
    FileRow,
    PolicyRecord,
    TensorRow,
    is_allowed_file,
)

pytestmark = pytest.mark.unit

ONE, TWO = Hash("0x" + "11" * 32), Hash("0x" + "22" * 32)
hashes = st.binary(min_size=32, max_size=32).map(hash_from_bytes)
tensor_names = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1, max_size=12)
rows = st.builds(
    TensorRow,
    name=tensor_names,
    dtype=st.sampled_from(sorted(DTYPE_BYTES)),
    shape=st.lists(st.integers(1, 4), max_size=4).map(tuple),
    digest=hashes,
)
file_rows = st.builds(
    FileRow, name=st.from_regex(r"[a-z_]{1,8}\.(json|txt)", fullmatch=True), size=st.integers(0, 1 << 30), digest=hashes
).filter(lambda row: row.name != "record.json")


@st.composite
def records(draw: st.DrawFn) -> PolicyRecord:
    tensors = draw(st.lists(rows, min_size=1, max_size=6, unique_by=lambda row: row.name))
    files = draw(st.lists(file_rows, max_size=3, unique_by=lambda row: row.name))
    return PolicyRecord(
        pool=draw(st.integers(1, (1 << 63) - 1)),
        step=draw(st.integers(0, (1 << 63) - 1)),
        parent=draw(hashes),
        tensors=tuple(sorted(tensors, key=lambda row: row.layout_key)),
        files=tuple(sorted(files, key=lambda row: row.name)),
    )


def build(**changes: Any) -> dict[str, Any]:
    """Return the JSON of a small record with some values changed."""
    tensor = {"name": "a.weight", "dtype": "BF16", "shape": [2, 3], "digest": ONE} | changes.pop("tensor", {})
    file = {"name": "config.json", "size": 10, "digest": TWO} | changes.pop("file", {})
    return {"version": 2, "pool": 1, "step": 5, "parent": ZERO_HASH, "tensors": [tensor], "files": [file]} | changes


def build_record() -> PolicyRecord:
    return PolicyRecord.model_validate_json(json.dumps(build()))


def hash_leaf(types: str, *values: Any) -> bytes:
    return keccak(keccak(encode(types.split(), values)))


def join_leaves(leaves: list[bytes]) -> bytes:
    """Return the root of OpenZeppelin's tree: sorted leaves, always the two first nodes joined and put last."""
    nodes = deque(sorted(leaves))
    while len(nodes) > 1:
        nodes.append(keccak(b"".join(sorted((nodes.popleft(), nodes.popleft())))))
    return nodes[0]


@given(records())
def test_record__any_record__round_trips_under_its_hash(record: PolicyRecord):
    assert PolicyRecord.from_bytes(record.to_bytes(), record.compute_hash()) == record


@settings(max_examples=30)
@given(records())
def test_compute_hash__any_record__is_the_root_of_the_documented_leaves(record: PolicyRecord):
    parent = bytes.fromhex(record.parent[2:])
    policy = ("covey/policy", record.pool, record.step, parent, len(record.tensors), len(record.files))
    leaves = [hash_leaf("string uint256 uint64 bytes32 uint64 uint64", *policy)]
    for i, row in enumerate(record.tensors):
        values = ("covey/tensor", i, row.name, row.dtype, list(row.shape), bytes.fromhex(row.digest[2:]))
        leaves.append(hash_leaf("string uint64 string string uint64[] bytes32", *values))
    for i, file in enumerate(record.files):
        values = ("covey/file", i, file.name, file.size, bytes.fromhex(file.digest[2:]))
        leaves.append(hash_leaf("string uint64 string uint64 bytes32", *values))
    assert record.compute_hash() == "0x" + join_leaves(leaves).hex()


def test_compute_hash__fixed_record__never_changes():
    """Published hashes are on chain, so a change of the leaves needs a new version of the record."""
    assert build_record().compute_hash() == "0x0171b05f57477e22400967fd98ad6babb6e08f9334ef1103d2922cfc9ad3eb16"


@pytest.mark.parametrize(
    "changes",
    [
        {"pool": 2},
        {"step": 6},
        {"parent": ONE},
        {"files": []},
        {"tensor": {"name": "b.weight"}},
        {"tensor": {"dtype": "F16"}},
        {"tensor": {"shape": [3, 2]}},
        {"tensor": {"shape": [6]}},
        {"tensor": {"digest": TWO}},
        {"file": {"name": "other.json"}},
        {"file": {"size": 11}},
        {"file": {"digest": ONE}},
    ],
)
def test_from_bytes__a_valid_record_of_another_content__is_refused(changes: dict[str, Any]):
    data = json.dumps(build(**changes)).encode()
    PolicyRecord.model_validate_json(data)
    with pytest.raises(ProtocolError, match="bad_record: the record does not have the hash"):
        PolicyRecord.from_bytes(data, build_record().compute_hash())


def test_from_bytes__every_bit_flipped__is_refused():
    record = build_record()
    data, expected = record.to_bytes(), record.compute_hash()
    for place in range(len(data)):
        for bit in range(8):
            wrong = bytearray(data)
            wrong[place] ^= 1 << bit
            with pytest.raises(ProtocolError, match="bad_record"):
                PolicyRecord.from_bytes(bytes(wrong), expected)


def test_from_bytes__too_large__is_refused_before_parsing():
    record = build_record()
    data, expected = record.to_bytes(), record.compute_hash()
    assert PolicyRecord.from_bytes(data.ljust(MAX_RECORD_BYTES), expected) == record
    with pytest.raises(ProtocolError, match="bad_record: the record exceeds 33554432 bytes"):
        PolicyRecord.from_bytes(data.ljust(MAX_RECORD_BYTES + 1), expected)


@pytest.mark.parametrize(
    "values",
    [
        build(version=1),
        build(pool=0),
        build(step=-1),
        build(step="5"),
        build(step=1 << 63),
        build(parent=None),
        build(parent="0x" + "AA" * 32),
        build(more=1),
        build(tensors=[]),
        build(files=None),
        build(tensor={"name": ""}),
        build(tensor={"name": "a b"}),
        build(tensor={"name": "é"}),
        build(tensor={"name": "a" * 513}),
        build(tensor={"name": "__metadata__"}),
        build(tensor={"dtype": "bf16"}),
        build(tensor={"dtype": "BOOL"}),
        build(tensor={"shape": [0]}),
        build(tensor={"shape": [-1]}),
        build(tensor={"shape": [1.5]}),
        build(tensor={"shape": [1] * 9}),
        build(tensor={"shape": [1 << 40]}),
        build(tensor={"shape": [(1 << 40) - 1] * 8}),
        build(tensor={"digest": ONE[2:]}),
        build(tensor={"size": 12}),
        build(file={"name": "../config.json"}),
        build(file={"size": -1}),
        build(file={"size": (1 << 30) + 1}),
        build(files=[{"name": f"a{i:02}.txt", "size": 0, "digest": ONE} for i in range(65)]),
    ],
)
def test_from_bytes__value_outside_its_range__is_refused(values: dict[str, Any]):
    with pytest.raises(ProtocolError, match="bad_record: the record is invalid") as caught:
        PolicyRecord.from_bytes(json.dumps(values).encode(), ZERO_HASH)
    assert caught.value.status == 502


@pytest.mark.parametrize("data", [b"", b"{", b"null", b"[]", b"\xff", b"[" * 10_000])
def test_from_bytes__not_a_json_object__is_refused(data: bytes):
    with pytest.raises(ProtocolError, match="bad_record"):
        PolicyRecord.from_bytes(data, ZERO_HASH)


@pytest.mark.parametrize("more", [0, 1])
def test_record__all_tensors__have_at_most_two_tebibytes(more: int):
    """Two tensors have exactly this size, and a third one byte more."""
    rows = [{"name": f"t{i}", "dtype": "BF16", "shape": [1 << 39], "digest": ONE} for i in range(2)]
    rows += [{"name": "t2", "dtype": "U8", "shape": [], "digest": ONE}] * more
    data = json.dumps(build(tensors=rows)).encode()
    if not more:
        assert PolicyRecord.model_validate_json(data).size == 1 << 41
    else:
        with pytest.raises(ProtocolError, match=r"(?s)bad_record: .*2199023255553 bytes, but at most 2199023255552"):
            PolicyRecord.from_bytes(data, ZERO_HASH)


def build_rows(*names_and_dtypes: tuple[str, str]) -> list[dict[str, Any]]:
    return [{"name": name, "dtype": dtype, "shape": [1], "digest": ONE} for name, dtype in names_and_dtypes]


@pytest.mark.parametrize(
    "changes",
    [
        {"tensors": build_rows(("b", "BF16"), ("a", "BF16"))},
        {"tensors": build_rows(("a", "BF16"), ("b", "F32"))},
        {"tensors": build_rows(("a", "F16"), ("b", "BF16"))},
        {"tensors": build_rows(("a", "BF16"), ("a", "BF16"))},
        {"tensors": build_rows(("a", "F32"), ("a", "BF16"))},
        {"files": [{"name": name, "size": 0, "digest": ONE} for name in ("b.txt", "a.txt")]},
        {"files": [{"name": "a.txt", "size": 0, "digest": ONE}] * 2},
    ],
)
def test_from_bytes__wrong_order_or_a_name_twice__is_refused(changes: dict[str, Any]):
    with pytest.raises(ProtocolError, match=r"(?s)bad_record: .*are not sorted, or a name occurs twice"):
        PolicyRecord.from_bytes(json.dumps(build(**changes)).encode(), ZERO_HASH)


def test_record__sections_of_every_dtype__wide_ones_first():
    dtypes = ["F64", "I64", "F32", "I32", "BF16", "F16", "I16", "F8_E4M3", "I8", "U8"]
    assert sorted(DTYPE_BYTES, key=lambda d: TensorRow(name="a", dtype=d, shape=(), digest=ONE).layout_key) == dtypes


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".json",
        "..json",
        "a..json",
        "a/b.json",
        "/etc/a.json",
        "..\\a.json",
        "C:a.json",
        "a.json\n",
        "a.json\0",
        "a b.json",
        "-a.json",
        "ä.json",
        "a" * 124 + ".json",
        "a.py",
        "a.bin",
        "a.JSON",
        "pytorch_model.bin",
        "model.safetensors",
        "record.json",
        "adapter_config.json",
    ],
)
def test_is_allowed_file__paths_code_weights_and_covey_files__are_not(name: str):
    assert not is_allowed_file(name)
    with pytest.raises(ProtocolError, match="bad_record"):
        PolicyRecord.from_bytes(json.dumps(build(file={"name": name})).encode(), ZERO_HASH)


@pytest.mark.parametrize(
    "name", ["config.json", "chat_template.jinja", "merges.txt", "tokenizer.model", "_a-1.json", "a" * 123 + ".json"]
)
def test_is_allowed_file__configuration_and_tokenizers__are(name: str):
    assert is_allowed_file(name)


def test_size__and_has_same_layout__ignore_digests_and_files():
    record, other = (
        build_record(),
        PolicyRecord.model_validate_json(json.dumps(build(tensor={"digest": TWO}, files=[]))),
    )
    assert record.size == 12
    assert record.has_same_layout(other)
    for changed in ({"shape": [6]}, {"shape": [3, 2]}, {"dtype": "F16"}, {"name": "b"}):
        assert not record.has_same_layout(PolicyRecord.model_validate_json(json.dumps(build(tensor=changed))))


@given(records(), st.randoms())
def test_header__and_tensors__are_a_file_that_safetensors_reads(record: PolicyRecord, rng: Any):
    contents = [rng.randbytes(row.size) for row in record.tensors]
    found = dict(safetensors.deserialize(record.header + b"".join(contents)))
    assert len(found) == len(record.tensors)
    start = len(record.header)
    assert start % 4096 == 0
    for row, content in zip(record.tensors, contents, strict=True):
        assert start % DTYPE_BYTES[row.dtype] == 0
        assert found[row.name]["dtype"] == row.dtype
        assert tuple(found[row.name]["shape"]) == row.shape
        assert bytes(found[row.name]["data"]) == content
        assert len(content) == math.prod(row.shape) * DTYPE_BYTES[row.dtype]
        start += row.size


def test_header__small_record__by_hand():
    text = b'{"__metadata__":{"format":"pt"},"a.weight":{"data_offsets":[0,12],"dtype":"BF16","shape":[2,3]}}'
    assert build_record().header == (4088).to_bytes(8, "little") + text.ljust(4088)


@pytest.mark.parametrize(("name_bytes", "pages"), [(1, 1), (3, 2)])
def test_header__text_that_fills_a_page_exactly__takes_no_further_page(name_bytes: int, pages: int):
    """Eight bytes of length and a text of 4088 bytes are one page."""
    long = {"dtype": "U8", "shape": (), "digest": ONE}
    rows = [TensorRow(name=f"{i}" * 500, **long) for i in range(7)]
    rest = 4088 - (len(policy_record.build_header(tuple(rows)).strip()) - 8)
    last = len(',"":{"data_offsets":[7,8],"dtype":"U8","shape":[]}')
    rows.append(TensorRow(name="z" * (rest - last - 1 + name_bytes), **long))
    assert len(policy_record.build_header(tuple(rows))) == pages * 4096


def test_digest__of_the_tensor_in_the_file__is_that_of_its_bytes():
    content = bytes(range(12))
    record = PolicyRecord.model_validate_json(json.dumps(build(tensor={"digest": compute_digest(content)})))
    ((_, tensor),) = safetensors.deserialize(record.header + content)
    assert compute_digest(bytes(tensor["data"])) == record.tensors[0].digest
