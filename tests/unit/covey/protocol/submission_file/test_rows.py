import io
import json
import random
import struct
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from covey.errors import ProtocolError
from covey.protocol.submission_file import codec, parquet
from covey.protocol.submission_file.codec import decode, encode
from covey.protocol.submission_file.rows import Budget, Rollout, count_units
from covey.protocol.submission_file.sandbox_frames import pack_call, unpack_rows

pytestmark = pytest.mark.unit

BUDGET = Budget(file_bytes=1 << 20, rows=16, prompt_tokens=8, completion_tokens=64)
ROW = Rollout(
    group=0,
    sibling=3,
    seed=17,
    prompt=(2, 40),
    tokens=(41, 1),
    logprobs=(-0.5, -0.25),
    proofs=(b"\x01\x02",),
    finished=True,
    reward=1.0,
)
TOKEN = st.integers(0, 2**31 - 1)


@st.composite
def rollouts(draw, group, sibling):
    tokens = draw(st.lists(TOKEN, min_size=1, max_size=64))
    logprobs = st.floats(max_value=0, allow_nan=False, allow_infinity=False, width=32)
    return Rollout(
        group=group,
        sibling=sibling,
        seed=draw(st.integers(0, 2**63 - 1)),
        prompt=tuple(draw(st.lists(TOKEN, min_size=1, max_size=8))),
        tokens=tuple(tokens),
        logprobs=tuple(draw(st.lists(logprobs, min_size=len(tokens), max_size=len(tokens)))),
        proofs=tuple(draw(st.lists(st.binary(max_size=258), max_size=3))),
        finished=draw(st.booleans()),
        reward=draw(st.floats(allow_nan=False, allow_infinity=False)),
        contract=draw(st.just("") | st.text(st.characters(codec="utf-8"), max_size=66)),
    )


@st.composite
def files(draw):
    slots = draw(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=6, unique=True))
    return [draw(rollouts(group, sibling)) for group, sibling in slots]


def write(rows, schema=parquet.SCHEMA, **options):
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), sink, **options)
    return sink.getvalue()


def to_row(**changes):
    return {name: getattr(ROW, name) for name in parquet.SCHEMA.names} | changes


def make_nullable():
    """Return the same columns, but with null allowed in them and in their lists."""
    fields = []
    for field in parquet.SCHEMA:
        kind = pa.list_(pa.field("element", field.type.value_type)) if pa.types.is_list(field.type) else field.type
        fields.append(pa.field(field.name, kind))
    return pa.schema(fields)


def refuse(data, budget=BUDGET):
    with pytest.raises(ProtocolError) as caught:
        decode(data, budget)
    return caught.value.code


@settings(max_examples=60, deadline=None)
@given(files())
def test_encode__any_rows__decode_sorted_also_through_sandbox_frames(rows):
    data = encode(rows)
    expected = sorted(rows, key=lambda row: (row.group, row.sibling))
    assert decode(data, BUDGET) == expected
    assert unpack_rows(codec.decode_framed(pack_call(data, BUDGET))) == expected
    assert encode(rows[::-1]) == data
    assert count_units(rows) == sum(len(row.tokens) for row in rows)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"prompt": []}, "oversized"),
        ({"prompt": [1] * 9}, "oversized"),
        ({"tokens": [], "logprobs": []}, "oversized"),
        ({"tokens": [1] * 65, "logprobs": [0.0] * 65}, "oversized"),
        ({"logprobs": [-0.5]}, "malformed"),
        ({"logprobs": [-0.5, float("nan")]}, "malformed"),
        ({"logprobs": [-0.5, float("-inf")]}, "malformed"),
        ({"proofs": [bytes(259)]}, "oversized"),
        ({"contract": "x" * 67}, "oversized"),
        ({"group": -1}, "malformed"),
        ({"sibling": -1}, "malformed"),
        ({"seed": -1}, "malformed"),
        ({"tokens": [41, -1]}, "malformed"),
        ({"prompt": [-(2**31)]}, "malformed"),
        ({"reward": float("nan")}, "malformed"),
        ({"reward": float("inf")}, "malformed"),
    ],
)
def test_decode__invalid_value__refused(changes, code):
    assert refuse(write([to_row(), to_row(**changes)])) == code


@pytest.mark.parametrize("name", parquet.SCHEMA.names)
def test_decode__nullable_columns_and_nulls__refused(name):
    schema = make_nullable()
    assert refuse(write([to_row(), to_row(**{name: None})], schema)) in ("schema", "malformed")
    if pa.types.is_list(schema.field(name).type):
        assert refuse(write([to_row(**{name: [None, None]})], schema)) in ("schema", "malformed")


