"""Writes lists as the Parquet columns of a submission's file, and reads untrusted Parquet into lists."""

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
        pa.field("contract", pa.string(), nullable=False),
    ]
)

_CODES = {pa.int32(): "i", pa.float32(): "f"}
"""Format characters of `struct` for the numbers in lists, by Arrow type."""

DECODED_FACTOR = 4
"""Factor by which the decoded size according to page headers may exceed the largest valid size. The headers
give a larger size because 8 bytes are counted for every number, and levels are included.
"""


def write(values: Mapping[str, Sequence[Any]]) -> bytes:
    """Write columns of equal length as Parquet. The same values always give the same bytes."""
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pydict(dict(values), schema=SCHEMA), sink, compression="zstd", use_dictionary=False)
    return sink.getvalue()


def read(data: bytes, budget: Budget) -> list[dict[str, Any]]:
    """Read untrusted Parquet bytes. Return one dictionary per row, with the row's values by column name.

    Raises ProtocolError with the code "oversized", "malformed" or "schema".
    """
    try:
        file = pq.ParquetFile(io.BytesIO(data), memory_map=False)
        _require_metadata(file, budget)
        _require_pages(data, file, budget)
        return _read(file, budget)
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
        raise ProtocolError(
            "malformed", f"the rollout file is not a readable Parquet file: {type(error).__name__}"
        ) from error


def _require_metadata(file: pq.ParquetFile, budget: Budget) -> None:
    if not file.schema_arrow.equals(SCHEMA, check_metadata=False):
        raise ProtocolError("schema", "the columns of the Parquet file are not the columns of a rollout file")
    if file.metadata.num_rows > budget.rows:
        raise ProtocolError(
            "oversized", f"the rollout file has {file.metadata.num_rows} rows, but at most {budget.rows} are allowed"
        )
    # Run lengths and dictionaries can store a hundred million values in a few bytes, even in one row. The budget of a
    # batch would notice them only after they are decoded. `_require_pages` detects a footer that gives a false number.
    groups = [file.metadata.row_group(i) for i in range(file.metadata.num_row_groups)]
    values = [sum(group.column(j).num_values for group in groups) for j in range(file.metadata.num_columns)]
    if max(values) > budget.column_values:
        raise ProtocolError(
            "oversized",
            f"a column of the rollout file has {max(values)} values, but at most {budget.column_values} are allowed",
        )


def _require_pages(data: bytes, file: pq.ParquetFile, budget: Budget) -> None:
    """Require that pages match the footer, do not overlap, and decode to no more bytes than the budget allows."""
    decoded = size = 0
    for i in range(file.metadata.num_row_groups):
        for j in range(file.metadata.num_columns):
            column = file.metadata.row_group(i).column(j)
            starts = [column.data_page_offset, column.dictionary_page_offset or column.data_page_offset]
            width = None if column.physical_type == "BYTE_ARRAY" else 8
            size += column.total_compressed_size
            if size > len(data):
                raise ProtocolError("malformed", "columns of the Parquet file overlap")
            pages = measure(data, min(starts), column.total_compressed_size, most=column.num_values, width=width)
            if pages.values != column.num_values:
                raise ProtocolError(
                    "malformed",
                    f"the pages of a column contain {pages.values} values, but its footer says {column.num_values}",
                )
            decoded += pages.decoded_bytes
    if decoded > DECODED_FACTOR * budget.decoded_bytes:
        message = f"the rollout file may decode to {decoded} bytes, but at most {budget.decoded_bytes} are allowed"
        raise ProtocolError("oversized", message)


def _read(file: pq.ParquetFile, budget: Budget) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    decoded = 0
    for batch in file.iter_batches(batch_size=64, use_threads=False):
        decoded += batch.nbytes
        if decoded > budget.decoded_bytes or len(rows) + batch.num_rows > budget.rows:
            message = f"the rollout file decodes to more than {budget.decoded_bytes} bytes or {budget.rows} rows"
            raise ProtocolError("oversized", message)
        batch.validate(full=True)
        if any(column.null_count for column in batch.columns):
            raise ProtocolError("malformed", "a column of the rollout file contains null")
        columns = {name: _to_list(batch.column(name)) for name in SCHEMA.names}
        rows.extend({name: columns[name][i] for name in SCHEMA.names} for i in range(batch.num_rows))
    return rows


def _to_list(column: pa.Array) -> list[Any]:
    """Return the values of a column as Python objects. Raises ProtocolError("malformed") if a list contains null.

    The numbers of all lists are unpacked in one call, which is much faster than one call per number.
    """
    if not pa.types.is_list(column.type):
        return list(column.to_pylist())
    values, offsets = column.values, column.offsets.to_pylist()
    if values.null_count:
        raise ProtocolError("malformed", "a list in the rollout file contains null")
    code = _CODES.get(values.type)
    if code is None or not len(values):
        flat = values.to_pylist()
    else:
        width = values.type.bit_width // 8
        buffer = values.buffers()[1][values.offset * width : (values.offset + len(values)) * width]
        flat = list(struct.unpack(f"<{len(values)}{code}", buffer))
    return [flat[start:end] for start, end in pairwise(offsets)]
