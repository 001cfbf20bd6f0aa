"""Programs against the tests of a row, in real processes: labelled cases, cheats, sizes and leftovers."""

import json
import math
import re
import subprocess
import sys
from pathlib import Path
from textwrap import indent
from unittest.mock import ANY

import pytest

from tests.fakes.cpu_unit import measure_cpu_unit

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[3]
FILE = ROOT / "tests/data/grading/code.jsonl"


LONG_CPU_SECONDS = 30
"""CPU seconds that are enough for any program that ends, on a machine of any speed."""


def grade(*cases, cpu_seconds=1, memory_bytes=256 << 20):
    """Return [grade, code of the limit, seconds] for each (tests, program)."""
    given = json.dumps([{"tests": tests, "program": program} for tests, program in cases])
    answered = subprocess.run(
        [sys.executable, "-m", "tests.fakes.grading_process", str(cpu_seconds), str(memory_bytes)],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT)},
        input=given,
        capture_output=True,
        text=True,
        check=True,
        timeout=900,
    )
    assert answered.stderr == ""
    return json.loads(answered.stdout)


def name_limit(answer):
    """Return the limit that ended the program.

    On a busy machine the wall clock can end a loop before the CPU limit does.
    """
    _, limit, seconds = answer
    return "sandbox_cpu" if limit == "sandbox_timeout" and seconds > 6 else limit


def test_labelled_cases__each__is_graded_as_labelled():
    cases = [json.loads(line) for line in FILE.read_text().splitlines()]
    assert len(cases) >= 60
    answers = grade(*((case["tests"], case["program"]) for case in cases))
    late = [
        index
        for index, (case, answer) in enumerate(zip(cases, answers, strict=True))
        if case["limit"] != "sandbox_cpu" and answer is not None and answer[1] in ("sandbox_cpu", "sandbox_timeout")
    ]
    if late:  # This machine is slow, or these programs have become dear.
        again = [(cases[index]["tests"], cases[index]["program"]) for index in late]
        cpu_seconds = max(2, math.ceil(300 * measure_cpu_unit()))
        for index, answer in zip(late, grade(*again, cpu_seconds=cpu_seconds), strict=True):
            answers[index] = answer
    wrong = [
        (case["why"], answer)
        for case, answer in zip(cases, answers, strict=True)
        if answer is None or [answer[0], name_limit(answer)] != [float(case["right"]), case["limit"]]
    ]
    assert wrong == []


HIDDEN = {"inputs": ["1", "2", "3"], "outputs": ["5", "MARKER-9f3c2a7be4d81065", "MARKER-07d1e6a92c5fb384"]}
RETURNED = {"inputs": [[1], [2], [3]], "outputs": [5, 20260101, [7, "x"]], "fn_name": "f"}
CHEATS = [json.loads(line) for line in (FILE.parent / "code_cheats.jsonl").read_text().splitlines()]
"""Programs that try to pass without solving the task.  They may know the first output, and search for the second."""
NAMES = [cheat["cheat"] for kind in ("prints", "returns", "asserts") for cheat in CHEATS if cheat["kind"] == kind]
PROGRAMS = {cheat["cheat"]: cheat["program"] for cheat in CHEATS if cheat["kind"] == "prints"}
FUNCTIONS = {cheat["cheat"]: cheat["program"] for cheat in CHEATS if cheat["kind"] == "returns"}
ASSERTED = [(cheat["tests"], cheat["program"]) for cheat in CHEATS if cheat["kind"] == "asserts"]
SEARCHES = {name: program for name, program in PROGRAMS.items() if name.startswith("search")}


def test_cheats__none__earns_anything():
    cases = [(HIDDEN, program) for program in PROGRAMS.values()] + [(RETURNED, each) for each in FUNCTIONS.values()]
    answers = grade(*cases, *ASSERTED)
    earned = {name: answer for name, answer in zip(NAMES, answers, strict=True) if answer is None or answer[0] != 0}
    assert earned == {}


def test_cheats__that_search__find_nothing_for_the_first_test_either():
    tests = {"inputs": HIDDEN["inputs"][:1], "outputs": HIDDEN["outputs"][1:2]}
    answers = grade(*((tests, program) for program in SEARCHES.values()))
    assert [answer[0] for answer in answers] == [0.0] * len(SEARCHES)


def search_all(program):
    """Turn a searching program into a function that returns what it finds in the processes of its grading.

    These are the grading process and all its descendants, among them those that run the assertions.
    """
    family = (
        "parents = {}\n"
        "for name in filter(str.isdecimal, os.listdir('/proc')):\n"
        "    with suppress(OSError):\n"
        "        parents[int(name)] = int(open(f'/proc/{name}/stat').read().rpartition(')')[2].split()[1])\n"
        "NEAR = [find_grading_process()]\n"
        "for process in NEAR:\n"
        "    NEAR += [name for name, parent in parents.items() if parent == process]\n"
    )
    program = program.replace("os.write(1, found[0])\n        os._exit(0)", "raise Found(found[0].decode())")
    program = re.sub("NEAR = .*\n", lambda _: family, program)
    program = re.sub(r"^read_memory\(.*", "for process in NEAR:\n    read_memory(process)", program, flags=re.MULTILINE)
    program = program.replace('    with open(f"/proc', '    with suppress(OSError), open(f"/proc')
    return (
        "from contextlib import suppress\nclass Found(Exception):\n    pass\ndef f(n):\n    try:\n"
        f"{indent(program, '        ')}\n    except Found as found:\n        return str(found)\n    return 'nothing'"
    )


