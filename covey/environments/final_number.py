r"""Finds the last number of a text, written as a model writes it: in words, in LaTeX or with separators.

Main name: `find_final_number`. A part of a number is never returned as the number. If it is in doubt where a number
begins or ends, as in a date, a mixed number, a power or a product with a constant, the result is None.
Every pattern takes linear time, and the text around a number is read over a bounded distance.
"""

import re

_SPACE = "(?:\\\\[,;:! ]|[~\u00a0\u2007\u2009\u202f])"
"""A space that groups digits: a command of LaTeX, a tilde, or a space that does not break."""
_JOIN = (
    rf"(?:\{{,\}}|\{{\.\}}|{_SPACE}|[ \t]{{0,2}}/[ \t]{{0,2}}|[.,:_'\u00b7\u066b\u066c\u2018\u2019\u200b-\u200d\u2044"
    r"\u2060\ufeff]|[ \t](?=[0-9]{3}(?![0-9])))"
)
_NUMBER = rf"[0-9]+(?:{_JOIN}[0-9]+)*(?:[eE][+\-\u2212]?[0-9]+)?"
_FRACTION = r"\\[dtc]?frac\s{0,3}(?:\{\s{0,3}(-?[0-9]+)\s{0,3}\}|([0-9]))\s{0,3}(?:\{\s{0,3}([0-9]+)\s{0,3}\}|([0-9]))"
_TOKEN = re.compile(rf"{_FRACTION}|{_NUMBER}|[\u00bc-\u00be\u2150-\u215e]")

_PLAIN = re.compile(r"[0-9]+(?:\.[0-9]+)?(?:[eE][+\-]?[0-9]+)?")
_GROUPED = re.compile(rf"[1-9][0-9]{{0,2}}(\{{,\}}|,|{_SPACE})[0-9]{{3}}(?:\1[0-9]{{3}})*(?:\.[0-9]+)?")
_RATIO = re.compile(r"([0-9]+)[ \t]*/[ \t]*([0-9]+)")

_WINDOW = 80
"""Characters before and after a number that are read to decide where it ends."""
_UNIT = r"(?:[mcdk]?m|in|ft|yd|mi|s|units?|inch(?:es)?|feet|met(?:er|re)s?|miles?)"
_UNIT_WINDOW = 20
"""Characters before an exponent that are read to find its unit."""
_UNIT_POWER = re.compile(rf"(?<![A-Za-z]){_UNIT}\}}?[ \t]{{0,2}}(?:\^|\*\*)[{{(]?[-\u2212]?$")
_WRAPPER = re.compile(r"\\(?:boxed|fbox|mbox|text|textbf|textit|mathbf|mathrm|bm|underline|emph)\s{0,3}$")
_RELATION = re.compile(
    r"\\(?:approx|sim|simeq|equiv|le|leq|ge|geq|lt|gt|to|implies|iff|q?quad|therefore|(?:long)?rightarrow|Rightarrow"
    r"|left|displaystyle|boxed|is)\s{0,3}[(\[]?\s{0,3}$"
)
_COMMAND = re.compile(r"\\[A-Za-z]+(?:_\{?[A-Za-z0-9]+\}?)?\s{0,3}[(\[]?\s{0,3}$")
_GLUED = re.compile(r"\\[A-Za-z]+$")
"""A command of LaTeX directly before a digit, which is not a part of its name."""
_PART = re.compile(
    r"[-\u2212\ufe63\uff0d+.]\s{0,2}(?:\\left\s?)?[(\[{]\s{0,2}$|(?:[\u00b0\u2032]|\\circ\s?\}?)\s{0,2}$"
    r"|(?:\b(?:minus|negative|plus|base|mod|modulo|divided by))\s{1,3}$",
    re.IGNORECASE,
)
"""What makes a number after it a part of a value: a sign or a stop before a bracket, degrees, or an operator."""
_ELLIPSIS = re.compile(r"\.\.|\u2026|\s{0,2}\\[lc]?dots")
_DEGREES = re.compile(r"\^\{?\\circ")
_SCALE = re.compile(
    r"""
      \s{0,2} \^ | \s{0,2} \*\* [ ]? [0-9({\-] | \*\* [A-Za-z] | _                  # a power or a name
    | \s{0,2} \\ (?:[dtc]?frac|sqrt|pi|cdot|times|e(?![a-z])|infty|binom)         # a factor in LaTeX
    | \s{0,2} [\u03c0\u221a\u00d7\u22c5] | [ \t]{0,2} [xX*] [ \t]{0,2} 10\b | [ \t]? / [ \t]? [\\(]
    | [xyzniekKMBabc\u221e] (?![A-Za-z0-9]) | [A-Za-z]+ [0-9]                     # a variable, a scale, a word
    | [ \t]? (?:[kKMB](?![A-Za-z0-9]) | (?:bn|mn|mln)\b)
    | \s{0,2} (?:hundred|thousand|million|billion|trillion|dozen|lakh|crore) s?\b
    | \s{0,2} (?:squared|cubed|factorial|(?:in\s)?base)\b
    | \s{1,2} (?:hal(?:f|ves)|(?:third|quarter)s?
        |(?:four|fif|six|seven|eigh|nin|ten|eleven|twelf|hundred|thousand|[a-z]{1,20}(?:teen|tie|illion))ths?)\b
    """,
    re.VERBOSE,
)
"""What follows a number that is only a part of a value: a power, a factor, a variable or a scale."""
_DATE = re.compile(r"[0-9]{1,4}[-\u2010-\u2015][0-9]{1,2}[-\u2010-\u2015]$")
_MINUSES = "-\u2212\ufe63\uff0d"
_SIGN = re.compile("([-+\u2212\u2010-\u2015\ufe63\uff0d])([ \t]*)$")


