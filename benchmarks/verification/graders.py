"""Grades per second of warm grading processes, one per core, on varied answers of which each grade is checked.

`make bench NAME=graders`; ARGS="--grades 2000 --processes 2".  Rates are of calls of 64
replies, as a worker hands in.  Latencies are of calls of one, from as many threads as there are processes.
"""

import argparse
import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.harness import Measurement, find_misses, finish
from benchmarks.verification.grading_cases import GradingCase, build_spec, list_cases
from covey.environments.base import Reply
from covey.environments.grader import GradingPool
from covey.environments.registry import load
from covey.protocol.params import GradingParams
from covey.runtime.settings import SandboxSettings

LEAST = {"trivial_grades_per_s": 200.0, "math_grades_per_s": 60.0}
MOST = {"wrong_grades": 0.0, "zombies": 0.0}
BATCH = 64
"""Replies in one call of the grader where rates are measured."""
CODE_SHARE = 5
"""One grade of code for each so many of the others, since it starts an interpreter."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GradingTimes:
    """What one kind's grades took."""

    seconds: float
    """From the first question to the last grade, in calls of `BATCH` replies."""
    latencies: list[float]
    """Seconds of each grade, asked for alone while another one is made."""
    cpu_seconds: float
    """CPU seconds of the grades alone, without their zygotes."""
    wrong: int
    """Grades that differ from the label."""
    zombies: int
    """Processes that have ended and that nobody has waited for, after the last grade."""

    @property
    def rate(self) -> float:
        """Grades per second."""
        return len(self.latencies) / self.seconds


def measure(kind: str, cases: list[GradingCase], *, processes: int) -> GradingTimes:
    """Grade the cases in warm processes; the first grades of each process are not counted."""
    spec = build_spec(kind)
    latencies: list[float] = []
    settings = SandboxSettings(grading_processes=processes)
    with (
        GradingPool(spec, load(spec), GradingParams(), settings) as pool,
        ThreadPoolExecutor(processes) as executor,
    ):
        pool(_list(list_cases(kind, 8 * processes, seed=1)))

        def grade(case: GradingCase) -> tuple[bool, float]:
            started = time.perf_counter()
            found = pool([case.reply])[0]
            latencies.append(time.perf_counter() - started)
            return found.reward == float(case.is_right) and not found.limit, found.cpu_seconds

        started = time.perf_counter()
        together = [
            found for start in range(0, len(cases), BATCH) for found in pool(_list(cases[start : start + BATCH]))
        ]
        seconds = time.perf_counter() - started
        grades = list(executor.map(grade, cases))
        zombies = count_zombies(os.getpid())
    return GradingTimes(
        seconds=seconds,
        latencies=latencies,
        cpu_seconds=sum(used for _, used in grades),
        wrong=sum(
            not is_as_labelled or found.reward != float(case.is_right)
            for case, found, (is_as_labelled, _) in zip(cases, together, grades, strict=True)
        ),
        zombies=zombies,
    )


def _list(cases: Sequence[GradingCase]) -> list[Reply]:
    return [case.reply for case in cases]


def count_zombies(process: int) -> int:
    """Descendants of a process that have ended and that nobody has waited for."""
    states: dict[int, tuple[int, str]] = {}
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            fields = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        states[int(name)] = (int(fields[1]), fields[0])
    found, left = 0, [process]
    while left:
        parent = left.pop()
        children = [number for number, (above, _) in states.items() if above == parent]
        found += sum(states[number][1] == "Z" for number in children)
        left += children
    return found


def build_claims(measured: dict[str, GradingTimes]) -> list[Measurement]:
    """Rates and latencies of each kind, then what went wrong in all of them.  The slower trivial kind has the bar."""
    claims = []
    trivial = min(("short_answer", "reasoning_gym"), key=lambda kind: measured[kind].rate)
    names = {trivial: "trivial", "math": "math", "code": "code"} | {
        kind: kind for kind in ("short_answer", "reasoning_gym") if kind != trivial
    }
    for kind, name in names.items():
        taken = measured[kind]
        n = len(taken.latencies)
        peer = kind if kind != name else ""
        claims.append(Measurement(name=f"{name}_grades_per_s", value=taken.rate, unit="grades/s", n=n, peer=peer))
        for rank in (50, 99):
            value = float(np.percentile(taken.latencies, rank)) * 1000
            claims.append(Measurement(name=f"{name}_p{rank}_ms", value=value, unit="ms", n=n, peer=peer))
        value = taken.cpu_seconds / n * 1000
        if taken.cpu_seconds:
            value = taken.cpu_seconds / n * 1000
            claims.append(Measurement(name=f"{name}_child_cpu_ms", value=value, unit="CPU ms", n=n, peer=peer))
    total = sum(len(taken.latencies) for taken in measured.values())
    wrong, zombies = (sum(getattr(taken, name) for taken in measured.values()) for name in ("wrong", "zombies"))
    claims.append(Measurement(name="wrong_grades", value=wrong, unit="grades", n=total))
    claims.append(Measurement(name="zombies", value=zombies, unit="processes", n=total))
    return claims


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--grades", type=int, default=2000, help="grades of each kind; a fifth of them for code")
    parser.add_argument("--processes", type=int, default=2, help="grading processes, which bounds the cores in use")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    counts = dict.fromkeys(("reasoning_gym", "short_answer", "math"), options.grades)
    counts["code"] = max(1, options.grades // CODE_SHARE)
    measured = {
        kind: measure(kind, list_cases(kind, count, seed=options.seed), processes=options.processes)
        for kind, count in counts.items()
    }
    claims = build_claims(measured)
    return finish("graders", claims, find_misses(claims, least=LEAST, most=MOST))
