"""The decoder of submissions in its sandbox; docs/threats.md, row 18."""

import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from covey.errors import ProtocolError
from covey.protocol.submission_file import parquet
from covey.protocol.submission_file.rows import Budget
from covey.protocol.submission_file.sandbox_frames import pack_call, unpack_rows
from covey.sandbox import CallLimits, Sandbox, SandboxError
from tests.fakes.cpu_unit import measure_cpu_unit

pytestmark = pytest.mark.integration

BUDGET = Budget(file_bytes=4 << 20, rows=16, prompt_tokens=64, completion_tokens=32)


def make_row(**changes):
    """Make one row in the schema of rollout files. `changes` replace its values."""
    plain = {
        "group": pa.array([0], pa.int32()),
        "sibling": pa.array([0], pa.int32()),
        "seed": pa.array([1], pa.int64()),
        "prompt": pa.array([[1]], parquet.SCHEMA.field("prompt").type),
        "tokens": pa.array([[1]], parquet.SCHEMA.field("tokens").type),
        "logprobs": pa.array([[0.0]], parquet.SCHEMA.field("logprobs").type),
        "proofs": pa.array([[b"x"]], parquet.SCHEMA.field("proofs").type),
        "finished": pa.array([True]),
        "reward": pa.array([1.0]),
        "contract": pa.array([""], parquet.SCHEMA.field("contract").type),
    } | changes
    schema = pa.schema([pa.field(name, column.type, nullable=False) for name, column in plain.items()])
    sink = io.BytesIO()
    table = pa.Table.from_arrays(list(plain.values()), schema=schema)
    pq.write_table(table, sink, compression="zstd", store_schema=False)
    return sink.getvalue()


def make_dictionary_bomb():
    """Make a file that stores one megabyte once and repeats it 10,000 times: 10 GB of proofs from a few kB."""
    words = pa.DictionaryArray.from_arrays(pa.array(np.zeros(10_000, np.int32)), pa.array([bytes(1 << 20)]))
    kind = pa.list_(pa.field("element", words.type, nullable=False))
    return make_row(proofs=pa.ListArray.from_arrays(pa.array([0, 10_000], pa.int32()), words, type=kind))


def make_zero_bomb():
    """Make a file with one prompt of 20 million tokens."""
    kind = parquet.SCHEMA.field("prompt").type
    zeros = pa.array(np.zeros(20_000_000, np.int32))
    return make_row(prompt=pa.ListArray.from_arrays(pa.array([0, len(zeros)], pa.int32()), zeros, type=kind))


@pytest.fixture(scope="module")
def decoder():
    with Sandbox(
        "covey.protocol.submission_file.codec:build_decoder", limits=CallLimits(cpu_seconds=30, memory_bytes=512 << 20)
    ) as made:
        made.call(pack_call(make_row(), BUDGET))
        yield made


def test_decoder__honest_row__comes_back(decoder):
    (row,) = unpack_rows(decoder.call(pack_call(make_row(), BUDGET)))
    assert (row.tokens, row.proofs, row.reward) == ((1,), (b"x",), 1.0)


@pytest.mark.parametrize("make", [make_dictionary_bomb, make_zero_bomb])
def test_decoder__bomb__refused_by_what_it_claims_in_bounded_memory(decoder, make):
    bomb = make()
    assert len(bomb) < 200_000
    outcome = decoder.run(pack_call(bomb, BUDGET))
    assert outcome.cpu_seconds < 100 * measure_cpu_unit()
    assert isinstance(outcome.error, ProtocolError | SandboxError)
    assert outcome.error.code in ("oversized", "malformed", "sandbox_memory")
    assert outcome.peak_bytes < 700 << 20  # the memory limit and the libraries
    (row,) = unpack_rows(decoder.call(pack_call(make_row(), BUDGET)))
    assert row.tokens == (1,)