def find_final_number(text: str) -> str | None:
    r"""Return the last number of a text in plain form, for example "-1234.5", "1e-5" or "3/4".

    Digits that follow a letter or an underscore ("x2", "B12"), and the exponent of a unit ("cm^2"), are not numbers.
    Groups of three digits may be separated by a comma, by {,} or by a narrow space such as \, in LaTeX. Other commas
    separate numbers only if a space follows. A percent sign, a dollar sign and a unit are dropped. A sign counts if it
    does not follow another number, a letter or a bracket, so "2-3" ends in "3". Two integers around a slash or in
    \frac are one fraction. The result is None for a date, a time, a mixed number, a power, a product with a constant
    and any other text of which only a part would be a number.
    """
    for token in reversed(list(_TOKEN.finditer(text))):
        before = text[max(0, token.start() - _WINDOW) : token.start()]
        if (
            (before[-1:].isalnum() and not _GLUED.search(before))
            or before.endswith("_")
            or before.endswith("_{")
            or _UNIT_POWER.search(before[-_UNIT_WINDOW:])
        ):
            if token.group().startswith("\\"):
                return None
            continue
        return _read_token(token, before, text[token.end() : token.end() + _WINDOW])
    return None


def _read_token(token: re.Match[str], before: str, after: str) -> str | None:
    """Return the number of a token, or None unless all of the token and of its surroundings is one number."""
    number = _read_digits(token)
    if number is None or after[:1].isnumeric() or (_SCALE.match(after) and not _DEGREES.match(after)):
        return None
    if _PART.search(before):
        return None
    if "." in number and _ELLIPSIS.match(after):
        return None
    if before.endswith(".") and not before.endswith(".."):
        if not number.isdigit() or before[-2:-1].isalnum() or before[-2:-1] in tuple(")]}"):
            return None
        before, number = before[:-1], f"0.{number}"
    before = before.removesuffix("$").removesuffix("\\")
    sign, rest = _read_sign(before)
    is_mixed = "/" in number and before.rstrip(" \t")[-1:] in tuple("0123456789)}]")
    if sign is None or is_mixed or (sign and number.startswith("-")) or not _may_precede(rest):
        return None
    return sign + number


def _read_digits(token: re.Match[str]) -> str | None:
    """Return the plain form of a token without the sign before it, or None if it is not one number."""
    braced, short, below, short_below = token.groups()
    if braced or short:
        return f"{braced or short}/{below or short_below}"
    digits = token.group().replace("\u2212", "-")
    if _PLAIN.fullmatch(digits):
        return digits
    if grouped := _GROUPED.fullmatch(digits):
        return digits.replace(grouped.group(1), "")
    ratio = _RATIO.fullmatch(digits)
    return f"{ratio.group(1)}/{ratio.group(2)}" if ratio else None


def _read_sign(before: str) -> tuple[str | None, str]:
    """Return "-" or "" for the sign that ends `before`, and the text before the sign. The sign is None if in doubt."""
    found = _SIGN.search(before)
    if not found:
        return "", before
    character, gap = found.groups()
    rest = before[: found.start()]
    previous = rest.rstrip(" \t")
    follows_word = previous[-1:].isalpha() and previous != rest
    if _DATE.search(before):
        return None, rest
    if (previous[-1:].isalnum() and not follows_word) or previous[-1:] in tuple(")]}"):
        # An operator or a range. A sum is not one number.
        return None if character == "+" and not previous[-1:].isalpha() else "", rest
    is_minus = character in _MINUSES
    if character == "+":
        return "", rest
    if not gap:
        return "-" if is_minus else None, rest
    if previous[-1:] in tuple("=(:[<>\u2248{,"):
        return "-" if is_minus else None, rest
    # A dash after a word, or the mark of a list. A minus sign would be written there, too.
    is_mark = previous[-1:] in ("", "\n") and character in "-\u2013\u2014"
    return ("" if is_mark or (follows_word and not is_minus) else None), rest


def _may_precede(before: str) -> bool:
    """Return whether a number may follow this text. Otherwise the number is a part of an expression."""
    if before.endswith("*"):  # emphasis, as in **5**
        return not before.rstrip("*")[-1:].isalnum()
    if before.endswith("|"):
        return False
    if before[-1:] in (" ", "\t", "$"):
        before = before.rstrip(" \t$")
        is_mark = before.endswith("*") and before[-2:-1] in ("", "\n")
    else:
        is_mark = False
    if (before[-1:] in tuple("^/\u2044\u221a\u00b1*\u00d7\u22c5\u00f7") and not is_mark) or before.endswith("\\pm"):
        return False
    if _COMMAND.search(before):
        return _RELATION.search(before) is not None
    return _is_outside_arguments(before)


def _is_outside_arguments(before: str) -> bool:
    """Return whether no open brace in the text belongs to a command that computes or to an exponent."""
    depth = 0
    for position in range(len(before) - 1, -1, -1):
        character = before[position]
        if character == "}":
            depth += 1
        elif character == "{" and depth:
            depth -= 1
        elif character == "{":
            opener = before[:position]
            if opener[-1:] in tuple("}^_]") or (_COMMAND.search(opener) and not _WRAPPER.search(opener)):
                return False
    return True
