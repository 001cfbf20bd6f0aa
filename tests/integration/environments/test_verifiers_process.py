"""Interpreters that respond wrongly, late or not at all when Covey requests a taskset."""

import sys
from pathlib import Path

import pytest

from covey.environments.kinds.verifiers import verifiers_process
from covey.environments.kinds.verifiers.verifiers_process import TasksetRequest, ask_tasks, ask_versions
from covey.errors import OperatorError

pytestmark = pytest.mark.integration

REQUEST = TasksetRequest(taskset="any-tasks", config={}, tasks=None)
PYTHON = ".".join(map(str, sys.version_info[:2]))
HEAD = f'{{"python": "{PYTHON}", "versions": {{"verifiers": "0.4.0"}}}}'
ROW = '{"data": {}, "question": "q", "system": ""}'


def write(folder: Path, *lines: str, last: str = "") -> Path:
    """Write an interpreter that prints these lines for every request."""
    script = folder / "python"
    script.write_text("#!/bin/sh\n" + "".join(f"echo '{line}'\n" for line in lines) + f"{last}\n")
    script.chmod(0o755)
    return script


def test_ask_tasks__complete_answer__is_read(tmp_path):
    loaded = ask_tasks(write(tmp_path, HEAD, ROW, '{"data_hash": "0x12", "count": 1}'), REQUEST)
    assert [row.question for row in loaded.rows] == ["q"]
    assert loaded.data_hash == "0x12"


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ((), "it returned no output"),
        (("hello",), "its output is malformed"),
        (('{"python": "2.7", "versions": {}}',), "it is Python 2.7, but Covey runs on"),
        ((HEAD,), "it returned an incomplete list of tasks"),
        ((HEAD, ROW), "it returned an incomplete list of tasks"),
        ((HEAD, '{"data_hash": "0x12", "count": 1}'), "it returned an incomplete list of tasks"),
    ],
)
def test_ask_tasks__wrong_answer__is_refused(tmp_path, lines, message):
    with pytest.raises(OperatorError, match=f"bad_interpreter: .*{message}"):
        ask_tasks(write(tmp_path, *lines), REQUEST)


@pytest.mark.parametrize("code", ["no_verifiers", "no_taskset", "bad_taskset"])
def test_ask_versions__refusal__has_its_code_and_words(tmp_path, code):
    with pytest.raises(OperatorError, match="because of this") as caught:
        ask_versions(write(tmp_path, f'{{"refusal": "{code}", "message": "because of this"}}'), REQUEST)
    assert caught.value.code == code


def test_ask_tasks__failure__is_told_by_its_last_line(tmp_path):
    python = write(tmp_path, HEAD, last="echo first >&2; echo no such split >&2; exit 1")
    with pytest.raises(OperatorError, match=r"bad_taskset: .*: no such split"):
        ask_tasks(python, REQUEST)


def test_ask_versions__no_answer_in_time__ends_it(tmp_path, monkeypatch):
    monkeypatch.setattr(verifiers_process, "VERSIONS_SECONDS", 0.3)
    monkeypatch.setattr(verifiers_process, "LOG_SECONDS", 0.1)
    with pytest.raises(OperatorError, match=r"bad_taskset: .*did not load within 0 s"):
        ask_versions(write(tmp_path, last="exec sleep 60"), REQUEST)


def test_ask_versions__not_a_program__is_refused(tmp_path):
    with pytest.raises(OperatorError, match="bad_interpreter"):
        ask_versions(tmp_path, REQUEST)
    # A Python without verifiers reports this itself.
    with pytest.raises(OperatorError, match=r"no_verifiers|no_taskset"):
        ask_versions(Path(sys.executable), REQUEST)


def test_environment__settings_of_covey__do_not_reach_a_taskset(tmp_path, monkeypatch):
    monkeypatch.setenv("COVEY_KEY_FILE", "secret")
    line = '{\\"python\\": \\"%s\\", \\"versions\\": {\\"seen\\": \\"$COVEY_KEY_FILE,$PYTHONHASHSEED\\"}}' % PYTHON  # noqa: UP031
    assert ask_versions(write(tmp_path, last=f'echo "{line}"'), REQUEST) == {"seen": ",0"}
