"""Programs in the sandbox's grading processes, at every isolation level that this machine supports."""

import pytest

from covey.environments.base import EnvironmentSpec, Reply
from covey.environments.grading_process import pack_reply, pack_spec, unpack_grade
from covey.sandbox import LEVELS, CallLimits, Sandbox, try_level

pytestmark = pytest.mark.integration

SPEC = EnvironmentSpec(kind="code", options={"dataset": "0x" + "00" * 32})
TESTS = {"inputs": ["1 2", "3 4"], "outputs": ["3", "MARKER-9f3c2a7be4d81065"], "fn_name": None}
SEARCH = """
import os, re
a, b = map(int, input().split())
for process in filter(str.isdecimal, os.listdir("/proc")):
    try:
        with open(f"/proc/{process}/maps") as maps, open(f"/proc/{process}/mem", "rb", 0) as memory:
            for line in maps:
                start, end = (int(each, 16) for each in line.split()[0].split("-"))
                try:
                    memory.seek(start)
                    for found in re.findall(rb"MARKER-[0-9a-f]{16}", memory.read(end - start)):
                        os.write(1, found)
                        os._exit(0)
                except (OSError, OverflowError):
                    pass
    except OSError:
        pass
print(a + b)
"""
CASES = {
    "print(sum(map(int, input().split())))": (1.0, ""),
    "print(3)": (0.0, ""),
    "while True:\n    pass": (0.0, "sandbox_cpu"),
    "x = bytearray(1 << 40)": (0.0, "sandbox_memory"),
    "import os\nos.kill(os.getppid(), 9)": (0.0, "sandbox_died"),
    "import os\nwhile True:\n    os.fork()": (0.0, ""),
    SEARCH: (0.0, ""),
}
"""Reward and limit of a program; the first is tested on sums alone."""
ASSERTIONS = {"assertions": "assert add(1, 2) == 3\nassert add('a', 'b') == 'ab'", "names": ["add"], "prelude": ""}
ADDS = {
    "def add(a, b):\n    return a + b": (1.0, ""),
    "def add(a, b):\n    return 3": (0.0, ""),
    "import os\ndef add(a, b):\n    os.kill(os.getppid(), 9)\n    return a + b": (0.0, "sandbox_died"),
}
"""Reward and limit of a program whose tests are assertions."""
LIMITS = CallLimits(cpu_seconds=2, wall_seconds=120, memory_bytes=512 << 20, processes=16)


def build_reply(program, tests):
    return Reply(verification=tests, target=None, text=f"```python\n{program}\n```", finished=True, tokens=9)


def read(outcome):
    """Return reward and limit. The sandbox can be the first to see that CPU time is used up.

    The wall clock may end a loop only if the machine gave it less than its CPU time.
    """
    if outcome.error is not None:
        reward, limit = 0.0, outcome.error.code
    else:
        grade = unpack_grade(outcome.answer)
        reward, limit = grade.reward, grade.limit
    is_starved = limit == "sandbox_timeout" and outcome.cpu_seconds < LIMITS.cpu_seconds
    return reward, "sandbox_cpu" if is_starved else limit


@pytest.mark.parametrize("level", LEVELS)
def test_programs__on_each_level__are_graded_alike(level):
    if try_level(level).isolation is None:
        pytest.skip(f"{level} does not hold here")
    sums = {**TESTS, "outputs": ["3", "7"]}
    with Sandbox(
        "covey.environments.grading_process:build", setup=pack_spec(SPEC), limits=LIMITS, isolation=level
    ) as sandbox:
        outcomes = {
            program: sandbox.run(pack_reply(build_reply(program, sums if i == 0 else TESTS)))
            for i, program in enumerate(CASES)
        }
        outcomes |= {program: sandbox.run(pack_reply(build_reply(program, ASSERTIONS))) for program in ADDS}
    assert {program: read(outcome) for program, outcome in outcomes.items()} == CASES | ADDS
