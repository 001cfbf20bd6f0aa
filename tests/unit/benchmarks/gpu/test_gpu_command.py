"""The command: which sections run for how long, their commands, and the results of those that fail."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.gpu import gpu_command
from benchmarks.gpu.gpu_command import GpuRun, build_command, build_environment, parse, plan, read_tests, run
from benchmarks.gpu.gpu_facts import GpuFacts
from benchmarks.gpu.section_list import SECTIONS, Section
from benchmarks.gpu.section_rows import SectionRow, read_rows
from benchmarks.measurement import Bar

pytestmark = pytest.mark.unit

SECTION = Section(name="trainer", module="benchmarks.gpu.update_speed", least=30, most=150)
TESTS, ENGINE = SECTIONS[0], SECTIONS[-2]


@pytest.mark.parametrize(
    ("left", "is_tiny", "planned"),
    [(400, False, 150), (60, False, 60), (29.9, False, "skipped: needs 30 s, 30 s are left"), (29.9, True, 29.9),
     (-4, True, "skipped: needs 30 s, 0 s are left")],
)  # fmt: skip
def test_plan__time_that_is_left__limits_a_section(left: float, is_tiny: bool, planned: float | str) -> None:
    assert plan(SECTION, left, is_installed=True, is_tiny=is_tiny) == planned


def test_plan__package_that_is_missing__skips_a_section() -> None:
    assert plan(ENGINE, 400, is_installed=False, is_tiny=False) == "skipped: vllm is not installed"


def test_build_command__section_and_tests__run_by_this_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_command.time, "monotonic", lambda: 1000.0)
    gpu_run = GpuRun(folder=tmp_path, ends=0, is_tiny=True, checks_noise=False)
    command = build_command(gpu_run, SECTION, 59.7)
    options = ["--file", f"{tmp_path}/rows.jsonl", "--ends", "1059.7", "--tiny"]
    assert command[1:] == ["-m", "benchmarks.gpu.section_process", "trainer", *options]
    assert build_command(gpu_run, TESTS, 60)[1:] == ["-m", "pytest", "tests/gpu"]


def test_build_environment__of_vllm__leaves_the_allocator_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTORCH_CUDA_ALLOC_CONF", raising=False)
    assert build_environment(SECTION)["PYTORCH_CUDA_ALLOC_CONF"] == "expandable_segments:True"
    assert "PYTORCH_CUDA_ALLOC_CONF" not in build_environment(ENGINE)


def test_read_tests__output_of_pytest__counts_by_outcome() -> None:
    row = read_tests("...s\n20 passed, 1 skipped in 36.02s\n=== skipped tests ===\n  1 need 7 passed things\n")
    assert (row.value, row.n, row.note) == (20, 21, "1 skipped")
    row = read_tests("F.\n==== 1 failed, 1 passed in 0.20s ====\n")
    assert (row.value, row.n, row.note) == (1, 2, "1 failed")
    assert read_tests("ImportError").value == 0


def test_parse__unknown_section__names_those_that_exist(capsys: pytest.CaptureFixture[str]) -> None:
    assert parse([]).minutes == 8
    with pytest.raises(SystemExit):
        parse(["sampler", "smapler"])
    assert "there is no section smapler; choose from tests, sampler, trainer" in capsys.readouterr().err


Process = Callable[[list[str], Path, float, dict[str, str]], str]


@pytest.fixture
def measure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., int]:
    """Return a function that runs the command with a process that is given, on a machine with a GPU or without."""

    def call(arguments: list[str], process: Process, *, has_cuda: bool = True) -> int:
        facts = GpuFacts(has_cuda=has_cuda, device="NVIDIA H200", versions={"torch": "2.13"}, commit="")
        monkeypatch.setenv("OUT", str(tmp_path / "out"))
        monkeypatch.setattr(gpu_command, "read_facts", lambda: facts)
        monkeypatch.setattr(gpu_command, "run_process", process)
        return run(arguments)

    return call


def write_row(command: list[str], log: Path, seconds: float, environment: dict[str, str]) -> str:
    """Take the place of a section that misses its aim."""
    assert seconds > 0
    assert environment
    log.write_text("a log\n")
    row = SectionRow(section=command[3], case="a case", value=2.0, peer_value=1.0, aim=Bar(most=1.5))
    with Path(command[5]).open("a") as file:
        file.write(row.encode())
    return ""


def test_run__rows_that_miss_their_aim__fail_on_a_gpu_alone(
    measure: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert measure(["trainer", "sampler"], write_row) == 1
    printed = capsys.readouterr()
    assert "trainer: a case misses its aim, ratio at most 1.5" in printed.err
    rows = read_rows(tmp_path / "out" / "rows.jsonl")
    assert [row.section for row in rows] == ["sampler", "trainer"]  # in the order of the list
    table = (tmp_path / "out" / "table.md").read_text()
    assert table in printed.out
    assert "| NO " in table
    assert measure(["trainer"], write_row, has_cuda=False) == 0
    assert "Sizes are tiny" in capsys.readouterr().out


def test_run__a_section_that_hangs__has_a_row_and_the_next_one_runs(
    measure: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def hang(command: list[str], log: Path, seconds: float, environment: dict[str, str]) -> str:
        write_row(command, log, seconds, environment)
        return "ended after 60 s" if command[3] == "sampler" else ""

    assert measure(["trainer", "sampler"], hang, has_cuda=False) == 1
    rows = read_rows(tmp_path / "out" / "rows.jsonl")
    assert [(row.section, row.note) for row in rows] == [
        ("sampler", ""), ("sampler", "failed: ended after 60 s"), ("trainer", ""),
    ]  # fmt: skip
    assert "a log" in (error := capsys.readouterr().err)
    assert f"sampler failed; read {tmp_path}/out/sampler.log" in error


def test_run__no_minutes__skips_everything(measure: Callable[..., int], tmp_path: Path) -> None:
    start = time.monotonic()
    assert measure(["--minutes", "0"], lambda *_: pytest.fail("no section fits")) == 0
    notes = {row.section: row.note for row in read_rows(tmp_path / "out" / "rows.jsonl")}
    assert notes["sampler"] == "skipped: needs 20 s, 0 s are left"
    assert len(notes) == len(SECTIONS)
    assert time.monotonic() - start < 5
