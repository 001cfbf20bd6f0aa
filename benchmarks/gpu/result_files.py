"""Results of `make gpu ARGS=--save`: a file in benchmarks/results/gpu for each card, and their section of the page."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.gpu.section_rows import SectionRow, decode_row, format_number
from covey.runtime.files import write_atomically

FOLDER = Path(__file__).parents[1] / "results/gpu"
EXACT_CASES = (
    "modes that failed the proof", "batch 64, windows as replayed", "sequences of 4,096 tokens",
    "sequences of 16,384 tokens", "honest windows", "cheat, last layer in int8", "cheat, last two layers in int8",
    "cheat, steering by 0.1 percent", "cheat, temperature 1.02", "cheat, another attention backend",
    "0.6B, generation with proofs",
)  # fmt: skip
"""Cases of the section "exact" that are shown although nobody has measured them."""
UNMEASURED = "not measured yet: `make gpu SECTIONS={} ARGS=--save`"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuResult:
    """Rows of one card, the newest of each section."""

    card: str
    """Name of the card.  Example: "NVIDIA H200"."""
    dates: Mapping[str, str]
    """Day and commit of each section's run.  Example: {"exact": "2026-11-27, 5cc93c16"}."""
    rows: Sequence[SectionRow]

    @property
    def path(self) -> Path:
        """File of the card."""
        return FOLDER / f"{re.sub(r'[^a-z0-9]+', '-', self.card.lower()).strip('-')}.json"

    def merge(self, older: "GpuResult") -> "GpuResult":
        """Return this result with the sections of an older one that it does not have."""
        kept = [row for row in older.rows if row.section not in self.dates]
        return GpuResult(card=self.card, dates={**older.dates, **self.dates}, rows=[*kept, *self.rows])

    def save(self) -> Path:
        """Write the file of the card. Sections that were not measured this time stay in it."""
        merged = self.merge(read(self.path)) if self.path.exists() else self
        lines = ",\n".join(row.encode().rstrip("\n") for row in merged.rows)
        head = f'"card": {json.dumps(self.card)},\n"dates": {json.dumps(dict(merged.dates))}'
        FOLDER.mkdir(parents=True, exist_ok=True)
        write_atomically(self.path, f'{{\n{head},\n"rows": [\n{lines}\n]\n}}\n'.encode())
        return self.path


def read(path: Path) -> GpuResult:
    """Read the file of a card."""
    values = json.loads(path.read_text())
    rows = [decode_row(json.dumps(row)) for row in values["rows"]]
    return GpuResult(card=values["card"], dates=values["dates"], rows=rows)


def read_all() -> list[GpuResult]:
    """Read the files of all cards."""
    return [read(path) for path in sorted(FOLDER.glob("*.json"))]


def list_cells(results: Iterable[GpuResult], sections: Iterable[str]) -> list[tuple[str, ...]]:
    """Return the cells of the page's table: section, case, card, value, n, peer, and date with commit."""
    found = [(result, row) for result in results for row in result.rows if row.value is not None]
    cells: list[tuple[str, ...]] = []
    for section in sections:
        rows = [(result, row) for result, row in found if row.section == section]
        cases = dict.fromkeys([*(EXACT_CASES if section == "exact" else ()), *(row.case for _, row in rows)])
        for case in cases or {"all": None}:
            measured = [(result, row) for result, row in rows if row.case == case]
            for result, row in measured:
                peer = "" if row.peer_value is None else f"{row.peer} {format_number(row.peer_value, row.unit)}"
                value, date = format_number(row.value, row.unit), result.dates[section]
                cells.append((section, case, result.card, value, f"{row.n:,}", peer, date))
            if not measured:
                cells.append((section, case, "", UNMEASURED.format(section), "", "", ""))
    return cells
