"""Parses the structure of a mathematical answer in normal form (`latex.normalise`).

Main names: `read_value`, `split_top`. math-verify is not used for this, because it guesses the structure: it
parses (2, 1) as an empty interval and "1 2" as the number 3.
"""

import re

from covey.environments.kinds.mathematics.latex import ROW_END
from covey.environments.kinds.mathematics.numerals import is_grouped, read_number
from covey.environments.kinds.mathematics.units import split_percent, split_unit
from covey.environments.kinds.mathematics.values import (
    Assignment,
    Chain,
    Combination,
    Group,
    Matrix,
    Scalar,
    Value,
    Word,
)

MAX_ITEMS = 50
"""Maximum number of items in a list, set or matrix row, and of rows in a matrix."""

_OPENING, _CLOSING = "([{", ")]}"
_LIST_WORD = re.compile(
    r",?\s*(?:\\text\s*\{\s*(?:and|or)\s*\}|(?<![a-zA-Z\\])(?:and|or)(?![a-zA-Z])|\\vee(?![a-zA-Z]))\s*"
)
_MEMBER = re.compile(r"([a-zA-Z](?:_\{?[a-zA-Z0-9]\}?)?)\s*\\in(?![a-zA-Z])\s*")
_BUILDER = re.compile(r"\\\{\s*([a-zA-Z])\s*(?:\\in\s*\\mathbb\s*\{?R\}?\s*)?[|:]\s*(.+?)\s*\\\}")
_MATRIX = re.compile(
    r"[(\[]?\s*\\begin\s*\{([pb]?matrix|smallmatrix|array)\}\s*(?:\{[lcr|]*\})?(.*?)\\end\s*\{\1\}\s*[)\]]?", re.DOTALL
)
_NAME = re.compile(
    r"(?:[a-zA-Z]'{0,2}|\\(?:angle|text|frac|triangle|alpha|beta|gamma|theta|lambda|mu|sigma|omega|phi|pi)(?![a-zA-Z])"
    r"|_\{?[a-zA-Z0-9]{1,6}\}?|(?<=[a-zA-Z])\([0-9]{1,4}\)|[{}()|,:/ ]|\\cdot ){1,40}"
)
_OPERATOR = re.compile(r"<=|>=|<|>|=|\\ne(?![a-zA-Z])|\\approx(?![a-zA-Z])")
_WORDS = re.compile(r"[a-zA-Z]+(?:[ '-][a-zA-Z]+)*")
_TEXT = re.compile(r"\\text\s*\{([^{}]*)\}")
_BASED = re.compile(r"([0-9a-zA-Z]+)_\{?([0-9]{1,2})\}?")


def read_value(text: str) -> Value | None:
    """Parse a string in normal form into a value. Return None if its structure is not recognised."""
    text = text.strip()
    if not text or text in ("=", ",", "."):
        return None
    builder = _BUILDER.fullmatch(text)
    if builder:
        return _read_chain(builder.group(2))
    matrix = _MATRIX.fullmatch(text)
    if matrix:
        return _read_matrix(matrix.group(2))
    if not _is_words(text):
        listed = _LIST_WORD.sub(",", text)
        separator = ";" if len(split_top(listed, ";")) > 1 else ","
        parts = split_top(listed, separator)
        if len(parts) > 1 and not is_grouped(text):
            return _read_group("", _join_thousands(parts))
        for operator in ("cup", "setminus"):
            parts = split_top(text, f"\\{operator}")
            if len(parts) > 1:
                items = _read_all(parts)
                return None if items is None else Combination(operator=operator, parts=items)
        member = _MEMBER.match(text)
        if member:
            return read_value(text[member.end() :])
        if _OPERATOR.search(text):
            return _read_chain(text)
    return _read_bracketed(text)


def split_top(text: str, separator: str) -> list[str]:
    """Split a text at the separators that are outside all brackets."""
    parts, depth, start, position = [], 0, 0, 0
    while position < len(text):
        if (
            depth == 0
            and text.startswith(separator, position)
            and not text[position + len(separator) :][:1].isalpha() * (separator[0] == "\\")
        ):
            parts.append(text[start:position])
            position += len(separator)
            start = position
            continue
        if text[position] in _OPENING:
            depth += 1
        elif text[position] in _CLOSING:
            depth -= 1
        position += 1
    return [*parts, text[start:]]


def _read_all(parts: list[str]) -> "tuple[Value, ...] | None":
    if len(parts) > MAX_ITEMS:
        return None
    items = [read_value(part) for part in parts]
    return tuple(item for item in items if item is not None) if all(item is not None for item in items) else None


def _read_group(brackets: str, parts: list[str]) -> Group | None:
    items = _read_all(parts)
    return None if items is None else Group(brackets=brackets, items=items)


def _join_thousands(parts: list[str]) -> list[str]:
    """Rejoin numbers that were split at thousands commas, as in "1,000, 2,000".

    This happens only if some comma is followed by a space. Commas without a space then group thousands.
    """
    if not any(part.startswith(" ") for part in parts[1:]):
        return parts
    joined = parts[:1]
    for part in parts[1:]:
        if re.fullmatch(r"[0-9]{3}", part) and re.fullmatch(r"\s*-?[0-9]{1,3}(?:,[0-9]{3})*", joined[-1]):
            joined[-1] += "," + part
        else:
            joined.append(part)
    return joined


