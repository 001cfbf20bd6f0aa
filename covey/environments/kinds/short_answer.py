"""Grader for short answers in words or numbers: exact match after a normalisation.

Main names: `is_right`, `normalise`. The normalisation has these steps, in this order:
1. Superscripts become "^2", and fractions such as one half become " 1/2". Then Unicode NFKC, case folding, NFKC again.
2. Every dash becomes "-", and every apostrophe becomes "'". Whitespace collapses to one space.
3. Marks around the whole answer are removed: quotes, dollar signs, emphasis, `\\text{...}`, and one final full stop.
4. Commas between groups of three digits are removed: "1,000" is "1000". Otherwise numbers are texts: "5.0" is not "5".
5. A leading "the" is removed. "a" and "an" stay, because an answer such as "A minor" needs them.
Accents, punctuation within the answer and invisible characters stay, so an answer must share them with the truth.
"""

import re
import unicodedata
from collections.abc import Sequence

from covey.environments.kinds.mathematics.latex import find_closing

LENGTH_FACTOR = 4
"""Maximum length of an answer, as a multiple of the longest reference answer. `LENGTH_MARGIN` is added."""
LENGTH_MARGIN = 100
"""Characters that an answer may have in addition to `LENGTH_FACTOR` times the longest reference answer. A
longer answer is wrong and is not normalised.
"""

_PLAIN = str.maketrans(
    {"\u2044": "/"}
    | dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2015\u2212", "-")
    | dict.fromkeys("\u2018\u2019\u02bc\u00b4", "'")
)
_ENCLOSING = (
    ("***", "***"), ("**", "**"), ("__", "__"), ("*", "*"), ("_", "_"), ("`", "`"), ('"', '"'), ("'", "'"),
    ("\u201c", "\u201d"), ("\u201e", "\u201c"), ("\u00ab", "\u00bb"), ("$$", "$$"), ("$", "$"),
    (r"\(", r"\)"), (r"\[", r"\]"),
)  # fmt: skip
_COMMAND = re.compile(r"\\(?:text|textbf|textit|mathrm|mathbf|boxed)\s*\{")
_GROUPED = re.compile(r"(?<![0-9.,])[0-9]{1,3}(?:,[0-9]{3})+(?![0-9,])")


def is_right(answer: str, truths: Sequence[str]) -> bool:
    """Return whether an answer equals one of the truths after normalisation. An answer that becomes empty is wrong."""
    if len(answer) > LENGTH_FACTOR * max(map(len, truths), default=0) + LENGTH_MARGIN:
        return False
    form = normalise(answer)
    return bool(form) and any(form == normalise(truth) for truth in truths)


def normalise(text: str) -> str:
    """Return the normalised form of a string, which may be empty. Answers are compared in this form."""
    text = unicodedata.normalize("NFKC", _spell_compatible(text)).casefold()
    text = " ".join(unicodedata.normalize("NFKC", text).translate(_PLAIN).split())
    text = _strip_enclosing(text)
    text = _GROUPED.sub(lambda match: match.group().replace(",", ""), text)
    return text.removeprefix("the ").strip()


def _spell_compatible(text: str) -> str:
    """Insert "^" before superscripts and a space before fractions.

    Without this, NFKC would turn ten squared into 102.
    """
    if text.isascii():
        return text
    pieces: list[str] = []
    was_raised = False
    for character in text:
        kind = unicodedata.decomposition(character).partition(" ")[0]
        is_raised = kind == "<super>" and character not in "\u00aa\u00ba\u2122"
        pieces.append("^" * (is_raised and not was_raised) + " " * (kind == "<fraction>") + character)
        was_raised = is_raised
    return "".join(pieces)


def _strip_enclosing(text: str) -> str:
    """Remove marks around the whole string, from the outside in, and one full stop at the end."""
    has_stop = False
    for _ in range(len(_ENCLOSING)):
        before = text
        if not has_stop and text.endswith(".") and not text.endswith(".."):
            text, has_stop = text[:-1].rstrip(), True
        for opening, closing in _ENCLOSING:
            inner = text[len(opening) : -len(closing)]
            is_enclosed = len(text) > len(opening + closing) and text.startswith(opening) and text.endswith(closing)
            if is_enclosed and opening not in inner and closing not in inner:
                text = inner.strip()
                break
        command = _COMMAND.match(text)
        if command and find_closing(text, command.end() - 1) == len(text) - 1:
            text = text[command.end() : -1].strip()
        if text == before:
            break
    return text
