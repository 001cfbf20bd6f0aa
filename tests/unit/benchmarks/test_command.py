"""The command `python -m benchmarks`: which benchmark runs, and what is saved."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks import command, results, results_page
from benchmarks.benchmark_list import MODULES
from benchmarks.harness import finish
from benchmarks.measurement import Measurement

pytestmark = pytest.mark.unit


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[list[str]]:
    """Arguments of the calls of a benchmark that measures 1.5 s; without a file if they hold "--crash"."""
    seen: list[list[str]] = []

    def main(arguments: Sequence[str]) -> int:
        seen.append(list(arguments))
        if "--crash" in arguments:
            return 3
        return finish("memory", [Measurement(name="seconds", value=1.5, unit="s", n=1)], ["too slow"], arguments)

    (tmp_path / "docs").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "import_module", lambda name: SimpleNamespace(main=main))
    monkeypatch.setattr(results, "FOLDER", tmp_path / "results")
    monkeypatch.setattr(results_page, "PAGE", tmp_path / "docs/benchmarks.md")
    return seen


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [([], "No benchmark is named."), ([""], "No benchmark is named."), (["walk"], 'There is no benchmark "walk".')],
)
def test_run__missing_or_unknown_name__lists_the_names(
    arguments: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.run(arguments) == 2
    first, *others = capsys.readouterr().err.splitlines()
    assert first == f"{problem} Run make bench NAME=<name> with one of these names:"
    assert [line.split()[0] for line in others] == list(MODULES)


def test_run__name_and_arguments__runs_the_benchmark_with_its_exit_code(calls: list[list[str]], tmp_path: Path) -> None:
    assert command.run(["memory", "--runs", "1"]) == 1
    assert calls == [["--runs", "1"]]
    assert not (tmp_path / "results").exists()


def test_run__save__adds_the_result_to_this_machines_file_and_writes_the_page(
    calls: list[list[str]], tmp_path: Path
) -> None:
    assert command.run(["memory", "--save", "--runs", "1"]) == 1
    assert calls == [["--runs", "1"]]
    (path,) = (tmp_path / "results").iterdir()
    machine, by_name = results.read(path)
    assert path.stem == machine.slug == results.describe_machine().slug
    assert by_name["memory"].command == 'make bench NAME=memory ARGS="--runs 1"'
    assert "| `seconds` | 1.5 s | 1 |" in (tmp_path / "docs/benchmarks.md").read_text()


@pytest.mark.usefixtures("calls")
def test_run__save_of_a_run_without_a_result__saves_nothing(tmp_path: Path) -> None:
    command.run(["memory"])
    assert command.run(["memory", "--save", "--crash"]) == 3
    assert not (tmp_path / "results").exists()
