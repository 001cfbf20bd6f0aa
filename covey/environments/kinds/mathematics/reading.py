"""Parses the structure of a mathematical answer in normal form (`latex.normalise`).

Main names: `read_value`, `split_top`. math-verify is not used for this, because it guesses the structure: it
parses (2, 1) as an empty interval and "1 2" as the number 3.
"""

import re
from dataclasses import replace
from fractions import Fraction

from covey.environments.kinds.mathematics import scalars
from covey.environments.kinds.mathematics.latex import ROW_END
from covey.environments.kinds.mathematics.names import is_name, is_sum_of_names, mentions, squeeze
from covey.environments.kinds.mathematics.numerals import read_number
from covey.environments.kinds.mathematics.units import find_unit, read_quantity, split_percent, split_unit
from covey.environments.kinds.mathematics.values import (
    Approximation,
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

MAX_RELATIONS = 4
"""Maximum number of relation signs in a chain."""

_OPENING, _CLOSING = "([{", ")]}"
_LIST_WORD = re.compile(
    r",?\s*(?:\\text\s*\{\s*(?:and|or)\s*\}|(?<![a-zA-Z\\])(?:and|or)(?![a-zA-Z])|\\vee(?![a-zA-Z]))\s*"
)
_MEMBER = re.compile(r"([a-zA-Z](?:_\{?[a-zA-Z0-9]\}?)?)\s*\\in(?![a-zA-Z])\s*")
_BUILDER = re.compile(r"\\\{\s*([a-zA-Z])\s*(?:\\in\s*\\mathbb\s*\{?R\}?\s*)?[|:]\s*(.+?)\s*\\\}")
_MATRIX = re.compile(
    r"[(\[]?\s*\\begin\s*\{([pb]?matrix|smallmatrix|array)\}\s*(?:\{[lcr|]*\})?(.*?)\\end\s*\{\1\}\s*[)\]]?", re.DOTALL
)
_CASES = re.compile(
    r"(?:\\\{ ?)?\\begin ?\{(cases|aligned|array|gathered)\} ?(?:\{[lcr|]*\})?(.*?)\\end ?\{\1\}", re.DOTALL
)
_OPERATOR = re.compile(r"<=|>=|<|>|=|\\ne(?![a-zA-Z])|\\approx(?![a-zA-Z])")
_POINT = re.compile(r"([A-Z]) ?(\([^()A-Za-z]*,[^()]*\))")
_MARK = r" ?(?:{0}|\^ ?\{{ ?{0} ?\}}) ?"
_NUMBER = r"([0-9]+(?:\.[0-9]+)?)"
_DEGREES = re.compile(
    rf"(-?)([0-9]+) ?\^? ?\{{? ?\\circ ?\}}? ?{_NUMBER}"
    + _MARK.format("'")
    + f"(?:{_NUMBER}{_MARK.format(chr(39) * 2)})?"
)
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
        return _read_chain(*_split_sides(builder.group(2)))
    cases = _CASES.fullmatch(text)
    if cases and ("=" in text or cases.group(1) == "cases"):
        return _read_group("", cases.group(2).replace("&", "").strip().removesuffix(ROW_END).split(ROW_END))
    matrix = _MATRIX.fullmatch(text)
    if matrix:
        return _read_matrix(matrix.group(2))
    if not _is_words(text):
        quantity = read_quantity(text)
        if quantity is not None:
            value, unit = quantity
            return Scalar(latex=text, exact=value, places=None, is_percent=False, unit=unit)
        listed = _LIST_WORD.sub(",", text)
        separator = ";" if len(split_top(listed, ";")) > 1 else ","
        parts = split_top(listed, separator)
        if len(parts) > 1:
            return _read_group("", parts)
        sides, operators = _split_sides(text)
        is_named = set(operators) == {"="} and is_name(sides[0])
        for operator in () if is_named else ("cup", "setminus"):
            parts = split_top(text, f"\\{operator}")
            if len(parts) > 1:
                items = _read_all(parts)
                return None if items is None else Combination(operator=operator, parts=items)
        member = _MEMBER.match(text)
        if member:
            inner = text[member.end() :]
            return None if _MEMBER.match(inner) else read_value(inner)
        if sides != [text]:
            return _read_chain(sides, operators)
    point = _POINT.fullmatch(text)
    if point:
        return _read_assignment([point.group(1), point.group(2)])
    return _read_bracketed(text)


def split_top(text: str, separator: str) -> list[str]:
    """Split a text at the separators that are outside all brackets."""
    word_end = "(?![a-zA-Z])" if separator[0] == "\\" else ""
    return _split(text, re.compile(re.escape(separator) + word_end))[0]


def _split(text: str, separator: re.Pattern[str]) -> tuple[list[str], list[str]]:
    """Split a text at the separators that are outside all brackets. Return the parts and the separators."""
    parts, separators, depth, start = [], [], 0, 0
    for match in re.finditer(rf"(?P<bracket>[(\[{{)\]}}])|{separator.pattern}", text):
        if match["bracket"]:
            depth += 1 if match["bracket"] in _OPENING else -1
        elif depth == 0:
            parts.append(text[start : match.start()])
            separators.append(match.group())
            start = match.end()
    return [*parts, text[start:]], separators


def _read_all(parts: list[str]) -> "tuple[Value, ...] | None":
    if len(parts) > MAX_ITEMS:
        return None
    items = [read_value(part) for part in parts]
    return tuple(item for item in items if item is not None) if all(item is not None for item in items) else None


def _read_group(brackets: str, parts: list[str]) -> Group | None:
    items = _read_all(parts)
    if items is not None and brackets in ("", "{}"):
        items = tuple(each for part, item in zip(parts, items, strict=True) for each in _write_out(part, item))
    return None if items is None else Group(brackets=brackets, items=items)


def _write_out(part: str, item: Value) -> "tuple[Value, ...]":
    """Return the two values that a plus-minus sign in an item of a list or set stands for, or the item itself."""
    if r"\pm" in part and "," not in part:
        if isinstance(item, Assignment) and isinstance(item.value, Group):
            return tuple(replace(item, value=each) for each in item.value.items)
        if isinstance(item, Group) and not item.brackets:
            return item.items
    return (item,)


def _read_matrix(body: str) -> Matrix | None:
    rows = [row.split("&") for row in body.strip().removesuffix(ROW_END).split(ROW_END)]
    if len(rows) > MAX_ITEMS or len({len(row) for row in rows}) != 1:
        return None
    values = [_read_all(row) for row in rows]
    return Matrix(rows=tuple(row for row in values if row is not None)) if None not in values else None


def _split_sides(text: str) -> tuple[list[str], list[str]]:
    """Split a text at the relations outside all brackets, and drop an equals sign at its start, as in "= 5"."""
    sides, operators = _split(text, _OPERATOR)
    operators = [{r"\ne": "!=", r"\approx": "~"}.get(operator, operator) for operator in operators]
    if len(sides) > 1 and not sides[0].strip() and operators[0] == "=":
        sides, operators = sides[1:], operators[1:]
    return [side.strip() for side in sides], operators


def _read_chain(sides: list[str], operators: list[str]) -> Value | None:
    if operators == ["~"] and not sides[0]:
        rounded = read_value(sides[1])
        return None if rounded is None else Approximation(value=None, rounded=rounded)
    if not all(sides) or len(operators) > MAX_RELATIONS:
        return None
    if not operators:
        return read_value(sides[0])
    if operators[0] == "~" and is_name(sides[0]) and not _is_constant(sides[0]):
        operators = ["=", *operators[1:]]
    if "~" in operators:
        index = operators.index("~")
        value = _read_chain(sides[: index + 1], operators[:index])
        if value is None or not set(operators[index:]) <= {"=", "~"}:
            return None
        name, value = (value, value.value) if isinstance(value, Assignment) and value.name else (None, value)
        for side in sides[index + 1 :]:
            rounded = read_value(side)
            if rounded is None:
                return None
            value = Approximation(value=value, rounded=rounded)
        return value if name is None else replace(name, value=value)
    if set(operators) == {"="}:
        assignment = _read_assignment(sides)
        if assignment is not None:
            return assignment
    return Chain(operators=tuple(operators), sides=tuple(sides))


def read_sum(chain: Chain) -> Value | None:
    """Return the value of a sum of names, as 116 for m + n = 116, or None for any other relation."""
    if set(chain.operators) != {"="} or not is_sum_of_names(chain.sides[0]):
        return None
    value = read_value(chain.sides[-1])
    steps = chain.sides[1:-1]
    return value and Assignment(name="sum", value=value, latex=(chain.sides[0], chain.sides[-1]), steps=steps)


def _read_assignment(sides: list[str]) -> Value | None:
    left, right = sides[0], sides[-1]
    if is_name(right) and not is_name(left):
        left, right = right, left
    name = squeeze(left)
    if not is_name(left) or mentions(right, left):
        if squeeze(left) == squeeze(right) or not all(map(_is_constant, sides)):
            return None
        name = ""
    value = read_value(right)
    if name[:1] == "(" and isinstance(value, Group) and value.brackets == "()" and not sides[1:-1]:
        names, parts = (split_top(side[1:-1], ",") for side in (left, right))
        if len(names) == len(parts) == len(value.items):
            # (x, y) = (1, 2) names each value.
            return _read_group("()", [f"{each} = {part}" for each, part in zip(names, parts, strict=True)])
    return None if value is None else Assignment(name=name, value=value, latex=(left, right), steps=tuple(sides[1:-1]))


def _is_constant(text: str) -> bool:
    """Return whether a side is a number without variables, with or without a unit."""
    expression = scalars.read_expression(_read_scalar(text))
    return expression is not None and not expression.free_symbols


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
    if words.casefold() in ("empty set", "the empty set"):
        return Word(text="set:emptyset")
    if _TEXT.fullmatch(text) or _is_words(text):
        inner = read_value(words) if _TEXT.fullmatch(text) and words and not _is_words(words) else None
        return inner if inner is not None else Word(text=" ".join(words.casefold().split()).strip("()."))
    if text in (r"\emptyset", r"\mathbb{R}", r"\mathbb {R}", r"\mathbb R", r"\mathbb{Z}", r"\mathbb{Q}"):
        return Word(text="set:" + text.replace("\\mathbb", "").strip("\\{} "))
    based = _BASED.fullmatch(text)
    if based and based.group(1)[0].isdigit():
        return Word(text=f"{based.group(1).lower()}_{based.group(2)}")
    degrees = _DEGREES.fullmatch(text)
    if degrees:
        sign, whole, minutes, seconds = degrees.groups()
        angle = (-1 if sign else 1) * (int(whole) + Fraction(minutes) / 60 + Fraction(seconds or 0) / 3600)
        return Scalar(latex=text, exact=angle, places=None, is_percent=False, unit=find_unit("degree"))
    text, is_percent = split_percent(text)
    text, unit, scale = (text, None, 1) if is_percent else split_unit(text)
    text = text.strip()
    exact, places = read_number(text)
    if scale > 1:
        text, exact, places = f"({text})*{scale}", None if exact is None else exact * scale, None
    return Scalar(latex=text, exact=exact, places=places, is_percent=is_percent, unit=unit) if text else None
