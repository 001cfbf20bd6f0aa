r"""Decides which answers to tasks of reasoning-gym are right. Main name: `is_right`.

The package's own scores cannot be trusted alone: many accept a constant, a number nearby, or a right answer among
others, and some evaluate the answer as Python. An answer is right in one of four cases:

1. It agrees with the item's own answer. Whitespace does not count (`normalise`).
2. It is a number that is as right as the item's own answer, for example a fraction instead of a decimal
   (`puzzle_checks.VALUES`).
3. The package scores it as exactly 1, and it has the same content as the item's own answer: the same numbers by value,
   words and symbols, no more and no fewer (`has_same_content`). The package decides on their order and form.
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
from covey.environments.kinds.reasoning_gym.reasoning_items import UNGRADABLE, Entry

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
MAX_VALUE = 1e30
"""Value that no antiderivative reaches. A quotient whose divisor is 0 but for rounding exceeds it."""
ALGEBRA = INTEGRATION | {"polynomial_multiplication"}
"""Generators whose scoring function evaluates an answer as an algebraic expression."""
_MOVE = r'"(?:fill [A-Z]|empty [A-Z]|pour [A-Z]->[A-Z])"'
_KNIGHT = r'"[wB],[A-Z][0-9]{1,2},[A-Z][0-9]{1,2}"'
FORMS = {
    name: re.compile(rf"(?P<quote>[\"'`]?)(?:{form})(?P=quote)")
    for name, form in {
        "boxnet": r"(?s:\[.*\])",
        "cryptarithm": r"(?!.*(?P<letter>[A-Z])\s*=.*(?P=letter)\s*=)[A-Z]\s*=\s*[0-9](?:\s*,\s*[A-Z]\s*=\s*[0-9])*",
        "jugs": rf"\[\s*{_MOVE}(?:\s*,\s*{_MOVE})*\s*\]",
        "kakurasu": r"[01\s,\[\]]+",
        "knight_swap": rf"[Nn][Oo]|\[\s*{_KNIGHT}(?:\s*,\s*{_KNIGHT})*\s*\]",
        "n_queens": r"[Q_\s]+",
        "palindrome_generation": r"[A-Za-z]+",
        "quantum_lock": r"[A-Ca-c](?:(?:\s*(?:\u2192|->|,)\s*|\s+)[A-Ca-c])*",
        "rubiks_cube": r"[A-Za-z]{1,2}'?[0-9]?(?:\s+[A-Za-z]{1,2}'?[0-9]?)*",
        "shortest_path": r"infeasible|(?:up|down|left|right)(?:\s+(?:up|down|left|right))*",
        "sokoban": r"[UDLR]+|[UDLR](?: [UDLR])*",  # groups of moves could be two answers
        "tower_of_hanoi": r"(?:\s*Move disk [0-9]{1,3} from Peg [0-9]{1,3} to Peg [0-9]{1,3}[ \t]*(?:\n|$))+",
        "word_ladder": r"[A-Za-z]+(?:\s*,\s*[A-Za-z]+)+",
    }.items()
}
"""Form of a whole answer, by generator with more than one right answer, for which the package's score decides.

Quotes may be around the answer.
"""
EXACT = frozenset({"binary_matrix", "spiral_matrix", "string_insertion"})
"""Generators whose scoring function evaluates an answer that differs from the item's own answer. It is never called."""

_WRAPPERS = re.compile(
    r"\\(?:boxed|fbox|text|textbf|mathrm|mathbf|left|right|displaystyle)(?![A-Za-z])|\\[()\[\]{}$,;:! ]"
    r"|[()\[\]{}\"'`$\u00b0]"
)
"""Brackets, quotes, signs of dollars and degrees, and commands of LaTeX for layout. They do not count."""
_STOPS = re.compile(r"[,;]|\.(?=\s|$)")
_EMPHASIS = re.compile(r"(\*{1,3})([^*]+)\1", re.DOTALL)
_FRACTION = re.compile(r"\\[dt]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}")
_CONTENT = re.compile(
    r"(?P<number>(?:-\s*(?![0-9]+:))?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,3})?)|\\[A-Za-z]+|[^\W_]+|\S"
)
_ALONE = re.compile(r"[+-]?[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]+)?|\+?[0-9.]+(?:[eE][+-]?[0-9]{1,3})?")
"""One number, possibly with commas between groups of three digits or with a plus sign."""
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
    is_scored = is_formed and score(answer.strip()) == 1.0
    return is_scored and (generator not in INTEGRATION or _has_value(answer))


def normalise(text: str) -> str:
    """Return a text with single spaces, without blank lines and without whitespace around its lines."""
    return "\n".join(" ".join(line.split()) for line in text.splitlines() if line.strip())


def has_same_content(answer: str, own: str) -> bool:
    r"""Return whether two texts consist of the same numbers, words and symbols, in any order.

    Numbers are compared by value, words without regard to case. What does not count: brackets, quotes, signs of
    dollars and degrees, commas, semicolons, full stops, asterisks around the whole text, commands for layout such as
    \boxed and \text, the articles "a" and "an", and the word "and". A fraction in LaTeX counts as one with a slash. If
    `own` has no content at all, only quotes may be around it.
    """
    content = _count_content(own)
    return content == _count_content(answer) if content else answer.strip().strip("\"'") == own.strip()


def _count_content(text: str) -> Counter[Decimal | str]:
    """Count the numbers, words and symbols of a text. A minus sign before a time counts as a symbol."""
    text = text.strip()
    if emphasis := _EMPHASIS.fullmatch(text):
        text = emphasis[2].strip()
    if _ALONE.fullmatch(text):
        text = text.removeprefix("+").replace(",", "")
    text = _STOPS.sub(" ", _WRAPPERS.sub(" ", _FRACTION.sub(r"\1/\2", text)))
    content: Counter[Decimal | str] = Counter()
    for part in _CONTENT.finditer(text):
        word = part.group().casefold()
        if part["number"]:
            content[Decimal("".join(part["number"].split()))] += 1
        elif word not in _FILLERS:
            content[word] += 1
    return content


def _is_written_as(answer: str, model: str) -> bool:
    """Return whether every character of an answer outside ASCII also occurs in `model`."""
    return answer.isascii() or {character for character in answer if not character.isascii()} <= set(model)


def _is_algebra(answer: str, own: str) -> bool:
    """Return whether an answer is an expression in the variables of the item's own answer, with constants C and E."""
    letters = set(_LETTER.findall(answer))
    return _ALGEBRA.fullmatch(answer) is not None and letters <= {"C", "E", *_LETTER.findall(own)}


def _has_value(answer: str) -> bool:
    """Return whether an algebraic expression has a finite value where all its variables are 3/7.

    The derivative of an expression that divides by 0 may be right nevertheless, because infinity counts as a constant.
    """
    from sympy import Rational, Symbol, parse_expr

    expression = parse_expr(answer.strip(), local_dict={name: Symbol(name) for name in _LETTER.findall(answer)})
    try:
        value = complex(expression.subs({symbol: Rational(3, 7) for symbol in expression.free_symbols}).evalf())
    except UNGRADABLE:
        return False
    return abs(value) < MAX_VALUE
