"""docs/benchmarks.md: that it is what the committed files make, and how they are shown."""

import math
from dataclasses import replace

import pytest

from benchmarks import results
from benchmarks.benchmark_list import MODULES
from benchmarks.gpu.result_files import read_all
from benchmarks.measurement import Bar, Measurement
from benchmarks.results import BenchmarkResult, Machine
from benchmarks.results_page import PAGE, build_page, build_section, format_cells, join_rows

pytestmark = pytest.mark.unit

FILES = sorted(results.FOLDER.glob("*.json"))
MACHINES = [Machine(processor=f"processor {i}", cores=2) for i in range(2)]
RESULT = BenchmarkResult(
    date="2026-11-25",
    commit="92e42ca",
    command="make bench NAME=memory",
    measurements=tuple(Measurement(name=name, value=1.5, unit="s", n=3) for name in ("a", "b")),
)


def test_page__committed__is_what_the_committed_files_make() -> None:
    assert build_page((results.read(path) for path in FILES), read_all()) == PAGE.read_text(), "run: make reference"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_file__committed__has_its_machines_name_and_is_encoded_as_save_encodes(path: object) -> None:
    machine, by_name = results.read(path)  # type: ignore[arg-type]
    assert path.stem == machine.slug  # type: ignore[attr-defined]
    assert path.read_text() == results.encode(machine, by_name)  # type: ignore[attr-defined]
    assert by_name.keys() <= MODULES.keys()
    for result in by_name.values():
        names = [measurement.name for measurement in result.measurements]
        assert len(set(names)) == len(names)
        assert all(measurement.n > 0 for measurement in result.measurements)


def test_build_section__two_machines__groups_rows_by_name() -> None:
    newer = replace(RESULT, note="A sentence.", measurements=RESULT.measurements[::-1])
    runs, table = build_section([(MACHINES[0], RESULT), (MACHINES[1], newer)])
    assert runs.splitlines()[1] == (
        "- processor 1, 2 cores: 2026-11-25, commit `92e42ca`, `make bench NAME=memory`. A sentence."
    )
    cells = [[cell.strip() for cell in row.split("|")[1:3]] for row in table.splitlines()[2:]]
    assert cells == [[f"`{name}`", f"processor {i}, 2 cores"] for name in "ab" for i in range(2)]


def test_build_section__one_machine__has_no_column_for_it() -> None:
    _, table = build_section([(MACHINES[0], RESULT)])
    assert table.splitlines()[0] == "| name | value | n | bar | peer |"
    assert table.splitlines()[2] == "| `a` | 1.5 s | 3 |  |  |"


def test_build_section__no_machine__says_so() -> None:
    assert build_section([]) == ["There is no result yet."]


@pytest.mark.parametrize(
    ("value", "unit", "shown"),
    [
        (0.9, "ratio", "0.9"),
        (0.89, "ratio", "**0.89**"),
        (30_747, "count", "30,747"),
        (1.5, "s", "1.5 s"),
        (math.nan, "s", "**none**"),
    ],
)
def test_format_cells__value__has_its_unit_and_is_bold_if_it_misses_its_bar(
    value: float, unit: str, shown: str
) -> None:
    measurement = Measurement(name="speed", value=value, unit=unit, n=4096, bar=Bar(least=0.9), peer="trl 3 s")
    assert format_cells(measurement) == (shown, "4,096", "at least 0.9", "trl 3 s")


def test_format_cells__rate__is_in_percent_with_its_bar() -> None:
    measurement = Measurement(name="found", value=0.9969, unit="rate", n=300, bar=Bar(least=0.995))
    assert format_cells(measurement) == ("99.69 %", "300", "at least 99.5 %", "")


def test_join_rows__equal_but_for_the_last_part__are_one_row() -> None:
    rows = [("a.b.x", "m", "1"), ("a.b.y", "m", "2"), ("a.b.z", "m", "1"), ("c", "m", "3"), ("d", "m", "3")]
    assert join_rows(rows) == [
        ("`a.b.` `x`, `z`", "m", "1"),
        ("`a.b.y`", "m", "2"),
        ("`c`", "m", "3"),
        ("`d`", "m", "3"),
    ]
