"""Calls in a process of their own: what crosses, what the process is like, what is said of one that fails."""

import json
import os
from pathlib import Path

import pytest

from benchmarks import isolated_process
from benchmarks.training.copy_task import SMALL
from covey.errors import OperatorError

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(isolated_process, "LOGS", tmp_path / "logs")
    return tmp_path / "logs"


def test_call__values_and_a_dataclass__cross_as_json() -> None:
    assert isolated_process.call("json:loads", '[1.5, {"a": null}]') == [1.5, {"a": None}]
    fields = {"name": "small", "hidden": 64, "layers": 2, "learning_rate": 7e-4, "steps": 450, "timed": 250}
    assert json.loads(isolated_process.call("json:dumps", SMALL)) == {**fields, "groups": 8, "siblings": 8}


def test_call__function_that_writes__is_read_after_it() -> None:
    assert isolated_process.call("subprocess:call", ["echo", "[7]"]) == 0


def test_call__any_function__is_in_another_process_of_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert isolated_process.call("os:getpid") != os.getpid()
    assert isolated_process.call("torch:get_num_threads") == 1


def test_call__process_that_fails__says_where_to_look(logs: Path) -> None:
    with pytest.raises(OperatorError, match=r"json-loads\.log") as caught:
        isolated_process.call("json:loads", "no json")
    assert caught.value.code == "child_failed"
    assert "JSONDecodeError" in (logs / "json-loads.log").read_text()
