"""Each hostile answer through the whole of grading earns nothing and ends within its limits."""

import os
from dataclasses import replace

import pytest

from benchmarks.verification.graders import count_zombies
from benchmarks.verification.grading_cases import build_reply, list_cases, read_labels
from covey.environments.kinds.code.code import CodeSource
from tests.fakes.hostile_answers import MATH, PROGRAMS, SHORT, SPELLING
from tests.integration.environments.conftest import mark, open_mixture

pytestmark = pytest.mark.integration

CPU_SECONDS = 0.5
NAMED = [("code", name) for name in PROGRAMS]
NAMED += [("math", name) for name in MATH]
NAMED += [("short_answer", name) for name in SHORT]
NAMED += [("reasoning_gym", name) for name in SPELLING]


TIMES = {"sandbox_cpu", "sandbox_timeout"}


@pytest.fixture(scope="module")
def pool():
    """A pool in which an answer that hangs ends soon. On a slow machine, so do answers that do not hang."""
    with open_mixture(cpu_seconds=CPU_SECONDS) as opened:
        opened([mark("reasoning_gym", list_cases("reasoning_gym", 1)[0].reply)])
        yield opened


@pytest.fixture(scope="module")
def patient_pool():
    """A pool that gives every answer enough time, on a machine of any speed."""
    with open_mixture(cpu_seconds=30.0) as opened:
        yield opened


@pytest.mark.parametrize(("kind", "name"), NAMED, ids=lambda value: value)
def test_grade__hostile_answer__earns_nothing_within_its_limits(pool, hostile, kind: str, name: str):
    """None of them would end by itself within the time that its limits give it."""
    (grade,) = pool([mark(kind, hostile[kind, name].reply)])
    assert grade.reward == 0.0
    assert grade.cpu_seconds < 2 * CPU_SECONDS + 1  # a hard limit has whole seconds


@pytest.mark.parametrize(
    ("name", "limits"),
    [
        ("hangs", {"sandbox_cpu"}),
        ("hangs and ignores signals", {"sandbox_cpu"}),
        ("memory bomb in children", {"sandbox_memory", "sandbox_cpu"}),
        ("endless output", {"sandbox_output", "sandbox_cpu"}),
    ],
)
def test_grade__limit_of_a_program__is_named(pool, hostile, name: str, limits: set[str]):
    """The wall clock ends a program that the machine gave less than its CPU time."""
    (grade,) = pool([mark("code", hostile["code", name].reply)])
    assert grade.limit in limits or (grade.limit == "sandbox_timeout" and grade.cpu_seconds < CPU_SECONDS)


def test_grade__program_that_sleeps__ends_by_the_wall_clock(pool, hostile):
    reply = hostile["code", "hangs"].reply
    sleeping = mark("code", replace(reply, text="```\nimport time\ntime.sleep(1000)\n```"))
    (grade,) = pool([sleeping])
    assert (grade.reward, grade.limit) == (0.0, "sandbox_timeout")


HIDDEN = {"inputs": ["1", "2"], "outputs": ["5", "MARKER-9f3c2a7be4d81065"], "fn_name": None}
RETURNED = {"inputs": [[1], [2], [3]], "outputs": [5, 20260101, [7, "x"]], "fn_name": "f"}
ECHO = {"inputs": ["5", "7"], "outputs": ["5", "7"], "fn_name": None}
RIGHT, WRONG = "```python\nprint(input())\n```", "```python\nprint(5)\n```"


def grade_code(pool, *cases: tuple[dict[str, object], str]) -> list[float]:
    grades = pool([mark("code", build_reply(tests, text)) for tests, text in cases])
    return [grade.reward for grade in grades]


def check_cheats(pool, cheats) -> None:
    tests = {"prints": HIDDEN, "returns": RETURNED}
    cases = [
        (tests.get(cheat["kind"]) or CodeSource.read_info(cheat["tests"]), f"````python\n{cheat['program']}\n````")
        for cheat in cheats
    ]
    earned = grade_code(pool, *cases)
    assert [cheat["cheat"] for cheat, reward in zip(cheats, earned, strict=True) if reward != 0] == []


def test_grade__programs_that_cheat__earn_nothing_through_extraction_and_grading(patient_pool):
    """They use exit statuses, objects equal to everything, searches for the tests, and patches of the comparison."""
    cheats = read_labels("code_cheats.jsonl")
    assert len(cheats) >= 90
    check_cheats(patient_pool, cheats[::3])


@pytest.mark.full
def test_grade__all_programs_that_cheat__earn_nothing(patient_pool):
    check_cheats(patient_pool, read_labels("code_cheats.jsonl"))


@pytest.mark.parametrize(
    ("text", "reward"),
    [
        (RIGHT, 1.0),
        (f"{WRONG}\nBetter:\n{RIGHT}", 1.0),
        (f"{RIGHT}\nor\n{WRONG}", 0.0),
        (f"<think>{RIGHT}</think>", 0.0),
        (f"<think>{RIGHT}</think>{WRONG}", 0.0),
        (f"<think>{RIGHT}", 0.0),
        (RIGHT.removesuffix("```"), 0.0),
        ("```json\nprint(input())\n```", 0.0),
        ("```python\nprint(5)\nprint(7)\n```", 0.0),
        ("```python\nimport sys\nsys.exit(0)\n```", 0.0),
        ("```python\nassert True\n```", 0.0),
        ("```python\nimport builtins\nbuiltins.print = lambda *_: True\nprint(input())\n```", 0.0),
    ],
)
def test_grade__place_of_the_program__is_the_last_block_after_the_thinking_part(patient_pool, text: str, reward: float):
    assert grade_code(patient_pool, (ECHO, text)) == [reward]


def check_junk(pool, step: int) -> None:
    junk = read_labels("junk.txt")[::step]
    assert len(junk) * step >= 500
    texts = [text for each in junk for text in (each, f"````python\n{each}\n````")]
    earned = grade_code(pool, *((HIDDEN, text) for text in texts))
    assert [text for text, reward in zip(texts, earned, strict=True) if reward != 0] == []


def test_grade__every_twelfth_string_of_junk__is_no_program(pool):
    check_junk(pool, 12)


@pytest.mark.full
def test_grade__500_strings_of_junk__are_no_programs(pool):
    check_junk(pool, 1)


BEFORE = {
    "code": ["hangs and ignores signals", "memory bomb", "kills everything", "leaves a daemon"],
    "math": ["factorials", "deeply nested fractions"],
    "short_answer": ["combining marks"],
    "reasoning_gym": ["surrogate"],
}


def test_grade__right_answers_after_hostile_ones__earn_one(pool, patient_pool, hostile):
    attacks = [mark(kind, hostile[kind, name].reply) for kind, names in BEFORE.items() for name in names]
    assert {grade.reward for grade in pool(attacks)} == {0.0}
    cases = {kind: list_cases(kind, 6) for kind in ("math", "code", "short_answer", "reasoning_gym")}
    replies = [mark(kind, case.reply) for kind, listed in cases.items() for case in listed]
    rights = [float(case.is_right) for listed in cases.values() for case in listed]
    grades = pool(replies)
    for index, grade in enumerate(grades):
        if grade.limit in TIMES:
            (grades[index],) = patient_pool([replies[index]])
    assert [grade.reward for grade in grades] == rights
    assert count_zombies(os.getpid()) == 0
