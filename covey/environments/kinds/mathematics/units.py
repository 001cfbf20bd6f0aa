"""Units and percent signs after a number, and the conversion between units of one dimension."""

import re
from dataclasses import dataclass
from fractions import Fraction

_LENGTH = {
    "mm": "1/1000",
    "cm": "1/100",
    "m": "1",
    "km": "1000",
    "in": "0.0254",
    "ft": "0.3048",
    "yd": "0.9144",
    "mi": "1609.344",
}
_TIME = {"s": "1", "min": "60", "h": "3600", "day": "86400", "week": "604800"}
_MASS = {"mg": "1/1000", "g": "1", "kg": "1000"}
_VOLUME = {"ml": "1/1000", "l": "1"}
_SPEED = {"m/s": "1", "km/h": "5/18", "mph": "0.44704"}
_DIMENSIONS = {"length": _LENGTH, "time": _TIME, "mass": _MASS, "volume": _VOLUME, "speed": _SPEED,
               "angle": {"degree": "1"}, "money": {"dollar": "1", "cent": "1/100"}, "count": {"unit": "1"}}  # fmt: skip
_SYNONYMS = {
    "millimeter": "mm", "centimeter": "cm", "meter": "m", "metre": "m", "kilometer": "km", "kilometre": "km",
    "inch": "in", "inche": "in", "foot": "ft", "feet": "ft", "yard": "yd", "mile": "mi", "second": "s", "sec": "s",
    "minute": "min", "hour": "h", "hr": "h", "gram": "g", "kilogram": "kg", "liter": "l", "litre": "l", "L": "l",
    "mL": "ml", "milliliter": "ml", "kmph": "km/h", "kph": "km/h", "deg": "degree", "centimetre": "cm",
}  # fmt: skip
_FACTORS = {
    name: (dimension, Fraction(factor)) for dimension, names in _DIMENSIONS.items() for name, factor in names.items()
}
_POWERS = {"square": 2, "sq": 2, "sq.": 2, "cubic": 3, "cu": 3}
_STOP_WORDS = frozenset(
    {"and", "or", "not", "is", "are", "plus", "minus", "times", "to", "the", "of", "if", "where", "but", "no", "none",
     "than", "i", "for"}
)  # fmt: skip
_PERCENT = re.compile(r"\s*(?:\\?%|\\text\s*\{\s*(?:\\?%|percent|pct)\s*\}|(?<![a-zA-Z])(?:percent|percentage|pct))$")
_DEGREES = re.compile(r"\s*\^?\s*\{?\s*\\circ\s*\}?$")
_FUNCTION = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)")
_IN_TEXT = re.compile(r"\s*\\text\s*\{\s*([^{}\\]{1,40}?)\s*\}\s*(?:\^\s*\{?([23])\}?)?$")
_PLAIN = re.compile(r"(?<=[0-9} )])\s*((?:(?:square|cubic|sq\.?|cu) )?[a-zA-Z]+(?:/[a-z]+)?)(?:\^\{?([23])\}?)?$")


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasureUnit:
    """A unit of measurement, or a noun for counted objects such as "apples".

    Example: square centimetres are MeasureUnit(dimension="length", power=2, factor=Fraction(1, 10000)).
    """

    dimension: str
    """Dimension, for example "length", or "thing" for a word that is not a unit."""
    power: int
    """Exponent of the unit, for example 2 for an area."""
    factor: Fraction
    """Size of the unit, as a multiple of the dimension's base unit raised to `power`."""


def split_percent(latex: str) -> tuple[str, bool]:
    """Return the expression before a percent sign, and whether there was one."""
    match = _PERCENT.search(latex)
    return (latex[: match.start()], True) if match and match.start() else (latex, False)


def split_unit(latex: str) -> tuple[str, MeasureUnit | None]:
    r"""Return the expression before a unit, and the unit, or None if there is none.

    Any words within \text{...} count as a unit, except words such as "or" that join answers. Outside \text{...} only
    known units count, and units of one letter count only after a space.
    """
    match = _DEGREES.search(latex)
    if match and match.start() and not _FUNCTION.search(latex):
        return latex[: match.start()], MeasureUnit(dimension="angle", power=1, factor=Fraction(1))
    match = _IN_TEXT.search(latex)
    if match and match.start():
        words = match.group(1).split()
        unit = _find_unit(match.group(1), match.group(2))
        if unit is None and 0 < len(words) <= 3 and all(word.isalpha() and word.isascii() for word in words):
            is_joint = not _STOP_WORDS.isdisjoint(word.lower() for word in words)
            unit = None if is_joint else MeasureUnit(dimension="thing", power=1, factor=Fraction(1))
        return (latex[: match.start()], unit) if unit else (latex, None)
    match = _PLAIN.search(latex)
    if match and match.start():
        unit = _find_unit(match.group(1), match.group(2))
        is_letter = len(match.group(1)) == 1 and latex[match.start() : match.start() + 1] != " "
        if unit is not None and not is_letter:
            return latex[: match.start()], unit
    return latex, None


def _find_unit(words: str, power: str | None) -> MeasureUnit | None:
    first, _, rest = words.strip().partition(" ")
    exponent = int(power) if power else 1
    if first in _POWERS and rest:
        exponent, words = _POWERS[first], rest
    name = words.strip().removesuffix(".")
    for spelling in (name, name.lower(), name.removesuffix("s"), name.lower().removesuffix("s")):
        known = _FACTORS.get(_SYNONYMS.get(spelling, spelling))
        if known is not None:
            return MeasureUnit(dimension=known[0], power=exponent, factor=known[1] ** exponent)
    return None
