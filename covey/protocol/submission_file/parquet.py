"""The columns of a submission's file: Parquet out of lists and lists out of hostile Parquet.  Called by `codec`."""

import io
import struct
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from covey.errors import ProtocolError
from covey.protocol.submission_file.page_limits import measure
from covey.protocol.submission_file.rows import Budget

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

DECODED_FACTOR = 4
"""How far the bound from page headers may be above the lawful size: it counts a number as 8 bytes, and levels too."""


def write(values: Mapping[str, Sequence[Any]]) -> bytes:
    """Values by column, all of one length -> Parquet bytes; equal values give equal bytes."""
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pydict(dict(values), schema=SCHEMA), sink, compression="zstd", use_dictionary=False)
    return sink.getvalue()


def read(data: bytes, budget: Budget) -> list[dict[str, Any]]:
    """Hostile bytes -> values by column of each row; raise ProtocolError "oversized", "malformed" or "schema"."""
    try:
        file = pq.ParquetFile(io.BytesIO(data), memory_map=False)
        _require_metadata(file, budget)
        _require_pages(data, file, budget)
        return _read(file, budget)
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
        raise ProtocolError("malformed", f"not a readable Parquet file: {type(error).__name__}") from error


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
