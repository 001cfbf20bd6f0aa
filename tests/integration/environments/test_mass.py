"""Thousands of honest answers mixed with hostile ones: every grade is right, nothing is left, memory does not grow."""

import os
import random
from dataclasses import replace

import pytest

from benchmarks.verification.graders import count_zombies
from benchmarks.verification.grading_cases import list_cases
from tests.fakes.hostile_answers import HostileAnswer
from tests.integration.environments.conftest import KINDS, mark, measure_memory, open_mixture

pytestmark = pytest.mark.integration

SHARES = {"math": 0.35, "code": 0.1, "short_answer": 0.3, "reasoning_gym": 0.25}
SLOW = {
    "hangs", "hangs and ignores signals", "fork bomb", "threads without end", "memory bomb in children",
    "endless output", "huge number",
}  # fmt: skip
"""Attacks that use up a limit; the others end at once, so that a run may hold many of them."""
GROWTH_BYTES = 24 << 20


def check(
    hostile: dict[tuple[str, str], HostileAnswer], *, honest: int, attacks: int, slow: int, batch_size: int
) -> None:
    """Grade all answers in random order, in batches, and check every grade."""
    rng = random.Random(5)
    work = [
        (mark(kind, case.reply), float(case.is_right), f"{kind}: {case.reply.text[:60]!r}")
        for kind in KINDS
        for case in list_cases(kind, round(honest * SHARES[kind]))
    ]
    assert len(work) == honest
    for count, is_slow in ((slow, True), (attacks - slow, False)):
        chosen = [each for each in hostile.values() if (each.kind == "code" and each.name in SLOW) == is_slow]
        attacking = [chosen[number * len(chosen) // count] for number in range(count)]
        assert is_slow or {each.kind for each in attacking} == set(KINDS)
        for number, each in enumerate(attacking):
            # Each reply is unique, because equal replies of a batch are graded once.
            text = each.reply.text.replace("```python\n", f"```python\n# {number}\n")
            reply = mark(each.kind, replace(each.reply, text=text, tokens=number))
            work.append((reply, 0.0, f"hostile {each.kind}: {each.name}"))
    rng.shuffle(work)
    wrong, memory = [], []
    late = []
    with open_mixture(cpu_seconds=1.0) as pool:
        for start in range(0, len(work), batch_size):
            batch = work[start : start + batch_size]
            grades = pool([reply for reply, _, _ in batch])
            for each, grade in zip(batch, grades, strict=True):
                _, expected, name = each
                if expected and grade.limit in ("sandbox_cpu", "sandbox_timeout"):
                    late.append(each)
                elif grade.reward != expected:
                    wrong.append((name, grade.reward, grade.limit))
            memory.append(measure_memory(pool))
        assert count_zombies(os.getpid()) == 0
    if late:  # This machine is slow, so that right answers reach the limits that end hostile ones soon.
        with open_mixture(cpu_seconds=30.0) as pool:
            grades = pool([reply for reply, _, _ in late])
        wrong += [
            (name, grade.reward, grade.limit)
            for (_, _, name), grade in zip(late, grades, strict=True)
            if grade.reward != 1.0
        ]
    assert wrong == []
    assert len(memory) >= 5
    assert max(memory[1:]) - memory[1] < GROWTH_BYTES


@pytest.mark.slow
def test_grades__200_of_which_20_are_hostile__are_all_right(hostile):
    check(hostile, honest=180, attacks=20, slow=3, batch_size=40)


@pytest.mark.full
@pytest.mark.slow
def test_grades__10000_of_which_1000_are_hostile__are_all_right(hostile):
    check(hostile, honest=9000, attacks=1000, slow=150, batch_size=100)
