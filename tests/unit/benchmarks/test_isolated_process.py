"""Calls in fresh processes: what crosses, how the process starts, and the error if it fails.

The command runs in this process instead, so that both of its sides are covered without starting one.
"""

import io
import json
import runpy
import subprocess
import sys
import traceback
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from benchmarks import isolated_process
from benchmarks.training.copy_task import SMALL
from covey.errors import OperatorError

pytestmark = pytest.mark.unit


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[dict[str, Any]]:
    """Environments and commands of the processes that were started."""
    calls: list[dict[str, Any]] = []

    def run(command: list[str], *, stderr: io.TextIOBase, **options: Any) -> subprocess.CompletedProcess[str]:
        calls.append({"command": command, **options})
        output = io.StringIO()
        with monkeypatch.context() as patch, redirect_stdout(output):
            patch.setattr(sys, "argv", command[2:])
            patch.delitem(sys.modules, "benchmarks.isolated_process")
            try:
                runpy.run_module(command[2], run_name="__main__")
            except ValueError:
                stderr.write(traceback.format_exc())
                return subprocess.CompletedProcess(command, 1, output.getvalue())
        return subprocess.CompletedProcess(command, 0, output.getvalue())

    monkeypatch.setattr(isolated_process.subprocess, "run", run)
    monkeypatch.setattr(isolated_process, "LOGS", tmp_path / "logs")
    return calls


@pytest.mark.usefixtures("started")
def test_call__values_and_a_dataclass__cross_as_json() -> None:
    assert isolated_process.call("json:loads", '[1.5, {"a": null}]') == [1.5, {"a": None}]
    fields = {"name": "small", "hidden": 64, "layers": 2, "learning_rate": 7e-4, "steps": 450, "timed": 250}
    assert json.loads(isolated_process.call("json:dumps", SMALL)) == {**fields, "groups": 8, "siblings": 8}


@pytest.mark.usefixtures("started")
def test_call__function_that_prints__is_read_from_the_last_line() -> None:
    assert isolated_process.call("builtins:print", "[7]") is None


def test_call__any_function__starts_an_offline_interpreter_with_one_thread(
    started: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    isolated_process.call("builtins:len", [1])
    (call,) = started
    assert call["command"][:3] == [sys.executable, "-m", "benchmarks.isolated_process"]
    assert (call["env"]["OMP_NUM_THREADS"], call["env"]["HF_HUB_OFFLINE"]) == ("1", "1")
    assert call["timeout"] == isolated_process.TIMEOUT_S


@pytest.mark.usefixtures("started")
def test_call__process_that_fails__names_its_log(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match=r"json:loads ended with exit code 1\. Read .*json-loads\.log") as caught:
        isolated_process.call("json:loads", "no json")
    assert caught.value.code == "child_failed"
    assert "JSONDecodeError" in (tmp_path / "logs/json-loads.log").read_text()


def test_read_peak__status_of_the_process__is_its_high_water_mark_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "read_text", lambda _: "VmPeak:\t    9 kB\nVmHWM:\t    7 kB\nVmRSS:\t    5 kB\n")
    assert isolated_process.read_peak() == 7 * 1024
