"""Judges programs by their assertions in the plainest way: one `exec` of program and tests, in a fork of this process.

It shares nothing with the grader, and protects nothing, so it is for programs that are known.

Usage: python -m tests.fakes.plain_assertions < CASES, with a JSON list of {"programs": [str, ...], "tests": str}. It
prints a JSON list with the index of the first program of each case that fails its tests, or null.
"""

import json
import os
import resource
import sys

CPU_SECONDS = 2
FAILED = 7
"""Exit status of a program whose tests fail, in contrast to one that hangs."""


def fails(program: str, tests: str) -> bool:
    child = os.fork()
    if child == 0:
        status = 1
        try:
            resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
            sys.stdout = open(os.devnull, "w")  # noqa: SIM115
            exec(f"{program}\n{tests}", {"__name__": "plain"})
            status = 0
        except Exception:
            status = FAILED
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == FAILED


def main() -> None:
    cases = json.load(sys.stdin)
    found = [
        next((index for index, program in enumerate(case["programs"]) if fails(program, case["tests"])), None)
        for case in cases
    ]
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
