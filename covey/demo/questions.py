"""Questions of the demo's own data sets, with correct completions for the warm start: word problems and small
functions.

Equal arguments produce equal questions on every machine, so a demo's data set always has the same digest.
"""

import itertools
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import JsonValue

NAMES = ("Ann", "Bob", "Cleo", "Dan", "Eva", "Finn", "Gus", "Hana")
THINGS = ("pens", "cups", "eggs", "nuts", "keys", "figs", "hats", "maps")
OPERATORS: Mapping[str, str] = {"plus": "+", "minus": "-", "times": "*"}
LARGEST = 400
"""Maximum constant in a small function."""
ARGUMENTS = (2, 5, -3)
"""Arguments with which small functions are tested. They do not occur in any prompt."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    r"""One row of a data set. Example: Question(prompt="...", info={"ground_truth": "7"}, answer=r"\boxed{7}")."""

    prompt: str
    """Text of the question."""
    info: Mapping[str, JsonValue]
    """Data for grading by the environment kind, in the format of `covey tasks import`."""
    answer: str
    """Completion that earns the full reward."""


def build_sums(count: int) -> Sequence[Question]:
    """Return `count` word problems that add two numbers from 1 to 9, in a fixed random order. Maximum: 5,184."""
    digits = range(1, 10)
    drawn = random.Random(0).sample([*itertools.product(NAMES, THINGS, digits, digits)], count)
    return [
        Question(
            prompt=f"{name} has {have} {thing} and gets {more} more. How many?",
            info={"ground_truth": str(have + more)},
            answer=rf"\boxed{{{have + more}}}",
        )
        for name, thing, have, more in drawn
    ]


def build_functions(count: int) -> Sequence[Question]:
    """Return `count` functions of one operator and one constant, in a fixed random order. Maximum: 1,200."""
    drawn = random.Random(0).sample([*itertools.product(OPERATORS, range(1, LARGEST + 1))], count)
    return [_build_function(word, constant) for word, constant in drawn]


def _build_function(word: str, constant: int) -> Question:
    inputs: list[JsonValue] = [[argument] for argument in ARGUMENTS]
    outputs: list[JsonValue] = [_apply(word, argument, constant) for argument in ARGUMENTS]
    return Question(
        prompt=f"f(x) is x {word} {constant}",
        info={"inputs": inputs, "outputs": outputs, "fn_name": "f"},
        answer=f"```\ndef f(x):\n return x{OPERATORS[word]}{constant}\n```",
    )


def _apply(word: str, argument: int, constant: int) -> int:
    if word == "times":
        return argument * constant
    return argument + constant if word == "plus" else argument - constant
