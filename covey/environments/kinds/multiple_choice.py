"""Grader for multiple choice: an answer is right if it is the right choice's letter, its exact text, or both.

Main name: `is_right`. Letters take precedence over text: the answer "B" means the second choice even if the
text of another choice is "B". If two choices have the same text, only letters count. Several letters are
wrong.
"""

import re
from collections.abc import Sequence

from covey.environments.kinds.short_answer import LENGTH_FACTOR, LENGTH_MARGIN, normalise

LETTERS = "abcdefghijklmnopqrstuvwxyz"
"""Letters of the choices, in order and in lower case, as in normalised answers."""

_LETTER = re.compile(
    r"(?:(?:(?:correct|right|final|best) )?(?:option|choice|answer)(?: is)?:? ?)?"
    r"(?:\(([a-z])\)|\[([a-z])\]|([a-z])[).:]?)"
)
_LETTER_AND_TEXT = re.compile(
    r"(?:(?:option|choice|answer)(?: is)?:? ?)?(?:\(([a-z])\)|\[([a-z])\]|([a-z])[).:]| ?([a-z]) -) ?(.+)"
)


def is_right(answer: str, *, choices: Sequence[str], right: int) -> bool:
    """Return whether an answer selects the choice with index `right`, counted from 0, and no other.

    Raises ValueError if there is no such choice or there are more than 26 choices.
    """
    if not 0 <= right < len(choices) <= len(LETTERS):
        raise ValueError(
            f"the index of the correct choice is {right}, but there are {len(choices)} choices and at most 26 letters"
        )
    if len(answer) > LENGTH_FACTOR * max(map(len, choices)) + LENGTH_MARGIN:
        return False
    form = normalise(answer)
    texts = [normalise(choice) for choice in choices]
    return bool(form) and _find_named(form, texts) == right


def _find_named(form: str, texts: list[str]) -> int | None:
    """Return the index of the choice that a normalised answer selects, or None unless it selects exactly one."""
    letter = _LETTER.fullmatch(form)
    if letter:
        return _find_index(letter.groups(), len(texts))
    if texts.count(form) == 1:
        return texts.index(form)
    both = _LETTER_AND_TEXT.fullmatch(form)
    if not both:
        return None
    index = _find_index(both.groups()[:-1], len(texts))
    return index if index is not None and normalise(both.groups()[-1]) == texts[index] else None


def _find_index(groups: tuple[str | None, ...], count: int) -> int | None:
    index = LETTERS.index(next(group for group in groups if group))
    return index if index < count else None
