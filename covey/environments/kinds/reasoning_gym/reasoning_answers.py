r"""Decides which answers to tasks of reasoning-gym are right. Main name: `is_right`.

The package's own scores cannot be trusted alone: many accept a constant, a number nearby, or a right answer among
others, and some evaluate the answer as Python. An answer is right in one of four cases:

1. It agrees with the item's own answer. Whitespace does not count (`normalise`).
2. It is a number that is as right as the item's own answer, for example a fraction instead of a decimal
   (`puzzle_checks.VALUES`).
3. The package scores it as exactly 1, and it has the same content as the item's own answer: the same numbers by value
   and the same words, no more and no fewer (`has_same_content`). The package decides on their order and form.
4. The generator has many right answers (`FORMS`), the whole answer has the form that the question asks for, and the
   package scores it as exactly 1. If the package's score is wrong for such a generator, a function in
   `puzzle_checks.CHECKS` decides instead.

An answer with a character outside ASCII that is not in the item's own answer or question is wrong.
"""

import re
from collections import Counter
from collections.abc import Callable
from decimal import Decimal

from covey.environments.kinds.reasoning_gym.puzzle_checks import CHECKS, VALUES, read_number
from covey.environments.kinds.reasoning_gym.reasoning_items import Entry

MAX_FACTOR = 10
"""Maximum length of an answer as a multiple of the item's own answer. `MAX_CHARACTERS` is added."""
MAX_CHARACTERS = 4000
"""Characters that any answer may have."""

FUNCTIONS = frozenset({
    "Abs", "acos", "asin", "atan", "cos", "cosh", "cot", "csc", "exp", "ln", "log", "pi", "sec", "sin", "sinh", "sqrt",
    "tan", "tanh",
})  # fmt: skip
"""Names of two or more letters that an algebraic expression may contain. A single letter is a variable."""
_ALGEBRA = re.compile(
    rf"(?:(?<![A-Za-z])(?:[A-Za-z]|{'|'.join(sorted(FUNCTIONS))})(?![A-Za-z0-9])|\.(?!\s*[A-Za-z])|[0-9+\-*/(), \n])+"
)
_LETTER = re.compile(r"(?<![A-Za-z])[A-Za-z](?![A-Za-z])")
INTEGRATION = frozenset({"intermediate_integration", "simple_integration"})
"""Generators that accept every antiderivative."""
ALGEBRA = INTEGRATION | {"polynomial_multiplication"}
"""Generators whose scoring function evaluates an answer as an algebraic expression."""
_MOVE = r'"(?:fill [A-Z]|empty [A-Z]|pour [A-Z]->[A-Z])"'
_KNIGHT = r'"[wB],[A-Z][0-9]{1,2},[A-Z][0-9]{1,2}"'
FORMS = {
    name: re.compile(form)
    for name, form in {
        "boxnet": r"(?s)\[.*\]",
        "cryptarithm": r"(?!.*([A-Z])\s*=.*\1\s*=)[A-Z]\s*=\s*[0-9](?:\s*,\s*[A-Z]\s*=\s*[0-9])*",
        "jugs": rf"\[\s*{_MOVE}(?:\s*,\s*{_MOVE})*\s*\]",
        "kakurasu": r"[01\s,\[\]]+",
        "knight_swap": rf"[Nn][Oo]|\[\s*{_KNIGHT}(?:\s*,\s*{_KNIGHT})*\s*\]",
        "n_queens": r"[Q_\s]+",
        "palindrome_generation": r"[A-Za-z]+",
        "quantum_lock": r"[A-Ca-c](?:(?:\s*(?:\u2192|->|,)\s*|\s+)[A-Ca-c])*",
        "rubiks_cube": r"[A-Za-z]{1,2}'?[0-9]?(?:\s+[A-Za-z]{1,2}'?[0-9]?)*",
        "shortest_path": r"infeasible|(?:up|down|left|right)(?:\s+(?:up|down|left|right))*",
        "sokoban": r"[UDLR]+",
        "tower_of_hanoi": r"(?:\s*Move disk [0-9]{1,3} from Peg [0-9]{1,3} to Peg [0-9]{1,3}[ \t]*(?:\n|$))+",
        "word_ladder": r"[A-Za-z]+(?:\s*,\s*[A-Za-z]+)+",
    }.items()
}
"""Form of a whole answer, by generator with more than one right answer, for which the package's score decides."""
EXACT = frozenset({"binary_matrix", "spiral_matrix", "string_insertion"})
"""Generators whose scoring function evaluates an answer that differs from the item's own answer. It is never called."""

_CONTENT = re.compile(
    r"(?:(?P<sign>[+-])\s*)?(?P<number>[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,3})?)|\\[A-Za-z]+|[^\W_]+"
)
_GROUPED = re.compile(r"\s*[+-]?[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]+)?\s*")
_FILLERS = frozenset({"a", "an", "and"})


def is_right(answer: str, entry: Entry, *, generator: str, score: Callable[[str], float]) -> bool:
    """Return whether an answer to an item of a generator is right.

    `score` is the scoring function of the package for this item. It is called only with an answer that it can evaluate
    without side effects.
    """
    own = None if entry["answer"] is None else str(entry["answer"])
    if len(answer) > MAX_FACTOR * len(own or "") + MAX_CHARACTERS:
        return False
    if own is not None and normalise(answer) == normalise(own):
        return True
    if not _is_written_as(answer, f"{own}{entry['question']}") or generator in EXACT:
        return False
    if generator in VALUES and read_number(answer) in [*VALUES[generator](entry)]:
        return True
    if generator in CHECKS:
        return CHECKS[generator](answer, entry)
    if generator in ALGEBRA and not _is_algebra(answer, own or ""):
        return False
    if generator in FORMS:
        is_formed = FORMS[generator].fullmatch(answer.strip()) is not None
    else:
        is_formed = generator in INTEGRATION or (own is not None and has_same_content(answer, own))
    return is_formed and score(answer.strip()) == 1.0


def normalise(text: str) -> str:
    """Return a text with single spaces, without blank lines and without whitespace around its lines."""
    return "\n".join(" ".join(line.split()) for line in text.splitlines() if line.strip())


def has_same_content(answer: str, own: str) -> bool:
    """Return whether two texts consist of the same numbers and words, in any order.

    Numbers are compared by value, words without regard to case. Commands of LaTeX, the articles "a" and "an", and the
    word "and" do not count. If `own` has no content at all, only quotes may be around it.
    """
    content = _count_content(own)
    return content == _count_content(answer) if content else answer.strip().strip("\"'") == own.strip()


def _count_content(text: str) -> Counter[Decimal | str]:
    if _GROUPED.fullmatch(text):
        text = text.replace(",", "")
    content: Counter[Decimal | str] = Counter()
    for part in _CONTENT.finditer(text):
        word = part.group().casefold()
        if part["number"]:
            number = Decimal(part["number"])  # without arithmetic, which would round it
            content[number.copy_negate() if part["sign"] == "-" else number] += 1
        elif not word.startswith("\\") and word not in _FILLERS:
            content[word] += 1
    return content


def _is_written_as(answer: str, model: str) -> bool:
    """Return whether every character of an answer outside ASCII also occurs in `model`."""
    return answer.isascii() or {character for character in answer if not character.isascii()} <= set(model)


def _is_algebra(answer: str, own: str) -> bool:
    """Return whether an answer is an expression in the variables of the item's own answer, with constants C and E."""
    letters = set(_LETTER.findall(answer))
    return _ALGEBRA.fullmatch(answer) is not None and letters <= {"C", "E", *_LETTER.findall(own)}
