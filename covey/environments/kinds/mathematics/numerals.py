r"""Plain numbers as people write them: decimals, fractions, mixed numbers, powers of ten and repeating decimals.

Main names: `spell_numbers`, `read_number`. `spell_numbers` gives the numbers in a text one spelling, without commas
or spaces between groups of digits, and with \bar{...} over the period of a repeating decimal. A comma between digits
groups thousands if it can: "1,000" is one number. Two exceptions keep "(1,200)" and "[100,200]" pairs. Between
brackets, a comma groups only if another comma or semicolon separates the items, or if the three digits after it
begin with 0.
"""

import re
from fractions import Fraction

_GROUPED = re.compile(r"[1-9][0-9]{0,2}(?:,[0-9]{3})+(?:\.[0-9]+)?")
_TOKEN = re.compile(
    r"(?P<run>(?<![0-9.])[0-9]+(?:,[0-9]+)+(?:\.[0-9]+)?)|(?P<open>\\?[(\[{])|(?P<close>\\?[)\]}])|(?P<separator>[,;])"
)
_SPACED = re.compile(r"(?<![0-9.,_^])(?<![0-9.] )([1-9][0-9]{0,2})((?: [0-9]{3})+)(?![0-9]| ?[0-9/]| ?\\frac)")
_EXACT_COMMA = re.compile(r"(?<=([0-9]))(?<![^0-9]0)(?<!^0)\{,\}(?=[0-9]{3}(?![0-9]))|(?<=[0-9])\{,\}(?=[0-9])")
_DOTS = re.compile(r"(?<=[0-9.])\\dot *\{([0-9]+)\}(?:((?:[0-9]|\\dot *\{[0-9]\})*)\\dot *\{([0-9])\})?")
_BRACKETED = re.compile(r"(?<![0-9.])([0-9]*\.[0-9]*)\(([0-9]{1,100})\)(?!\^)")
_ELLIPSIS = re.compile(r"(?<![0-9.])([0-9]*\.[0-9]{0,40}?)(?:([0-9])\2{2,40}|([0-9]{2,12}?)\3{1,20}) ?\.\.\.")
_STOP = re.compile(r"(\\bar *\{[0-9]+\}) ?\.\.\.")

_DECIMAL = re.compile(r"([+-]?)([0-9]+|)(?:\.([0-9]+))?")
_FRACTION = re.compile(r"([+-]?)\s*(?:\\frac\{\s*(-?)([0-9]+)\s*\}\{\s*([0-9]+)\s*\}|()([0-9]+)\s*/\s*([0-9]+))")
_MIXED = re.compile(r"([+-]?)\s*([0-9]+)(?:\s*\\frac\{\s*([0-9]+)\s*\}\{\s*([0-9]+)\s*\}| ([0-9]+)/([0-9]+))")
_SCIENTIFIC = re.compile(
    r"([+-]?\s*[0-9]+(?:\.[0-9]+)?)\s*(?:[eE]([+-]?[0-9]{1,3})|(?:\\times|\\cdot|\*|x)\s*10\s*\^\s*\{?\s*([+-]?[0-9]{1,3})\s*\}?)"
)
_RATIO = re.compile(r"([0-9]+)\s*:\s*([0-9]+)")
_TIME = re.compile(r"[0-9]{1,2}:[0-9]{2}")
_REPEATING = re.compile(r"([+-]?)([0-9]*)\.([0-9]*)\\bar *\{([0-9]+)\}")


def spell_numbers(text: str) -> str:
    """Give the numbers in a text one spelling. See the module's docstring for commas that separate items."""
    text = _EXACT_COMMA.sub(lambda match: "" if match.group(1) else ".", text)
    text = _SPACED.sub(lambda match: match.group().replace(" ", ""), _join_thousands(text))
    text = _DOTS.sub(_spell_period, text)
    text = _BRACKETED.sub(r"\1\\bar{\2}", text)
    text = _ELLIPSIS.sub(lambda match: rf"{match.group(1)}\bar{{{match.group(2) or match.group(3)}}}", text)
    return _STOP.sub(r"\1", text)


def read_number(text: str) -> tuple[Fraction | None, int | None]:
    """Return the value of a plain number, and its number of decimal places, or None if it is not a decimal.

    A power of ten shifts the decimal places. The result is (None, None) if the string is not a plain number.
    """
    decimal = _DECIMAL.fullmatch(text)
    if decimal and (decimal.group(2) or decimal.group(3)):
        return Fraction(text), len(decimal.group(3) or "")
    ratio = _RATIO.fullmatch(text)
    if ratio and not _TIME.fullmatch(text) and int(ratio.group(2)):
        return Fraction(int(ratio.group(1)), int(ratio.group(2))), None
    scientific = _SCIENTIFIC.fullmatch(text)
    if scientific:
        mantissa, exponent = scientific.group(1).replace(" ", ""), int(scientific.group(2) or scientific.group(3))
        value = Fraction(mantissa) * Fraction(10) ** exponent
        return value, len(mantissa.partition(".")[2]) - exponent
    for pattern in (_FRACTION, _MIXED, _REPEATING):
        match = pattern.fullmatch(text)
        if match:
            return _read_parts(pattern, [group or "" for group in match.groups()]), None
    return None, None


def _join_thousands(text: str) -> str:
    """Remove the commas between groups of digits that belong to one number."""
    tokens = list(_TOKEN.finditer(text))
    separated, brackets, places = set(), [-1], {}
    for index, token in enumerate(tokens):
        if token["open"]:
            # A brace after a command, a power or another argument holds an argument, and is not a list.
            before = text[max(0, token.start() - 2) : token.start()].rstrip()[-1:] if token["open"] == "{" else ""
            is_list = not before or not (before.isalpha() or before in "}]^_")
            brackets.append(index if is_list else -1)
        elif token["close"]:
            if len(brackets) > 1:
                brackets.pop()
        elif token["separator"]:
            separated.add(brackets[-1])
        else:
            places[index] = brackets[-1]
    pieces, position = [], 0
    for index, bracket in places.items():
        run = tokens[index]
        is_number = _GROUPED.fullmatch(run.group()) and (bracket == -1 or bracket in separated)
        is_number = is_number and text[run.start() - 1 : run.start()] != ","
        joined = run.group().replace(",", "") if is_number else _join_zeros(run.group())
        pieces += [text[position : run.start()], joined]
        position = run.end()
    return "".join([*pieces, text[position:]])


def _join_zeros(run: str) -> str:
    """Remove the commas before groups of three digits that begin with 0, as no item of a list does."""
    pieces: list[str] = []
    is_open = False
    for group in run.split(","):
        is_joined = is_open and re.fullmatch(r"0[0-9]{2}(?:\.[0-9]+)?", group) is not None
        is_open = is_joined or re.fullmatch(r"[1-9][0-9]{0,2}", group) is not None
        pieces += [group] if is_joined else [",", group]
    return "".join(pieces[1:])


def _spell_period(match: re.Match[str]) -> str:
    middle = re.sub(r"[^0-9]", "", match.group(2) or "")
    return rf"\bar{{{match.group(1)}{middle}{match.group(3) or ''}}}"


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
    return sign * (Fraction(int(whole + fixed or "0"), size) + Fraction(int(period), size * (10 ** len(period) - 1)))