@pytest.mark.parametrize(
    "schema",
    [
        pa.schema(list(parquet.SCHEMA)[:-1]),
        pa.schema([*parquet.SCHEMA, pa.field("more", pa.int8())]),
        pa.schema(list(parquet.SCHEMA)[::-1]),
        pa.schema([*list(parquet.SCHEMA)[:-1], pa.field("reward", pa.float32(), nullable=False)]),
        pa.schema([*list(parquet.SCHEMA)[:-1], pa.field("Reward", pa.float64(), nullable=False)]),
        pa.schema([pa.field("group", pa.list_(pa.list_(pa.list_(pa.int32()))))]),
        pa.schema([pa.field("t", pa.dictionary(pa.int32(), pa.string()))]),
        pa.schema([pa.field("s", pa.struct([pa.field("x", pa.map_(pa.string(), pa.int64()))]))]),
    ],
)
def test_decode__another_schema__refused(schema):
    assert refuse(write([], schema)) == "schema"


def test_decode__budget__bounds_file_rows_and_bytes():
    rows = [replace(ROW, sibling=i) for i in range(16)]
    data = encode(rows)
    assert len(decode(data, BUDGET)) == 16
    assert refuse(data, replace(BUDGET, file_bytes=len(data) - 1)) == "oversized"
    assert refuse(data, replace(BUDGET, rows=15)) == "oversized"
    assert refuse(write([to_row(proofs=[bytes(258)] * 4000)])) == "oversized"


def test_decoded_bytes__by_hand__covers_the_largest_valid_file():
    assert BUDGET.decoded_bytes == 4096 + 16 * (64 + 66 + 4 * 8 + 8 * 64 + 262 * 3)
    largest = replace(ROW, prompt=(1,) * 8, tokens=(1,) * 64, logprobs=(-1.0,) * 64, proofs=(bytes(258),) * 2)
    largest = replace(largest, contract="x" * 66)
    assert len(decode(encode([replace(largest, sibling=i) for i in range(16)]), BUDGET)) == 16


def test_decoded_bytes__short_proof_window__covers_the_proofs_of_an_honest_file():
    short = replace(BUDGET, proof_window=4)
    assert short.decoded_bytes == 4096 + 16 * (64 + 66 + 4 * 8 + 8 * 64 + 262 * 17)
    largest = replace(ROW, prompt=(1,) * 8, tokens=(1,) * 64, logprobs=(-1.0,) * 64, proofs=(bytes(258),) * 16)
    data = encode([replace(largest, sibling=i) for i in range(16)])
    assert len(decode(data, short)) == 16
    assert len(unpack_rows(codec.decode_framed(pack_call(data, short)))) == 16
    assert refuse(data) == "oversized"


@pytest.mark.parametrize(
    "data", [b"", b"PAR1", b"PAR1" * 100, bytes(1000), b"PAR1" + bytes(50) + b"\xff\xff\xff\x7fPAR1"]
)
def test_decode__not_parquet__refused(data):
    assert refuse(data) == "malformed"


def test_decode__false_row_count__refused():
    """The footer's number of rows, a Thrift zigzag varint after the schema, is altered in place."""
    data = bytearray(encode([replace(ROW, sibling=i) for i in range(16)]))
    size = struct.unpack("<I", data[-8:-4])[0]
    footer = len(data) - 8 - size
    outcomes = set()
    for offset in range(footer, len(data) - 8):
        if data[offset] == 32:  # The zigzag form of 16.
            altered = bytes(data[:offset]) + b"\x7e" + bytes(data[offset + 1 :])
            try:
                rows = decode(altered, BUDGET)
            except ProtocolError as error:
                outcomes.add(error.code)
            else:
                assert len(rows) <= BUDGET.rows
    assert outcomes


def test_decode__1000_mutations__refused_or_within_the_budget():
    """Files are decoded in this process, so that a crash of the reader would be noticed.

    In use, the sandbox contains crashes that are not known yet.
    """
    rng, data = (
        random.Random(19),
        encode([replace(ROW, sibling=i, tokens=(5,) * 40, logprobs=(-1.0,) * 40) for i in range(8)]),
    )
    codes = []
    for _ in range(1000):
        altered = bytearray(data)
        for _ in range(rng.choice((1, 1, 2, 8))):
            altered[rng.randrange(len(altered))] = rng.randrange(256)
        if rng.random() < 0.2:
            del altered[rng.randrange(len(altered)) :]
        try:
            rows = decode(bytes(altered), BUDGET)
        except ProtocolError as error:
            codes.append(error.code)
        else:
            assert len(rows) <= BUDGET.rows
            assert count_units(rows) <= BUDGET.rows * BUDGET.completion_tokens
    assert set(codes) <= {"malformed", "schema", "oversized"}
    assert len(codes) > 300


def test_decode__repeated_value_through_a_dictionary__refused():
    """One kilobyte that repeats the same long proof a thousand times."""
    data = write([to_row(proofs=[bytes(250)] * 20_000)], use_dictionary=True, compression="zstd")
    assert len(data) < 10_000
    assert refuse(data) == "oversized"


def test_decode__many_rows_of_zeros__refused_by_the_footer():
    table = pa.table({"t": pa.array(np.zeros(1_000_000, dtype=np.int64))})
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd")
    assert refuse(sink.getvalue()) == "schema"


def test_pack_call__budget_and_file__follow_a_length():
    payload = pack_call(b"file", BUDGET)
    size = int.from_bytes(payload[:4], "big")
    assert json.loads(payload[4 : 4 + size])["rows"] == 16
    assert payload[4 + size :] == b"file"
