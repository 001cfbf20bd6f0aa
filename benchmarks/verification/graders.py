"""Grades per second of warm grading processes, on varied replies of which each grade is checked.

Replies are labelled by hand or right or wrong by construction, and none repeats.  Rates are those of calls of 64
replies, as a worker submits them.  Latencies are those of calls of one reply, from as many threads as there are
processes.  "trivial" is the slower of a sum of reasoning-gym and a short answer.  Sums, mathematics and code have one
process per grade.  Its time goes to the fork: the kernel copies an entry for each page of the warm process, and every
page that the child writes.  Short answers are only compared, and need no process.
"""

import argparse
import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.harness import finish
from benchmarks.measurement import Bar, Measurement, find_misses, set_bars
from benchmarks.verification.grading_cases import GradingCase, build_spec, list_cases
from covey.environments.base import Reply
from covey.environments.grader import GradingPool
from covey.environments.registry import load
from covey.protocol.params import GradingParams
from covey.runtime.settings import SandboxSettings

BARS = {
    "trivial_grades_per_s": Bar(least=200),
    "math_grades_per_s": Bar(least=60),
    "wrong_grades": Bar(most=0),
    "zombies": Bar(most=0),
}
BATCH = 64
"""Replies in one call of the grader where rates are measured."""
CODE_SHARE = 5
"""Grades of each other kind for one grade of code, which starts an interpreter."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GradingTimes:
    """Times and mistakes of the grades of one kind."""

    seconds: float
    """Seconds from the first reply to the last grade, in calls of `BATCH` replies."""
    latencies: list[float]
    """Seconds of each grade in a call of one reply, while other threads call too."""
    cpu_seconds: float
    """CPU seconds of the grades alone, without the processes that fork them.  0 if the kind needs no process."""
    wrong: int
    """Number of grades that differ from the label."""
    zombies: int
    """Number of processes that have ended without being waited for, after the last grade."""

    @property
    def rate(self) -> float:
        """Grades per second."""
        return len(self.latencies) / self.seconds


def measure(kind: str, cases: list[GradingCase], *, processes: int) -> GradingTimes:
    """Grade the cases in warm processes.  The first grades of each process are not counted."""
    spec = build_spec(kind)
    latencies: list[float] = []
    settings = SandboxSettings(grading_processes=processes)
    with (
        GradingPool(spec, load(spec), GradingParams(), settings) as pool,
        ThreadPoolExecutor(processes) as executor,
    ):
        pool(_list_replies(list_cases(kind, 8 * processes, seed=1)))

        def grade(case: GradingCase) -> tuple[bool, float]:
            started = time.perf_counter()
            graded = pool([case.reply])[0]
            latencies.append(time.perf_counter() - started)
            return graded.reward == float(case.is_right) and not graded.limit, graded.cpu_seconds

        started = time.perf_counter()
        batches = [cases[start : start + BATCH] for start in range(0, len(cases), BATCH)]
        together = [graded for batch in batches for graded in pool(_list_replies(batch))]
        seconds = time.perf_counter() - started
        alone = list(executor.map(grade, cases))
        zombies = count_zombies(os.getpid())
    return GradingTimes(
        seconds=seconds,
        latencies=latencies,
        cpu_seconds=sum(used for _, used in alone),
        wrong=sum(
            not is_as_labelled or graded.reward != float(case.is_right)
            for case, graded, (is_as_labelled, _) in zip(cases, together, alone, strict=True)
        ),
        zombies=zombies,
    )


def _list_replies(cases: Sequence[GradingCase]) -> list[Reply]:
    return [case.reply for case in cases]


def count_zombies(process: int) -> int:
    """Count the descendants of a process that have ended without being waited for."""
    states: dict[int, tuple[int, str]] = {}
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            fields = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        states[int(name)] = (int(fields[1]), fields[0])
    zombies, queue = 0, [process]
    while queue:
        parent = queue.pop()
        children = [number for number, (above, _) in states.items() if above == parent]
        zombies += sum(states[number][1] == "Z" for number in children)
        queue += children
    return zombies


def build_measurements(times: Mapping[str, GradingTimes]) -> list[Measurement]:
    """Build rates and latencies of each kind, then the mistakes of all.  The slower trivial kind has the bar."""
    measurements = []
    trivial = min(("short_answer", "reasoning_gym"), key=lambda kind: times[kind].rate)
    names = {trivial: "trivial", "math": "math", "code": "code"} | {
        kind: kind for kind in ("short_answer", "reasoning_gym") if kind != trivial
    }
    for kind, name in names.items():
        of_kind = times[kind]
        n = len(of_kind.latencies)
        values = [("grades_per_s", of_kind.rate, "grades/s")]
        values += [(f"p{rank}_ms", float(np.percentile(of_kind.latencies, rank)) * 1000, "ms") for rank in (50, 99)]
        if of_kind.cpu_seconds:
            values.append(("child_cpu_ms", of_kind.cpu_seconds / n * 1000, "CPU ms"))
        peer = f"kind {kind}" if kind != name else ""
        measurements += [
            Measurement(name=f"{name}_{suffix}", value=value, unit=unit, n=n, peer=peer)
            for suffix, value, unit in values
        ]
    total = sum(len(of_kind.latencies) for of_kind in times.values())
    wrong, zombies = (sum(getattr(of_kind, name) for of_kind in times.values()) for name in ("wrong", "zombies"))
    measurements.append(Measurement(name="wrong_grades", value=wrong, unit="grades", n=total))
    measurements.append(Measurement(name="zombies", value=zombies, unit="processes", n=total))
    return set_bars(measurements, BARS)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser("make bench NAME=graders", description=__doc__)
    parser.add_argument("--grades", type=int, default=2000, help="grades of each kind; code has a fifth; default: 2000")
    parser.add_argument("--processes", type=int, default=2, help="grading processes, at most one per core; default: 2")
    parser.add_argument("--seed", type=int, default=0, help="seed of the replies by construction; default: 0")
    options = parser.parse_args(arguments)
    counts = dict.fromkeys(("reasoning_gym", "short_answer", "math"), options.grades)
    counts["code"] = max(1, options.grades // CODE_SHARE)
    times = {
        kind: measure(kind, list_cases(kind, count, seed=options.seed), processes=options.processes)
        for kind, count in counts.items()
    }
    measurements = build_measurements(times)
    return finish("graders", measurements, find_misses(measurements), arguments)
