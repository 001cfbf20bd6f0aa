"""docs/benchmarks.md, made from the files in benchmarks/results: `python -m benchmarks.results_page` writes it.

`make reference` and `make bench ARGS=--save` do so too, and a unit test compares the page with the files.
"""

import math
from collections.abc import Iterable, Mapping
from pathlib import Path

from benchmarks import results
from benchmarks.benchmark_list import MODULES, read_summary
from benchmarks.gpu.result_files import GpuResult, list_cells, read_all
from benchmarks.gpu.section_list import SECTIONS
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

GPU_INTRODUCTION = """\
`make gpu ARGS=--save` measures a card and keeps its rows in the folder `gpu` of `benchmarks/results`
([Measure a GPU](guides/measure-a-gpu.md)). The peer was measured in the same run."""

File = tuple[Machine, Mapping[str, BenchmarkResult]]


def build_page(files: Iterable[File], gpu_results: Iterable[GpuResult] = ()) -> str:
    """Build the text of the page: the machines, a section for each benchmark, and the rows of `make gpu` by card."""
    ordered = sorted(files, key=lambda file: file[0].slug)
    parts = [NOTE, "# Benchmarks", INTRODUCTION, "## Machines", build_machines(machine for machine, _ in ordered)]
    for name in MODULES:
        runs = [(machine, by_name[name]) for machine, by_name in ordered if name in by_name]
        parts += [f"## {name}", read_summary(name), *build_section(runs)]
    parts += ["## GPUs", GPU_INTRODUCTION, build_gpu_table(gpu_results)]
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


def build_section(runs: list[tuple[Machine, BenchmarkResult]]) -> list[str]:
    """Build the list of a benchmark's runs and the table of their measurements, grouped by name."""
    if not runs:
        return ["There is no result yet."]
    list_items = [
        f"- {describe(machine)}: {result.date}, "
        + (f"commit `{result.commit}`, " if result.commit else "")
        + f"`{result.command}`."
        + (f" {result.note}" if result.note else "")
        for machine, result in runs
    ]
    longest_first = sorted((result for _, result in runs), key=lambda result: -len(result.measurements))
    names = dict.fromkeys(each.name for result in longest_first for each in result.measurements)
    order = {name: i for i, name in enumerate(names)}
    rows = [(each, describe(machine)) for machine, result in runs for each in result.measurements]
    rows.sort(key=lambda row: order[row[0].name])  # stable, so that machines keep their order
    lines = join_rows((each.name, machine, *format_cells(each)) for each, machine in rows)
    heads = ("name", "machine", "value", "n", "bar", "peer")
    if len(runs) > 1:
        return ["\n".join(list_items), build_table(heads, lines)]
    return ["\n".join(list_items), build_table((heads[0], *heads[2:]), ((name, *rest) for name, _, *rest in lines))]


def build_gpu_table(gpu_results: Iterable[GpuResult]) -> str:
    """Build the table of what `make gpu` measured on each card. What nobody has measured says how to."""
    heads = ("section", "case", "card", "value", "n", "peer", "date, commit")
    return build_table(heads, list_cells(gpu_results, (section.name for section in SECTIONS if section.module)))


def join_rows(rows: Iterable[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Join rows that are equal but for the last part of their name, in the place of the first of them.

    The joined row names the common part, then each last part: "`observed.` `int4`, `int8`".
    """
    groups: dict[tuple[str, ...], list[str]] = {}
    for name, *rest in rows:
        prefix = name.rpartition(".")[0]
        groups.setdefault((prefix or name, *rest), []).append(name)
    joined = []
    for (prefix, *rest), names in groups.items():
        last_parts = ", ".join(f"`{name.rpartition('.')[2]}`" for name in names)
        joined.append((f"`{prefix}.` {last_parts}" if len(names) > 1 else f"`{names[0]}`", *rest))
    return joined


def format_cells(measurement: Measurement) -> tuple[str, ...]:
    """Format the value, n, bar and peer of a measurement.

    Rates and their bars are in percent.  A value that misses its bar is bold.
    """
    bar, value, unit = measurement.bar, measurement.value, measurement.unit
    is_missed = bar is not None and bar.describe_miss(value) is not None
    limits = str(bar or "")
    if unit == "rate":
        value, unit = 100 * value, "%"
        limits = f"at least {100 * bar.least:g} %" if bar is not None and bar.least is not None else ""
    shown = "none" if math.isnan(value) else format_value(value)
    shown += "" if math.isnan(value) or unit in {"ratio", "count"} else f" {unit}"
    return f"**{shown}**" if is_missed else shown, f"{measurement.n:,}", limits, measurement.peer


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
    PAGE.write_text(build_page((results.read(path) for path in results.FOLDER.glob("*.json")), read_all()))


if __name__ == "__main__":
    write_page()
