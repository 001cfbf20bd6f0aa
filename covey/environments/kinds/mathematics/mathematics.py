"""Grader for answers in mathematics: an answer is right if it is mathematically the same as one of the truths.

Main names: `is_right`, `versions`. The truths are the reference answers of the task. The two strings are
compared first. Then both are parsed into numbers, lists, sets, matrices or relations (`reading`), whose
expressions math-verify parses and compares (`scalars`). Decisions:
- A decimal is exact. One with six digits or more may also be the rounded value of a truth that is not a
  decimal. After an approximation sign, three digits are enough, because the exact value comes first.
- An answer with several values is right only if the truth has the same ones. Lists are unordered, tuples
  ordered.
- An interval does not equal one of its points. An equation without information ("x = x") is not an answer.
No answer makes the grader raise an exception, except MemoryError, which the sandbox reports as a limit.
"""

import importlib.metadata
import re
from collections.abc import Sequence

from covey.environments.kinds.mathematics.equality import are_same
from covey.environments.kinds.mathematics.latex import MAX_CHARACTERS, normalise
from covey.environments.kinds.mathematics.reading import read_value

PACKAGES = ("math-verify", "latex2sympy2_extended", "sympy", "mpmath", "antlr4-python3-runtime")
"""Packages whose code affects grades."""
MAX_TRUTH_CHARACTERS = 20_000
"""Maximum length of a truth (a reference answer) in characters. A longer one matches no answer."""
_TYPICAL = (
    ("41", "42"), (r"\frac{3}{4}", "0.75"), (r"-\frac{12}{5}", "-2.4"), (r"2\sqrt{3}", r"\sqrt{12}"),
    ("x^2+2x+1", "(x+1)^2"), (r"\sin(x)\cos(x)", r"\frac{\sin(2x)}{2}"), ("(1, 2)", "(1, 3)"),
    (r"\{1, 2, 3\}", "3, 2, 1"), ("[0, 1)", r"[0, 1) \cup \{2\}"), (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}",) * 2,
    ("2x+3y=6", "y=2-2x/3"), ("x>7", "7<x"), ("12.5\\%", r"\frac{1}{8}"), (r"e^{2\pi i}", "1"), (r"\log_2 8", "3"),
    ("1,000", "1000"), (r"\infty", r"-\infty"), ("n!", r"\binom{n}{2}"), ("5 \\text{ cm}", "5"), ("$0.10", "1/10"),
)  # fmt: skip
"""Pairs of an answer and a reference answer for `warm_up`, one for each form that is parsed differently."""


def is_right(answer: str, truths: Sequence[str]) -> bool:
    """Return whether an answer in LaTeX or plain text is the same as at least one of the truths."""
    limit = max([MAX_CHARACTERS, *(min(2 * len(truth), MAX_TRUTH_CHARACTERS) for truth in truths)])
    form = normalise(answer, limit=limit)
    return form is not None and any(_is_same(truth, form) for truth in truths)


def warm_up() -> None:
    """Grade typical answers to fill the parser's tables and sympy's caches. No grade depends on it."""
    for answer, truth in _TYPICAL:
        is_right(answer, [truth])


def versions() -> dict[str, str]:
    """Return the installed version of each package whose code affects grades, by name."""
    return {name: importlib.metadata.version(name) for name in PACKAGES}


def _is_same(truth: str, answer: str) -> bool:
    form = normalise(truth, limit=MAX_TRUTH_CHARACTERS)
    if form is None:
        return False
    if _squeeze(form) == _squeeze(answer):
        return any(character.isalnum() for character in answer) or answer in (r"\emptyset", r"\infty")
    left, right = read_value(form), read_value(answer)
    return left is not None and right is not None and are_same(left, right)


def _squeeze(form: str) -> str:
    """Remove what never changes the meaning: text commands, and spaces that do not separate two digits."""
    return re.sub(r"(?<![0-9])\s+|\s+(?![0-9])", "", re.sub(r"\\text\s*\{([^{}]*)\}", r"\1", form))
