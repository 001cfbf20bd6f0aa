"""Rows of the table of `make gpu`.  Each has a number of ours, a peer's from the same run, and an aim."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from benchmarks.measurement import Bar, format_value

FAILED = "failed"
"""Begin of the note of a case or section that failed."""
HEADS = ("section", "case", "ours", "peer", "ratio", "aim", "met", "GB", "n", "note")


@dataclass(frozen=True, slots=True, kw_only=True)
class SectionRow:
    """One line of the table.

    Example: SectionRow(section="sampler", case="sample, 64 rows", value=26.1, unit="us", peer="softmax and race",
    peer_value=157.0, aim=Bar(most=0.25)).
    """

    section: str
    """Name of the section.  Example: "sampler"."""
    case: str
    """What was measured, unique in its section.  Example: "sample, 64 rows"."""
    value: float | None
    """Measured number.  None if the case was skipped or failed; `note` says why."""
    unit: str = ""
    """Unit of `value` and `peer_value`."""
    n: int = 1
    """Number of runs of which `value` is the median, or number of things that it counts."""
    peer: str = ""
    """What the number is compared with.  Empty if there is nothing to compare."""
    peer_value: float | None = None
    """The peer's number.  None if it was not measured."""
    aim: Bar | None = None
    """Limits to keep.  None if there are none."""
    aim_of: Literal["ratio", "value"] = "ratio"
    """Whether `aim` limits the ratio or the value."""
    memory_gb: float | None = None
    """Peak memory of ours on the GPU in units of 10^9 bytes, with the weights.  None on a CPU."""
    note: str = ""
    """Why there is no value, or what a reader must know.  Usually empty."""

    @property
    def ratio(self) -> float | None:
        """Our value divided by the peer's.  None if one of them is missing, or if the peer's is 0."""
        if self.value is None or not self.peer_value:
            return None
        return self.value / self.peer_value

    @property
    def is_met(self) -> bool | None:
        """Whether the aim is kept.  None if there is no aim, or no number to compare with it."""
        number = self.ratio if self.aim_of == "ratio" else self.value
        if self.aim is None or number is None:
            return None
        return self.aim.describe_miss(number) is None

    def encode(self) -> str:
        """Encode the row as a line of JSON, with the ratio and whether the aim is kept."""
        return json.dumps({**asdict(self), "ratio": self.ratio, "is_met": self.is_met}) + "\n"


def decode_row(line: str) -> SectionRow:
    """Decode a line of `SectionRow.encode`."""
    values = json.loads(line)
    del values["ratio"], values["is_met"]
    aim = values.pop("aim")
    return SectionRow(**values, aim=Bar(**aim) if aim else None)


def read_rows(path: Path) -> list[SectionRow]:
    """Read the rows of a file.  Empty if it does not exist.  A last line that was cut off does not count."""
    if not path.exists():
        return []
    return [decode_row(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]


def build_table(rows: Iterable[SectionRow], *, is_judged: bool) -> str:
    """Build the table in Markdown, with aligned columns.  Unless `is_judged`, no row says whether it keeps its aim."""
    cells = [HEADS, *(_format_cells(row, is_judged=is_judged) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [_join(row, widths) for row in cells]
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([lines[0], rule, *lines[1:]]) + "\n"


def find_missed(rows: Iterable[SectionRow]) -> list[str]:
    """Return one line for each row that does not keep its aim."""
    return [f"{row.section}: {row.case} misses its aim, {_format_aim(row)}" for row in rows if row.is_met is False]


def _format_cells(row: SectionRow, *, is_judged: bool) -> tuple[str, ...]:
    met = {True: "yes", False: "NO", None: ""}[row.is_met if is_judged else None]
    return (
        row.section,
        row.case,
        format_number(row.value, row.unit),
        " ".join(filter(None, (row.peer, format_number(row.peer_value, row.unit)))),
        "" if row.ratio is None else format_value(row.ratio),
        _format_aim(row),
        met,
        "" if row.memory_gb is None else format_value(row.memory_gb),
        "" if row.value is None else f"{row.n:,}",
        row.note,
    )


def format_number(value: float | None, unit: str) -> str:
    """Format a number with its unit. Empty if there is none."""
    return "" if value is None else f"{format_value(value)} {unit}".rstrip()


def _format_aim(row: SectionRow) -> str:
    if row.aim is None:
        return ""
    return f"ratio {row.aim}" if row.aim_of == "ratio" else f"{row.aim} {row.unit}".rstrip()


def _join(cells: Sequence[str], widths: Sequence[int]) -> str:
    """Join the cells of a line.  A character that would end a cell is replaced."""
    parts = (cell.replace("|", "/").replace("\n", " ").ljust(width) for cell, width in zip(cells, widths, strict=True))
    return "| " + " | ".join(parts) + " |"
