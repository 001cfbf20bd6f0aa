"""The file of a submission: one row per rollout, Parquet, written by workers and read by strangers.

`encode` is deterministic.  `decode` is for hostile bytes: it checks sizes, schema and decoded size before any row is
materialised, and belongs into a process that may die (`covey.sandbox` with `decode_json`).
"""

import io
import json
import math
import struct
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from covey.errors import ProtocolError
from covey.protocol.ids import GroupId
from covey.protocol.pages import measure

SCHEMA = pa.schema(
    [
        pa.field("group", pa.int32(), nullable=False),
        pa.field("sibling", pa.int32(), nullable=False),
        pa.field("seed", pa.int64(), nullable=False),
        pa.field("prompt", pa.list_(pa.field("element", pa.int32(), nullable=False)), nullable=False),
        pa.field("tokens", pa.list_(pa.field("element", pa.int32(), nullable=False)), nullable=False),
        pa.field("logprobs", pa.list_(pa.field("element", pa.float32(), nullable=False)), nullable=False),
        pa.field("proofs", pa.list_(pa.field("element", pa.binary(), nullable=False)), nullable=False),
        pa.field("finished", pa.bool_(), nullable=False),
        pa.field("reward", pa.float64(), nullable=False),
    ]
)

_CODES = {pa.int32(): "i", pa.float32(): "f"}
"""Of `struct`, for the numbers in lists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """One row: a completion with its proofs and reward.

    Example: Rollout(group=0, sibling=3, seed=17, prompt=(2, 40), tokens=(41, 1), logprobs=(-0.1, -0.2),
    proofs=(b"...",), finished=True, reward=1.0).
    """

    group: GroupId
    sibling: int
    seed: int
    """The slot's 63-bit sampling seed."""
    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    """Completion tokens, with the end token where there is one."""
    logprobs: tuple[float, ...]
    """float32, of the unmodified model, one a token."""
    proofs: tuple[bytes, ...]
    """One TOPLOC proof per window of the pool's `proof_window` tokens, the last may be short."""
    finished: bool
    """Whether the last token is the end token."""
    reward: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What a file may hold.  Decoded bytes are estimated from the metadata and enforced batch by batch."""

    file_bytes: int
    rows: int
    prompt_tokens: int
    completion_tokens: int
    proof_bytes: int = 258
    proof_window: int = 32
    """Tokens per proof."""

    @property
    def column_values(self) -> int:
        """Upper bound of the leaf values of any column of a lawful file."""
        return self.rows * max(self.prompt_tokens, self.completion_tokens)

    @property
    def decoded_bytes(self) -> int:
        """Upper bound of the Arrow size of a lawful file."""
        per_row = 64 + 4 * self.prompt_tokens + 8 * self.completion_tokens
        proofs = 1 + self.completion_tokens // self.proof_window
        return 4096 + self.rows * (per_row + (self.proof_bytes + 4) * proofs)


DECODED_FACTOR = 4
"""How far the bound from page headers may be above the lawful size: it counts a number as 8 bytes, and levels too."""


def encode(rollouts: Iterable[Rollout]) -> bytes:
    """Rows in order of (group, sibling) -> Parquet bytes; equal rows give equal bytes."""
    rows = sorted(rollouts, key=lambda r: (r.group, r.sibling))
    columns = {name: [getattr(row, name) for row in rows] for name in SCHEMA.names}
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pydict(columns, schema=SCHEMA), sink, compression="zstd", use_dictionary=False)
    return sink.getvalue()


def decode(data: bytes, budget: Budget) -> list[Rollout]:
    """Hostile bytes -> rows; raise ProtocolError "oversized", "malformed" or "schema"."""
    if len(data) > budget.file_bytes:
        raise ProtocolError("oversized", f"the file has {len(data)} bytes, over {budget.file_bytes}")
    try:
        file = pq.ParquetFile(io.BytesIO(data), memory_map=False)
        _require_metadata(file, budget)
        _require_pages(data, file, budget)
        rows = _read(file, budget)
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
        raise ProtocolError("malformed", f"not a readable Parquet file: {type(error).__name__}") from error
    return [_to_rollout(row, budget) for row in rows]


def decode_json(payload: bytes) -> bytes:
    """For the sandbox: 4-byte length, budget as JSON, file -> rows as JSON, lists of numbers and proofs as hex."""
    size = int.from_bytes(payload[:4], "big")
    budget = Budget(**json.loads(payload[4 : 4 + size]))
    rows = [_to_json(row) for row in decode(payload[4 + size :], budget)]
    return json.dumps(rows, separators=(",", ":")).encode()


def pack_call(data: bytes, budget: Budget) -> bytes:
    """Arguments of `decode_json`."""
    head = json.dumps(asdict(budget)).encode()
    return len(head).to_bytes(4, "big") + head + data


def unpack_answer(answer: bytes) -> list[Rollout]:
    """What `decode_json` answered, as rows."""
    return [_from_json(row) for row in json.loads(answer)]


def count_units(rollouts: Sequence[Rollout]) -> int:
    """Work units of rows: their completion tokens."""
    return sum(len(rollout.tokens) for rollout in rollouts)


def _require_metadata(file: pq.ParquetFile, budget: Budget) -> None:
    if not file.schema_arrow.equals(SCHEMA, check_metadata=False):
        raise ProtocolError("schema", "the columns are not those of a rollout file")
    if file.metadata.num_rows > budget.rows:
        raise ProtocolError("oversized", f"{file.metadata.num_rows} rows, over {budget.rows}")
    # Run lengths and dictionaries hold a hundred million values in a few bytes, and one row may hold them all: the
    # budget of a batch would see them only when they are decoded.  A footer that lies is caught by `_require_pages`.
    groups = [file.metadata.row_group(i) for i in range(file.metadata.num_row_groups)]
    values = [sum(group.column(j).num_values for group in groups) for j in range(file.metadata.num_columns)]
    if max(values) > budget.column_values:
        raise ProtocolError("oversized", f"{max(values)} values in a column, over {budget.column_values}")


def _require_pages(data: bytes, file: pq.ParquetFile, budget: Budget) -> None:
    """The pages hold what the footer says, lie beside each other, and decode to no more than the budget allows."""
    decoded = size = 0
    for i in range(file.metadata.num_row_groups):
        for j in range(file.metadata.num_columns):
            column = file.metadata.row_group(i).column(j)
            starts = [column.data_page_offset, column.dictionary_page_offset or column.data_page_offset]
            width = None if column.physical_type == "BYTE_ARRAY" else 8
            size += column.total_compressed_size
            if size > len(data):
                raise ProtocolError("malformed", "columns share their pages")
            found = measure(data, min(starts), column.total_compressed_size, most=column.num_values, width=width)
            if found.values != column.num_values:
                raise ProtocolError("malformed", f"a column holds {found.values} values, not {column.num_values}")
            decoded += found.decoded_bytes
    if decoded > DECODED_FACTOR * budget.decoded_bytes:
        raise ProtocolError("oversized", f"may decode to {decoded} bytes, {budget.decoded_bytes} are lawful")


def _read(file: pq.ParquetFile, budget: Budget) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    decoded = 0
    for batch in file.iter_batches(batch_size=64, use_threads=False):
        decoded += batch.nbytes
        if decoded > budget.decoded_bytes or len(rows) + batch.num_rows > budget.rows:
            raise ProtocolError("oversized", f"decodes to over {budget.decoded_bytes} bytes or {budget.rows} rows")
        batch.validate(full=True)
        if any(column.null_count for column in batch.columns):
            raise ProtocolError("malformed", "a value is null")
        columns = {name: _to_list(batch.column(name)) for name in SCHEMA.names}
        rows.extend({name: columns[name][i] for name in SCHEMA.names} for i in range(batch.num_rows))
    return rows


def _to_list(column: pa.Array) -> list[Any]:
    """Python values of a column without nulls; of a list of numbers as a whole, which is far faster than one by one."""
    if not pa.types.is_list(column.type):
        return list(column.to_pylist())
    values, offsets = column.values, column.offsets.to_pylist()
    if values.null_count:
        raise ProtocolError("malformed", "a list holds null")
    code = _CODES.get(values.type)
    if code is None or not len(values):
        flat = values.to_pylist()
    else:
        width = values.type.bit_width // 8
        part = values.buffers()[1][values.offset * width : (values.offset + len(values)) * width]
        flat = list(struct.unpack(f"<{len(values)}{code}", part))
    return [flat[start:end] for start, end in pairwise(offsets)]


def _to_rollout(row: dict[str, Any], budget: Budget) -> Rollout:
    lists: dict[str, list[Any]] = {name: row[name] for name in ("prompt", "tokens", "logprobs", "proofs")}
    if not 0 < len(lists["prompt"]) <= budget.prompt_tokens:
        raise ProtocolError("oversized", "a prompt is empty or too long")
    if not 0 < len(lists["tokens"]) <= budget.completion_tokens:
        raise ProtocolError("oversized", "a completion is empty or too long")
    if len(lists["logprobs"]) != len(lists["tokens"]):
        raise ProtocolError("malformed", "one log-probability a token is due")
    if any(len(proof) > budget.proof_bytes for proof in lists["proofs"]):
        raise ProtocolError("oversized", "a proof is too long")
    if min(row["group"], row["sibling"], row["seed"], *lists["prompt"], *lists["tokens"]) < 0:
        raise ProtocolError("malformed", "a number is negative")
    if not all(math.isfinite(value) for value in (row["reward"], *lists["logprobs"])):
        raise ProtocolError("malformed", "a number is not finite")
    return Rollout(**(row | {name: tuple(values) for name, values in lists.items()}))


def _to_json(row: Rollout) -> dict[str, Any]:
    plain = {name: getattr(row, name) for name in SCHEMA.names}
    numbers = {name: _pack(plain[name], code) for name, code in _NUMBERS.items()}
    return plain | numbers | {"proofs": [proof.hex() for proof in row.proofs]}


def _from_json(row: dict[str, Any]) -> Rollout:
    numbers = {name: _unpack(row[name], code) for name, code in _NUMBERS.items()}
    return Rollout(**row | numbers | {"proofs": tuple(map(bytes.fromhex, row["proofs"]))})


_NUMBERS = {"prompt": "i", "tokens": "i", "logprobs": "f"}


def _pack(values: Sequence[int] | Sequence[float], code: str) -> str:
    """Little-endian bytes in hex: exact, and a tenth of the time that decimals take."""
    return struct.pack(f"<{len(values)}{code}", *values).hex()


def _unpack(text: str, code: str) -> tuple[Any, ...]:
    raw = bytes.fromhex(text)
    return struct.unpack(f"<{len(raw) // 4}{code}", raw)
