"""Grades of programs as a grading process makes them: a fork for each, with the limits that a sandbox sets.

Usage: python -m tests.fakes.grading_process CPU_SECONDS MEMORY_BYTES < CASES, with a JSON list of {"tests": what
`CodeSource.read_info` takes, "program": str}. Prints a JSON list of [grade, code of the limit, seconds].
"""

import json
import os
import resource
import sys
import time
from typing import TypedDict

from covey.environments.base import GradeLimit, JsonObject, refuse_data_sets
from covey.environments.kinds.code import programs  # noqa: F401 - loaded before the forks, as in a sandbox
from covey.environments.kinds.code.code import CodeSource


class Case(TypedDict):
    tests: JsonObject
    program: str


def grade(source: CodeSource, case: Case, cpu_seconds: int, memory_bytes: int) -> tuple[float, str, float]:
    taken = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()  # noqa: SIM115
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds + 1))
    resource.setrlimit(resource.RLIMIT_AS, (taken + memory_bytes, taken + memory_bytes))
    started = time.monotonic()
    try:
        earned, limit = source.grade(source.read_info(case["tests"]), case["program"]), ""
    except GradeLimit as reached:
        earned, limit = 0.0, reached.code
    return earned, limit, time.monotonic() - started


def main() -> None:
    source = CodeSource({"dataset": "0x" + "00" * 32}, refuse_data_sets)
    answers = []
    for case in json.load(sys.stdin):
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.write(writing, json.dumps(grade(source, case, int(sys.argv[1]), int(sys.argv[2]))).encode())
            finally:
                os._exit(0)
        os.close(writing)
        with open(reading, "rb") as answer:
            said = answer.read()
        os.waitpid(child, 0)
        answers.append(json.loads(said) if said else None)
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
