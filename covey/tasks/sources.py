"""Reads rows from JSON lines, Parquet and the package `datasets`, a few at a time.

A source is a file, a folder of such files, a folder that `datasets` has saved, or the name of a data set on a hub.
Parquet is decoded in this process, with limits on the sizes that its footer declares. That is acceptable, because the
operator chooses the sources, and they never come from a peer.
"""

import importlib
import io
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq

from covey.errors import OperatorError
from covey.tasks.dataset_row import MAX_ROW_BYTES, BadRowError, build_too_long, list_columns, parse_source_json

BATCH_BYTES = 16 << 20
"""Bytes of Parquet rows to decode together, estimated from the average row size of their row group."""
BATCH_ROWS = 256
"""Maximum number of Parquet rows to decode together."""
MAX_GROUP_BYTES = 8 << 30
"""Maximum uncompressed size in bytes of a Parquet row group. Pages are decoded one by one, but a page may be as large
as its group.
"""
COMPRESSIONS: Mapping[str, str] = {".gz": "gzip", ".zst": "zstd"}
"""Compression formats by file suffix."""
LINES = frozenset({".jsonl", ".json", ".ndjson"})
"""Suffixes of files with one JSON object per line."""
SAVED = ("dataset_info.json", "dataset_dict.json")
"""Files by which a folder saved with `datasets` is recognised."""
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceRow:
    """One row of a source."""

    place: str
    """File and number of the row. Example: "rows.jsonl, row 7"."""
    values: Mapping[str, object] | BadRowError
    """Values by column, or the reason why the row cannot be read."""


def read_sources(sources: Iterable[str]) -> Iterator[SourceRow]:
    """Yield all rows of the sources, in order.

    Raises OperatorError("no_source") if a source does not exist, and OperatorError("bad_source") if a file is damaged.
    """
    for source in sources:
        path = Path(source)
        if path.is_dir():
            yield from _read_folder(path)
        elif path.exists():
            yield from _read_file(path)
        elif _HUB_NAME.fullmatch(source) and not source.endswith((".jsonl", ".parquet")):
            yield from _read_splits(source, _load_hub(source))
        else:
            raise OperatorError(
                "no_source",
                f"the source {source} does not exist",
                fix="Use an existing file or folder, or OWNER/NAME of a data set on the Hugging Face Hub",
            )


def _read_folder(folder: Path) -> Iterator[SourceRow]:
    if any((folder / name).exists() for name in SAVED):
        yield from _read_splits(str(folder), _import_datasets().load_from_disk(str(folder)))
        return
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file() and _is_readable(path)]
    if not paths:
        raise OperatorError(
            "no_source",
            f"the folder {folder} contains no Parquet or JSON lines files",
            fix="Use the folder that contains the files",
        )
    for path in paths:
        yield from _read_file(path)


def _is_readable(path: Path) -> bool:
    plain = path.with_suffix("") if path.suffix in COMPRESSIONS else path
    return plain.suffix in LINES - {".json"} or path.suffix == ".parquet"


def _read_file(path: Path) -> Iterator[SourceRow]:
    plain = path.with_suffix("") if path.suffix in COMPRESSIONS else path
    try:
        if path.suffix == ".parquet":
            yield from _read_parquet(path)
        elif plain.suffix in LINES:
            yield from _read_lines(path)
        else:
            raise OperatorError(
                "bad_source",
                f"the name of {path} does not end in a supported file format",
                fix="Use a file whose name ends in .jsonl, .jsonl.gz, .jsonl.zst or .parquet",
            )
    except (pa.ArrowException, OSError) as error:
        raise OperatorError(
            "bad_source",
            f"the source file {path} cannot be read: {error!s:.200}",
            fix="Download or create the file again",
        ) from error


