"""Plain numbers as people write them: decimals, fractions, mixed numbers, powers of ten and repeating decimals."""

import re
from fractions import Fraction

_DECIMAL = re.compile(r"([+-]?)([0-9]+(?:,[0-9]{3})*|)(?:\.([0-9]+))?")
_GROUPED = re.compile(r"[+-]?[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]+)?")
_SPACED = re.compile(r"([+-]?[0-9]{1,3})((?: [0-9]{3})+)")
_FRACTION = re.compile(r"([+-]?)\s*(?:\\frac\{\s*(-?)([0-9]+)\s*\}\{\s*([0-9]+)\s*\}|()([0-9]+)\s*/\s*([0-9]+))")
_MIXED = re.compile(r"([+-]?)([0-9]+)(?:\s*\\frac\{([0-9]+)\}\{([0-9]+)\}| ([0-9]+)/([0-9]+))")
_SCIENTIFIC = re.compile(
    r"([+-]?[0-9]+(?:\.[0-9]+)?)\s*(?:[eE]([+-]?[0-9]{1,3})|(?:\\times|\\cdot|\*)\s*10\s*\^\s*\{?(-?[0-9]{1,3})\}?)"
)
_RATIO = re.compile(r"([0-9]+)\s*:\s*([0-9]+)")
_TIME = re.compile(r"[0-9]{1,2}:[0-9]{2}")
_REPEATING = re.compile(r"(-?)([0-9]+)\.([0-9]*)\\(?:overline|bar|dot)\s*\{?([0-9]+)\}?(?:\.\.\.|\\l?dots)?")


def is_grouped(text: str) -> bool:
    """Return whether a text is one number with commas between groups of three digits."""
    return _GROUPED.fullmatch(text) is not None


def read_number(text: str) -> tuple[Fraction | None, int | None]:
    """Return the value of a plain number, and its number of decimal places, or None if it is not a decimal.

    A power of ten shifts the decimal places. The result is (None, None) if the string is not a plain number.
    """
    spaced = _SPACED.fullmatch(text)
    text = text.replace(" ", "") if spaced else text
    decimal = _DECIMAL.fullmatch(text)
    if decimal and (decimal.group(2) or decimal.group(3)) and ("," not in text or _GROUPED.fullmatch(text)):
        return Fraction(text.replace(",", "")), len(decimal.group(3) or "")
    ratio = _RATIO.fullmatch(text)
    if ratio and not _TIME.fullmatch(text) and int(ratio.group(2)):
        return Fraction(int(ratio.group(1)), int(ratio.group(2))), None
    scientific = _SCIENTIFIC.fullmatch(text)
    if scientific:
        mantissa, exponent = scientific.group(1), int(scientific.group(2) or scientific.group(3))
        value = Fraction(mantissa) * Fraction(10) ** exponent
        return value, len(mantissa.partition(".")[2]) - exponent
    for pattern in (_FRACTION, _MIXED, _REPEATING):
        match = pattern.fullmatch(text)
        if match:
            return _read_parts(pattern, [group or "" for group in match.groups()]), None
    return None, None


def _read_parts(pattern: re.Pattern[str], groups: list[str]) -> Fraction | None:
    sign = -1 if groups[0] == "-" else 1
    if pattern is _FRACTION:
        sign = -sign if groups[1] else sign
        numerator, denominator = groups[2] or groups[5], groups[3] or groups[6]
        return sign * Fraction(int(numerator), int(denominator)) if int(denominator) else None
    if pattern is _MIXED:
        numerator, denominator = groups[2] or groups[4], groups[3] or groups[5]
        return sign * (int(groups[1]) + Fraction(int(numerator), int(denominator))) if int(denominator) else None
    whole, fixed, period = groups[1], groups[2], groups[3]
    size = 10 ** len(fixed)
    return sign * (Fraction(int(whole + fixed), size) + Fraction(int(period), size * (10 ** len(period) - 1)))
