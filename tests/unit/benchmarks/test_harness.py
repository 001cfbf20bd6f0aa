"""How a benchmark ends: the table, the file and the exit code."""

from pathlib import Path

import pytest

from benchmarks import results
from benchmarks.harness import finish
from benchmarks.measurement import Bar, Measurement

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("failures", [[], ["speed is 1.9, below 2"]])
def test_finish__measurements__are_printed_and_written_and_failures_make_the_exit_code(
    failures: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    measurement = Measurement(name="speed", value=1.9, unit="ratio", n=3, peer="trl 4 s", bar=Bar(least=2))
    assert finish("some", [measurement], failures, ["--runs", "3"]) == len(failures)
    machine, by_name = results.read(Path("build/bench/some.json"))
    assert machine == results.describe_machine()
    assert by_name["some"].measurements == (measurement,)
    assert by_name["some"].command == 'make bench NAME=some ARGS="--runs 3"'
    captured = capsys.readouterr()
    assert captured.err.splitlines() == failures
    (row,) = [line for line in captured.out.splitlines() if "speed" in line]
    assert [cell.strip() for cell in row.split("│")[1:-1]] == ["speed", "1.9", "ratio", "3", "at least 2", "trl 4 s"]
