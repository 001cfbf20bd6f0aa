"""docs/benchmarks.md, made from the files in benchmarks/results: `python -m benchmarks.results_page` writes it.

`make reference` and `make bench ARGS=--save` do so too, and a unit test compares the page with the files.
"""

import math
from collections.abc import Iterable, Mapping
from pathlib import Path

from benchmarks import results
from benchmarks.benchmark_list import MODULES, read_summary
from benchmarks.measurement import Measurement, format_value
from benchmarks.results import BenchmarkResult, Machine

PAGE = Path(__file__).parents[1] / "docs/benchmarks.md"
NOTE = "<!-- Made from benchmarks/results by `make reference`: edit those files or the benchmarks' docstrings. -->"
INTRODUCTION = """\
`make bench NAME=<name>` runs a benchmark, prints a table and writes `build/bench/<name>.json`. `make bench` lists the
names. `ARGS="--save"` adds the result to this machine's file in `benchmarks/results`, from which this page is made.
Peers come with the extra `[bench]`, and `make peers` builds the package `toploc`.

The tables show the newest result of each machine. `n` is the number of samples that a value summarises. A bar is the
limit that a value must keep, and a value in bold misses it. The peer was measured in the same run."""

File = tuple[Machine, Mapping[str, BenchmarkResult]]


def build_page(files: Iterable[File]) -> str:
    """Build the text of the page: a list of the machines, then a section for each benchmark."""
    ordered = sorted(files, key=lambda file: file[0].slug)
    parts = [NOTE, "# Benchmarks", INTRODUCTION, "## Machines", build_machines(machine for machine, _ in ordered)]
    for name in MODULES:
        found = [(machine, by_name[name]) for machine, by_name in ordered if name in by_name]
        parts += [f"## {name}", read_summary(name), *build_section(found)]
    return "\n\n".join(parts) + "\n"


def build_machines(machines: Iterable[Machine]) -> str:
    """Build the table of the machines."""
    rows = [
        (
            describe(machine),
            machine.gpu or "none",
            f"{machine.memory_gb} GB" if machine.memory_gb else "not recorded",
        )
        for machine in machines
    ]
    return build_table(("machine", "GPU", "memory"), rows)


def build_section(found: list[tuple[Machine, BenchmarkResult]]) -> list[str]:
    """Build the list of a benchmark's runs and the table of their measurements, grouped by name."""
    if not found:
        return ["There is no result yet."]
    runs = [
        f"- {describe(machine)}: {result.date}, "
        + (f"commit `{result.commit}`, " if result.commit else "")
        + f"`{result.command}`."
        + (f" {result.note}" if result.note else "")
        for machine, result in found
    ]
    rows = [(each, describe(machine)) for machine, result in found for each in result.measurements]
    longest_first = sorted((result for _, result in found), key=lambda result: -len(result.measurements))
    names = dict.fromkeys(each.name for result in longest_first for each in result.measurements)
    order = {name: i for i, name in enumerate(names)}
    rows.sort(key=lambda row: order[row[0].name])  # stable, so that machines keep their order
    if len(found) == 1:
        heads: tuple[str, ...] = ("name", "value", "n", "bar", "peer")
        cells = [format_row(each) for each, _ in rows]
    else:
        heads = ("name", "machine", "value", "n", "bar", "peer")
        cells = [(first, machine, *rest) for each, machine in rows for first, *rest in [format_row(each)]]
    return ["\n".join(runs), build_table(heads, cells)]


def format_row(measurement: Measurement) -> tuple[str, ...]:
    """Format the name, value, n, bar and peer of a measurement.  A value that misses its bar is bold."""
    bar, value = measurement.bar, measurement.value
    shown = "none" if math.isnan(value) else f"{format_value(value)} {measurement.unit}".strip()
    shown = f"**{shown}**" if bar is not None and bar.describe_miss(value) else shown
    return f"`{measurement.name}`", shown, f"{measurement.n:,}", str(bar or ""), measurement.peer


def describe(machine: Machine) -> str:
    """Describe a machine in one cell.  Example: "AMD EPYC, family 25, AVX2, 2 cores, NVIDIA H100"."""
    cores = f"{machine.cores} cores" if machine.cores else ""
    return ", ".join(filter(None, (machine.processor, cores, machine.gpu)))


def build_table(heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """Build a table in Markdown."""
    cells = [heads, tuple("---" for _ in heads), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in cells)


def write_page() -> None:
    """Write the page from the committed files."""
    PAGE.write_text(build_page(results.read(path) for path in results.FOLDER.glob("*.json")))


if __name__ == "__main__":
    write_page()
