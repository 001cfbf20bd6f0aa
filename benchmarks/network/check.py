"""Seconds of each stage of `.ci/run` in a fresh clone of the last commit with nothing installed.

The output of the run goes to build/bench/check.log.
"""

import argparse
import re
import subprocess
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from benchmarks.harness import finish
from benchmarks.measurement import Bar, Measurement, find_misses, set_bars

BARS = {"make_test_s": Bar(most=480), "ci_run_s": Bar(most=1500)}
TIMEOUT_S = 5400
STAGE = re.compile(r"^== (.+): (\d+) s$")
LOG = Path("build/bench/check.log")


def read_stages(lines: Iterable[str]) -> dict[str, float]:
    """Read the seconds of each stage from the lines that the Makefile printed, in the order in which stages ended."""
    matches = (STAGE.match(line.rstrip()) for line in lines)
    return {match[1]: float(match[2]) for match in matches if match}


def build_measurements(stages: Mapping[str, float], total: float) -> list[Measurement]:
    """Build the two measurements that have bars, then one per stage.

    `make_test_s` is absent if that stage did not end.
    """
    seconds = {"ci_run_s": total}
    if "make test" in stages:
        seconds["make_test_s"] = stages["make test"]
    seconds |= {f"stage.{name.replace(' ', '_')}": value for name, value in stages.items()}
    return set_bars((Measurement(name=name, value=value, unit="s", n=1) for name, value in seconds.items()), BARS)


def main(arguments: Sequence[str]) -> int:
    argparse.ArgumentParser("make bench NAME=check", description=__doc__).parse_args(arguments)
    LOG.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="covey-check-") as folder, LOG.open("w") as log:
        subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", ".", f"{folder}/covey"], check=True, timeout=300)
        started = time.monotonic()
        code = subprocess.run(
            ["bash", ".ci/run"],
            cwd=f"{folder}/covey",
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            timeout=TIMEOUT_S,
            check=False,
        ).returncode
        total = time.monotonic() - started
    measurements = build_measurements(read_stages(LOG.read_text().splitlines()), total)
    failures = [] if code == 0 else [f".ci/run ended with exit code {code}: read {LOG}"]
    if "make_test_s" not in {each.name for each in measurements}:
        failures.append("the stage make test did not end")
    return finish("check", measurements, failures + find_misses(measurements), arguments)
