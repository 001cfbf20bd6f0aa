"""How every benchmark ends: a table on screen, a file under build/bench, and an exit code."""

import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks import results
from benchmarks.measurement import Measurement, format_value
from covey.runtime.files import write_atomically

OUTPUT = Path("build/bench")
"""Folder of the last run's files, relative to the root of the repository."""
WIDTH = 140
"""Columns of a table that goes into a file or a pipe."""


def finish(name: str, measurements: Sequence[Measurement], failures: Sequence[str], arguments: Sequence[str]) -> int:
    """Print and write the measurements, print the failures, and return the exit code: 1 if there are failures.

    `arguments` are those of the benchmark, for the command in the file.
    """
    _print_table(name, measurements)
    path = OUTPUT / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    result = results.build_result(name, measurements, arguments)
    write_atomically(path, results.encode(results.describe_machine(), {name: result}).encode())
    for failure in failures:
        print(failure, file=sys.stderr)
    return 1 if failures else 0


def _print_table(name: str, measurements: Sequence[Measurement]) -> None:
    table = Table("name", "value", "unit", "n", "bar", "peer", title=name)
    for each in measurements:
        bar = str(each.bar) if each.bar else ""
        table.add_row(each.name, format_value(each.value), each.unit, str(each.n), bar, each.peer)
    console = Console()
    (console if console.is_terminal else Console(width=WIDTH)).print(table)
