"""Replies with the grade that each must get: labelled by hand in tests/data/grading, or by construction.

No two replies of a list are equal, so that no grade can come from an earlier one.
"""

import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from covey.environments.base import EnvironmentSpec, Reply
from covey.environments.environment import TaskEnvironment
from covey.environments.kinds.code.code import CodeSource
from covey.environments.kinds.reasoning_gym.reasoning_gym import ReasoningGymSource
from covey.environments.registry import load

DATA = Path(__file__).parents[2] / "tests/data/grading"
NO_DATA_SET = "0x" + "00" * 32
"""Digest of a data set for the options of kinds that grade here and draw no task."""

SUMS = EnvironmentSpec(kind="reasoning_gym", options={"name": "chain_sum"})
"""Environment whose generator scores answers itself, so that each grade has its own process."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GradingCase:
    """A reply to a prompt of one kind of environment, and its label."""

    reply: Reply
    """Completion with what the environment knows about its task."""
    is_right: bool
    """Whether the reply must earn 1.  A wrong one must earn 0."""


def build_spec(kind: str) -> EnvironmentSpec:
    """Build the environment that grades the cases of a kind."""
    return SUMS if kind == "reasoning_gym" else EnvironmentSpec(kind=kind, options={"dataset": NO_DATA_SET})


def list_cases(kind: str, count: int, *, seed: int = 0) -> list[GradingCase]:
    """List `count` cases of "math", "short_answer", "code" or "reasoning_gym", the labelled ones first."""
    makers = {"math": _make_math, "short_answer": _make_short, "code": _make_code, "reasoning_gym": _make_sums}
    cases: dict[tuple[str, str], GradingCase] = {}
    for case in makers[kind](random.Random(seed)):
        cases.setdefault((json.dumps(dict(case.reply.verification)), case.reply.text), case)
        if len(cases) == count:
            break
    return list(cases.values())


def build_reply(verification: Mapping[str, Any], text: str) -> Reply:
    """Build the reply of a finished completion of nine tokens."""
    return Reply(verification=verification, target=None, text=text, finished=True, tokens=9)


def read_labels(name: str) -> list[Any]:
    """Read the JSON values in the lines of a file in tests/data/grading."""
    return [json.loads(line) for line in (DATA / name).read_text().splitlines()]


def _make_math(rng: random.Random) -> Iterator[GradingCase]:
    for label in read_labels("mathematics.jsonl") + read_labels("math_verify.jsonl"):
        if label["answer"]:
            yield _build_math(label["truths"], label["answer"], label["right"])
    while True:
        a, b, c = rng.randint(2, 999), rng.randint(2, 999), rng.randint(1, 99)
        off = rng.randint(0, 1)  # 1 makes the answer wrong
        half = Fraction(a, b)
        left, right = sorted((a, b + 1000))
        forms = (
            (str(half), rf"\frac{{{a * c + off}}}{{{b * c}}}"),
            (str(a * b), f"{a * b + off:,}"),
            (rf"{a}\sqrt{{{b}}}", rf"\sqrt{{{a * a * b + off}}}"),
            (f"x^2+{a + b}x+{a * b}", f"(x+{a})(x+{b + off})"),
            (rf"\{{{a}, {b}, {a + b}\}}", f"{b}, {a + b + off}, {a}"),
            (f"[{left},{right})", rf"{left} \le x < {right + off}"),
            (f"({a},{b})", f"({a}, {b + off})"),
            (str(Fraction(a, 8)), f"{(a + 8 * off) / 8}"),
        )
        truth, answer = rng.choice(forms)
        yield _build_math([truth], answer, not off)


def _build_math(truths: list[str], answer: str, is_right: bool) -> GradingCase:
    return GradingCase(reply=build_reply({"ground_truth": truths}, rf"So it is \boxed{{{answer}}}."), is_right=is_right)


def _make_short(rng: random.Random) -> Iterator[GradingCase]:
    for label in read_labels("short_answer.jsonl"):
        if label["answer"].strip() and "<answer>" not in label["answer"]:
            yield _build_short(label["truths"], label["answer"], label["right"])
    words = ("river", "copper", "Lagos", "seven hills", "caf\u00e9", "Euler", "the north", "A minor")
    while True:
        truth = f"{rng.choice(words)} {rng.randint(0, 99_999)}"
        wrong = rng.random() < 0.5
        yield _build_short([truth], f"**{truth.upper()}{'0' * wrong}**.", not wrong)


def _build_short(truths: list[str], answer: str, is_right: bool) -> GradingCase:
    return GradingCase(reply=build_reply({"answers": truths}, f"I say <answer>{answer}</answer>"), is_right=is_right)


def _make_sums(rng: random.Random) -> Iterator[GradingCase]:
    environment = load(SUMS)
    assert isinstance(environment, TaskEnvironment)
    source = environment.source
    assert isinstance(source, ReasoningGymSource)
    while True:
        task = source.draw(rng.getrandbits(64))
        wrong = rng.random() < 0.5
        yield GradingCase(
            reply=build_reply(task.verification, source.find_answer(task) + "1" * wrong), is_right=not wrong
        )


def _make_code(rng: random.Random) -> Iterator[GradingCase]:
    """Yield labelled programs that reach no limit, then linear functions with three tests each.

    Half of these read standard input, the others are a Python function.
    """
    for label in read_labels("code.jsonl"):
        if not label["limit"]:
            yield _build_code(label["tests"], label["program"], label["right"])
    while True:
        a, b, off = rng.randint(2, 9999), rng.randint(2, 9999), rng.randint(0, 1)
        given = [rng.randint(0, 99) for _ in range(3)]
        expected = [a * n + b for n in given]
        tests: dict[str, Any]
        if rng.random() < 0.5:
            tests = {"inputs": [f"{n}\n" for n in given], "outputs": [f"{n}\n" for n in expected]}
            program = f"n = int(input())\nprint({a} * n + {b + off})"
        else:
            tests = {"inputs": [[n] for n in given], "outputs": [*expected], "fn_name": "f"}
            program = f"def f(n):\n    return {a} * n + {b + off}"
        yield _build_code(tests, program, not off)


def _build_code(tests: Mapping[str, Any], program: str, is_right: bool) -> GradingCase:
    text = f"Here it is:\n````python\n{program}\n````"
    return GradingCase(reply=build_reply(CodeSource.read_info(tests), text), is_right=is_right)