def test_cheats__that_search__do_not_find_the_assertions_either():
    hidden = {"test_list": [f"assert f(1) == '{HIDDEN['outputs'][1]}'"]}
    none = {"test_list": ["assert f(1) == 'nothing'"]}
    programs = [search_all(program) for program in SEARCHES.values()]
    answers = grade(
        *((tests, program) for tests in (hidden, none) for program in programs), cpu_seconds=LONG_CPU_SECONDS
    )
    assert [answer[0] for answer in answers[: len(programs)]] == [0.0] * len(programs)
    searched = [name for name, answer in zip(SEARCHES, answers[len(programs) :], strict=True) if answer[0] == 1.0]
    assert len(searched) >= 5  # these have searched to the end


def test_search__of_what_the_program_was_given__succeeds():
    """The searching programs are able to find a marker: each finds the one in its own source."""
    marker = HIDDEN["outputs"][1]
    program = (
        SEARCHES["searches objects"]
        + f"\nhidden = '{marker}'\nfor each in gc.get_objects():\n    show(repr(each).encode())"
    )
    tests = {"inputs": [""], "outputs": [marker]}
    assert grade((tests, program), cpu_seconds=LONG_CPU_SECONDS)[0][0] == 1.0
    own = SEARCHES["searches its own memory"].replace(
        "read_memory('self')", f"hidden = '{marker}'\nread_memory('self')"
    )
    assert grade((tests, own), cpu_seconds=LONG_CPU_SECONDS)[0][0] == 1.0


def test_tests__in_order__until_the_first_that_fails(tmp_path):
    log = tmp_path / "log"
    program = f"n = int(input())\nopen({str(log)!r}, 'a').write(f'{{n}} ')\nprint(n if n < 4 else 0)"
    tests = {"inputs": [str(n) for n in (3, 1, 2, 4, 5)], "outputs": [str(n) for n in (3, 1, 2, 4, 5)]}
    assert grade((tests, program), cpu_seconds=LONG_CPU_SECONDS)[0][:2] == [0.0, ""]
    assert log.read_text() == "3 1 2 4 "


def test_tests__state_of_one__is_not_seen_by_the_next():
    program = (
        "import os, builtins\nprint(sorted(os.listdir('.')), hasattr(builtins, 'mark'))\n"
        "builtins.mark = 1\nopen('left', 'w').close()"
    )
    assert (
        grade(({"inputs": ["", "", ""], "outputs": ["[] False"] * 3}, program), cpu_seconds=LONG_CPU_SECONDS)[0][0]
        == 1.0
    )


def test_leftovers__of_a_test__are_ended_before_the_next():
    """A process in its own session, whose parent has ended, holds a lock that the next test needs."""
    program = (
        "import fcntl, os, time\nlock = open('../lock', 'a')\nfcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)\n"
        "read, write = os.pipe()\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        os.setsid()\n"
        "        os.write(write, b'x')\n        time.sleep(1000)\n    os._exit(0)\nos.read(read, 1)\nprint('free')"
    )
    tests = {"inputs": [""] * 4, "outputs": ["free"] * 4}
    assert grade((tests, program), cpu_seconds=LONG_CPU_SECONDS)[0][:2] == [1.0, ""]


def test_fork_bomb__of_bounded_size__ends_with_its_test():
    program = (
        "import os, time\nfor _ in range(6):\n    os.fork()\n"  # 64 processes
        "if os.getpid() == os.getsid(0):\n    print('done', flush=True)\nelse:\n    os.setsid()\n    time.sleep(1000)"
    )
    tests = {"inputs": ["", ""], "outputs": ["done", "done"]}
    assert grade((tests, program), cpu_seconds=LONG_CPU_SECONDS)[0][:2] == [1.0, ""]


def test_program__that_sleeps__ends_by_the_wall_clock():
    earned, limit, seconds = grade((HIDDEN, "import time\ntime.sleep(1000)"))[0]
    assert (earned, limit) == (0.0, "sandbox_timeout")
    assert seconds > 2


def test_cpu_time__of_tests_together__is_limited():
    program = "import time\nwhile time.process_time() < 0.4:\n    pass\nprint(5)"
    answer = grade(({"inputs": [""] * 12, "outputs": ["5"] * 12}, program), cpu_seconds=2)[0]
    assert (answer[0], name_limit(answer)) == (0.0, "sandbox_cpu")
    assert grade(({"inputs": [""] * 2, "outputs": ["5"] * 2}, program), cpu_seconds=10)[0][:2] == [1.0, ""]


def test_row__of_300_tests_and_one_of_a_megabyte__pass_whole():
    many = {"inputs": [f"{n} {n}" for n in range(300)], "outputs": [str(2 * n) for n in range(300)]}
    large = " ".join(map(str, range(150_000)))
    assert len(large) > 900_000
    big = {"inputs": [large] * 2, "outputs": [large] * 2}
    answers = grade(
        (many, "print(sum(map(int, input().split())))"),
        (many, "a, b = map(int, input().split())\nprint(a + b if a < 299 else 0)"),
        (big, "print(input())"),
        (big, "print(1)"),  # the program reads no input
        (many, "import random\nprint(random.random())"),
        cpu_seconds=200,
    )
    assert [answer[:2] for answer in answers] == [[1.0, ""], [0.0, ""], [1.0, ""], [0.0, ""], [0.0, ""]]


def test_chance__of_a_program__is_the_same_in_each_run():
    """A grade must not depend on the run, so random numbers and the order of sets of strings are fixed."""
    program = "import random\nprint(random.random(), list({'a', 'b', 'c', 'd', 'e'}))"
    show = subprocess.run(
        [sys.executable, "-c", program.replace("print", "random.seed(0)\nprint")],
        env={"PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout
    cases = [({"inputs": ["", ""], "outputs": [show, show]}, program)] * 2
    assert grade(*cases, cpu_seconds=LONG_CPU_SECONDS) == [[1.0, "", ANY]] * 2
