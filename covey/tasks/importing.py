"""Imports rows of sources into a new data set, and reports how many were imported or skipped."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from covey.environments.base import Split
from covey.errors import OperatorError
from covey.protocol.ids import Hash
from covey.tasks.dataset_row import BadRowError, Reading, TaskRecord
from covey.tasks.sources import SourceRow
from covey.tasks.writing import DataSetWriter

SHOWN = 10
"""Maximum number of skipped rows in a report."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ImportReport:
    """Result of an import. Example: ImportReport(digest=Hash("0x5f..."), rows={"train math": 7}, ...)."""

    digest: Hash
    """Digest of the data set."""
    rows: dict[str, int]
    """Number of rows by split and task type. Example: {"train math": 1750, "held_out math": 250}."""
    duplicates: int
    """Number of rows that were skipped because an earlier row has the same prompt and choices."""
    skipped: int
    """Number of rows that were skipped because they cannot be read or graded."""
    reasons: tuple[str, ...]
    """Why the first `SHOWN` rows were skipped, each with its file and row number."""


def import_rows(
    sources: Iterable[SourceRow],
    folder: Path,
    reading: Reading,
    *,
    skip_bad: bool = False,
    limit: int | None = None,
    advance: Callable[[], None] = lambda: None,
) -> ImportReport:
    """Write the rows of `sources` into a new data set.

    With `skip_bad`, rows that cannot be read are skipped. Otherwise they raise OperatorError("bad_row"),
    OperatorError("row_too_long") or OperatorError("unknown_task_type"). The import ends after `limit` imported
    rows. `advance` is called for each row read.
    """
    reasons: list[str] = []
    skipped = 0
    with DataSetWriter(folder) as writer:
        for source in sources:
            if limit is not None and writer.counts.total() >= limit:
                break
            advance()
            try:
                writer.add(_build_row(source, reading))
            except BadRowError as error:
                if not skip_bad:
                    raise _name_row(source, error) from error
                skipped += 1
                if len(reasons) < SHOWN:
                    reasons.append(f"{_describe(source)}: {error.message}")
        digest = writer.finish()
        return ImportReport(
            digest=digest,
            rows=describe_counts(writer.counts),
            duplicates=writer.duplicates,
            skipped=skipped,
            reasons=tuple(reasons),
        )


def describe_counts(counts: Mapping[tuple[Split, str], int]) -> dict[str, int]:
    """Return counts of rows by "split task_type", as reports print them. Example: {"train math": 7}."""
    return {f"{split} {task_type}": count for (split, task_type), count in sorted(counts.items())}


def _build_row(source: SourceRow, reading: Reading) -> TaskRecord:
    if isinstance(source.values, BadRowError):
        raise source.values
    return reading.build_row(source.values)


def _describe(source: SourceRow) -> str:
    """Describe a row by its file, number and name. Example: "rows.jsonl, row 7 (problem gsm-7)"."""
    problem_id = None if isinstance(source.values, BadRowError) else source.values.get("problem_id")
    return source.place if problem_id is None else f"{source.place} (problem {problem_id!s:.80})"


def _name_row(source: SourceRow, error: BadRowError) -> OperatorError:
    return OperatorError(error.code, f"{_describe(source)}: {error.message}", fix=error.fix)