def _read_matrix(body: str) -> Matrix | None:
    rows = [row.split("&") for row in body.strip().removesuffix(ROW_END).split(ROW_END)]
    if len(rows) > MAX_ITEMS or len({len(row) for row in rows}) != 1:
        return None
    values = [_read_all(row) for row in rows]
    return Matrix(rows=tuple(row for row in values if row is not None)) if None not in values else None


def _read_chain(text: str) -> Value | None:
    operators = [_spell_operator(operator) for operator in _OPERATOR.findall(text)]
    sides = [side.strip() for side in _OPERATOR.split(text)]
    # "x = 1/3 ~ 0.333" means 1/3, because the value after an approximation sign is not the answer.
    while len(operators) > 1 and operators[-1] == "~":
        operators.pop()
        sides.pop()
    if not operators or not all(sides) or len(operators) > 4:
        return None
    if operators[0] in "=~" and set(operators) <= {"=", "~"}:
        left, right = sides[0], sides[-1]
        if _NAME.fullmatch(right) and not _NAME.fullmatch(left):
            left, right = right, left
        value = read_value(right) if _NAME.fullmatch(left) and not _mentions(right, left) else None
        if value is not None:
            return Assignment(name=_squeeze(left), value=value, latex=(left, right), steps=tuple(sides[1:-1]))
    if "~" in operators:
        return None
    return Chain(operators=tuple(operators), sides=tuple(sides))


def _spell_operator(operator: str) -> str:
    return {r"\ne": "!=", r"\approx": "~"}.get(operator, operator)


def _squeeze(text: str) -> str:
    return re.sub(r"[ {}]", "", text.replace(r"\text", ""))


def _mentions(text: str, name: str) -> bool:
    """Return whether an expression is the given name or, if the name is one letter, contains it.

    An equation such as "x = x" gives the name no value.
    """
    return _squeeze(text) == _squeeze(name) or (
        len(name) == 1 and re.search(rf"(?<![a-zA-Z\\]){name}(?![a-zA-Z])", text) is not None
    )


def _read_bracketed(text: str) -> Value | None:
    if text.startswith(r"\{") and text.endswith(r"\}") and _is_balanced(text[2:-2]):
        inner = text[2:-2]
        return _read_group("{}", split_top(inner, ",") if inner.strip() else [])
    if text[0] in "([" and text[-1] in ")]" and _is_balanced(text[1:-1]):
        inner = text[1:-1]
        parts = split_top(inner, "," if len(split_top(inner, ",")) > 1 else ";")
        if len(parts) > 1:
            return _read_group(text[0] + text[-1], parts)
        if text[0] + text[-1] == "()" and not _BASED.search(inner):
            return read_value(inner)
        return _read_group(text[0] + text[-1], parts) if text[0] + text[-1] == "[]" else None
    if text[0] == "{" and text[-1] == "}" and _is_balanced(text[1:-1]):
        parts = split_top(text[1:-1], ",")
        return _read_group("{}", parts) if len(parts) > 1 else read_value(text[1:-1])
    return _read_sign(text)


def _is_balanced(text: str) -> bool:
    depth = 0
    for character in text:
        depth += (character in _OPENING) - (character in _CLOSING)
        if depth < 0:
            return False
    return depth == 0


def _read_sign(text: str) -> Value | None:
    """Parse an expression. A plus-minus sign gives a list of two expressions."""
    if text.count(r"\pm") == 1:
        signs = ("+", "-")
        items = [_read_scalar(text.replace(r"\pm", sign).strip().removeprefix("+").strip()) for sign in signs]
        return None if None in items else Group(brackets="", items=tuple(item for item in items if item is not None))
    return _read_scalar(text)


def _is_words(text: str) -> bool:
    """Return whether a string consists of words rather than variables: at least one word has three letters or more.

    "yes" and "no" are words too.
    """
    if text.casefold() in ("no", "yes"):
        return True
    return _WORDS.fullmatch(text) is not None and any(len(word) > 2 for word in re.split("[ '-]", text))


def _read_scalar(text: str) -> Value | None:
    words = _TEXT.sub(r"\1", text).strip()
    if _TEXT.fullmatch(text) and re.fullmatch(r"\(?[a-zA-Z]\)?", words):
        return Scalar(latex=words.strip("()"), exact=None, places=None, is_percent=False, unit=None)
    if _TEXT.fullmatch(text) or _is_words(text):
        inner = read_value(words) if _TEXT.fullmatch(text) and words and not _is_words(words) else None
        return inner if inner is not None else Word(text=" ".join(words.casefold().split()).strip("()."))
    if text in (r"\emptyset", r"\mathbb{R}", r"\mathbb {R}", r"\mathbb R", r"\mathbb{Z}", r"\mathbb{Q}"):
        return Word(text="set:" + text.replace("\\mathbb", "").strip("\\{} "))
    based = _BASED.fullmatch(text)
    if based and based.group(1)[0].isdigit():
        return Word(text=f"{based.group(1).lower()}_{based.group(2)}")
    text, is_percent = split_percent(text)
    text, unit = (text, None) if is_percent else split_unit(text)
    text = text.strip()
    exact, places = read_number(text)
    return Scalar(latex=text, exact=exact, places=places, is_percent=is_percent, unit=unit) if text else None