def _read_lines(path: Path) -> Iterator[SourceRow]:
    with pa.input_stream(str(path), compression=COMPRESSIONS.get(path.suffix)) as stream:
        lines = io.BufferedReader(cast(io.RawIOBase, stream), 1 << 20)
        number = 0
        while line := lines.readline(MAX_ROW_BYTES + 2):
            number += 1
            size = len(line)
            while len(line) > MAX_ROW_BYTES + 1 and not line.endswith(b"\n"):  # skip the rest of an overlong line
                line = lines.readline(MAX_ROW_BYTES + 2) or b"\n"
                size += len(line)
            if line.strip() or size > MAX_ROW_BYTES + 1:
                yield SourceRow(place=f"{path.name}, row {number}", values=_parse_line(line, size))


def _parse_line(line: bytes, size: int) -> Mapping[str, object] | BadRowError:
    if size > MAX_ROW_BYTES + 1:
        return build_too_long(size)
    try:
        values = parse_source_json(line)
    except ValueError as error:
        return _refuse(f"the row is not valid JSON: {error}")
    return cast(Mapping[str, object], values) if isinstance(values, dict) else _refuse("the row is not a JSON object")


def _refuse(message: str) -> BadRowError:
    return BadRowError("bad_row", message, fix="Correct the row, or skip these rows with covey tasks import --skip-bad")


def _read_parquet(path: Path) -> Iterator[SourceRow]:
    with pq.ParquetFile(path, memory_map=False, buffer_size=1 << 20, pre_buffer=False) as file:
        columns = list_columns(file.schema_arrow.names)
        number = 0
        for group in range(file.metadata.num_row_groups):
            metadata = file.metadata.row_group(group)
            if metadata.total_byte_size > MAX_GROUP_BYTES:
                raise OperatorError(
                    "bad_source",
                    f"row group {group} of {path} has {metadata.total_byte_size} bytes, but at "
                    f"most {MAX_GROUP_BYTES} are allowed",
                    fix="Write the file again with smaller row groups",
                )
            average = max(1, metadata.total_byte_size // max(1, metadata.num_rows))
            size = max(1, min(BATCH_ROWS, BATCH_BYTES // average))
            batches = file.iter_batches(batch_size=size, row_groups=[group], columns=columns, use_threads=False)
            for batch in batches:
                for i in range(batch.num_rows):
                    number += 1
                    yield SourceRow(place=f"{path.name}, row {number}", values=_read_batch_row(batch, columns, i))


def _read_batch_row(batch: Any, columns: list[str], i: int) -> Mapping[str, object] | BadRowError:
    """Read one row of an Arrow batch. Strings are measured before they are decoded."""
    scalars = {name: batch.column(j)[i] for j, name in enumerate(columns)}
    size = sum(scalar.as_buffer().size for scalar in scalars.values() if _is_text(scalar) and scalar.is_valid)
    if size > MAX_ROW_BYTES:
        return build_too_long(size)
    try:
        return {name: scalar.as_py() for name, scalar in scalars.items()}
    except UnicodeDecodeError as error:
        return _refuse(f"a string is not valid UTF-8: {error}")


def _is_text(scalar: Any) -> bool:
    return bool(pa.types.is_string(scalar.type) or pa.types.is_large_string(scalar.type))


def _read_splits(name: str, loaded: Any) -> Iterator[SourceRow]:
    """Yield the rows of a data set of the package `datasets`, including all its splits."""
    parts = loaded.items() if isinstance(loaded, dict) else [("", loaded)]
    for split, rows in parts:
        shown = f"{name}/{split}" if split else name
        for number, row in enumerate(rows, 1):
            yield SourceRow(place=f"{shown}, row {number}", values={name: row[name] for name in list_columns(row)})


def _load_hub(name: str) -> Any:
    try:
        return _import_datasets().load_dataset(name, streaming=True)
    except (OSError, ValueError) as error:
        raise OperatorError(
            "no_source",
            f"the data set {name} could not be loaded with the package datasets: {error!s:.200}",
            fix="Use a file, or the name of another data set",
        ) from error


def _import_datasets() -> Any:
    try:
        return importlib.import_module("datasets")
    except ImportError as error:
        raise OperatorError(
            "no_datasets_package",
            "this source can only be read with the package datasets, which is not installed",
            fix='Run pip install "covey[datasets]"',
        ) from error
