"""What every benchmark does with its numbers: a table on screen, JSON under build/bench, bars that they must reach."""

import json
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from covey.runtime.files import write_atomically

WIDTH = 140
"""Columns of a table that goes into a file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """A number under the name that others quote.  Example: name="walk_seconds", value=95.1, unit="s", n=1."""

    name: str
    value: float
    unit: str
    n: int
    """Of how many measurements."""
    peer: str = ""
    """What it was measured against in the same run."""


def describe_machine() -> dict[str, str | int]:
    """What the numbers were seen on."""
    model = next(
        (line.split(":", 1)[1].strip() for line in _read("/proc/cpuinfo") if line.startswith("model name")), ""
    )
    return {
        "cpu": model,
        "cores": os.cpu_count() or 0,
        "python": platform.python_version(),
        "system": platform.system(),
    }


def report(name: str, claims: Sequence[Measurement]) -> Path:
    """Show the claims and write build/bench/<name>.json; return its path."""
    table = Table("claim", "value", "unit", "n", "peer", title=name)
    for claim in claims:
        shown = f"{claim.value:,.0f}" if abs(claim.value) >= 1000 else f"{claim.value:.4g}"
        table.add_row(claim.name, shown, claim.unit, str(claim.n), claim.peer)
    console = Console()
    (console if console.is_terminal else Console(width=WIDTH)).print(table)
    path = Path("build/bench") / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    values = {
        "machine": describe_machine(),
        "command": " ".join(
            ["make bench", f"NAME={name}", *(["ARGS=" + " ".join(sys.argv[2:])] if sys.argv[2:] else [])]
        ),
        "claims": [asdict(claim) for claim in claims],
    }
    write_atomically(path, json.dumps(values, indent=2).encode() + b"\n")
    return path


def find_misses(
    claims: Sequence[Measurement], *, least: Mapping[str, float] | None = None, most: Mapping[str, float] | None = None
) -> list[str]:
    """Return a line for each claim beyond its bar.

    A bar has the whole name of a claim, or the part before the first dot of all the names that it applies to.
    """
    wrong = []
    for claim in claims:
        lowest, highest = (_find_bar(bars or {}, claim.name) for bars in (least, most))
        if lowest is not None and not claim.value >= lowest:
            wrong.append(f"{claim.name} is {claim.value:.3f}, below {lowest}")
        if highest is not None and not claim.value <= highest:
            wrong.append(f"{claim.name} is {claim.value:.3f}, above {highest}")
    return wrong


def _find_bar(bars: Mapping[str, float], name: str) -> float | None:
    return bars.get(name, bars.get(name.partition(".")[0]))


def finish(name: str, claims: Sequence[Measurement], failures: Sequence[str]) -> int:
    """Report the claims, say what falls short; the exit code."""
    report(name, claims)
    for failure in failures:
        print(failure, file=sys.stderr)
    return 1 if failures else 0


def _read(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []
