"""How long the check takes: `.ci/run` in a fresh clone of the last commit, with nothing installed, stage by stage.

`make bench NAME=check`; the output of the run goes to build/bench/check.log.
"""

import argparse
import re
import subprocess
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks.harness import Measurement, find_misses, finish

MOST = {"make_test_s": 480.0, "ci_run_s": 1500.0}
LIMIT_S = 5400
STAGE = re.compile(r"^== (.+): (\d+) s$")
LOG = Path("build/bench/check.log")


def read_stages(lines: Iterable[str]) -> dict[str, float]:
    """Seconds of each stage that the Makefile printed, in the order in which the stages ended."""
    found = (STAGE.match(line.rstrip()) for line in lines)
    return {match[1]: float(match[2]) for match in found if match}


def build_claims(stages: dict[str, float], total: float) -> list[Measurement]:
    """The two that have bars, then every stage."""
    claims = [Measurement(name="ci_run_s", value=total, unit="s", n=1)]
    if "make test" in stages:
        claims.append(Measurement(name="make_test_s", value=stages["make test"], unit="s", n=1))
    claims += [
        Measurement(name=f"stage.{name.replace(' ', '_')}", value=value, unit="s", n=1)
        for name, value in stages.items()
    ]
    return claims


def main(arguments: Sequence[str]) -> int:
    argparse.ArgumentParser(description=__doc__).parse_args(arguments)
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
            timeout=LIMIT_S,
            check=False,
        ).returncode
        total = time.monotonic() - started
    claims = build_claims(read_stages(LOG.read_text().splitlines()), total)
    failures = [] if code == 0 else [f".ci/run ended with {code}; see {LOG}"]
    if "make_test_s" not in {claim.name for claim in claims}:
        failures.append("the tests did not end")
    return finish("check", claims, failures + find_misses(claims, most=MOST))
