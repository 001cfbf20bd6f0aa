"""Extracts the answer from a completion: the thinking part is removed, then one named rule finds the answer.

Main names: `strip_thinking`, `EXTRACTIONS`, `extract_answer`. Every function is pure and takes linear time.
No rule guesses: if an answer is not written as its rule requires, the result is None, which earns nothing.
Listing several answers never helps: either only the last one counts, or answers that differ give None.
"""

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType

ANSWERS_VERSION = "1"
"""Version of this module's behaviour. A pool's parameters pin it, so every change of behaviour must raise it."""
THINK_TAGS = ("<think>", "</think>")
"""The opening and the closing tag that most chat templates put around the thinking part."""

_BOX = re.compile(r"\\f?box(?:ed)?(?![a-zA-Z])")
_BOX_NAMES = frozenset({r"\boxed", r"\fbox"})
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_BARE = re.compile(r"[^\s{}$\\]+")
_ANSWER_TAG = re.compile(r"<(/?)answer>", re.IGNORECASE)
_PREFIX = re.compile(
    r"(?:(?:therefore|thus|hence|so)\b,?\s*)?(?:the\s+)?(?:final\s+|correct\s+)?answer(?:\s+is\b\s*:?|\s*:)\s*",
    re.IGNORECASE,
)
_EMPHASIS = ("***", "___", "**", "__", "*", "_", "`")
_LIST_MARK = re.compile(r"(?:#{1,6}|>|[-*+])\s+")
_DIGITS = re.compile(r"[0-9][0-9.,]*(?:(?<=[0-9])[eE][+\-]?[0-9]+)?")
_GROUPED = re.compile(r"[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]+)?")
_PLAIN = re.compile(r"[0-9]+(?:\.[0-9]+)?(?:[eE][+\-]?[0-9]+)?")
_SIGNS = "+-\u2212"
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})[ \t]*([^\n]*)")
_PYTHON = re.compile(r"(?:(?:python|py)[0-9.]*)?")


def strip_thinking(text: str, *, tags: tuple[str, str] = THINK_TAGS, required: bool = False) -> str | None:
    """Return the part of a completion that follows the thinking part, or None if the thinking part does not end.

    The answer is the text after the last closing tag, whatever precedes it: several thinking parts, nested ones,
    or a closing tag without an opening one. If an opening tag follows the last closing one, the thinking part was
    reopened and never closed, so the result is None. A text without tags is returned whole.

    `tags` are the opening and the closing tag, which are matched exactly. `required` means that the chat template
    opened the thinking part in the prompt. A completion without a closing tag then gives None.
    """
    opening, closing = tags
    before, separator, answer = text.rpartition(closing)
    if not separator:
        answer = before + answer
        if required:
            return None
    return None if opening in answer else answer


def extract_answer(
    text: str, extraction: str, *, tags: tuple[str, str] = THINK_TAGS, required: bool = False
) -> str | None:
    """Return the answer of a completion, or None if it has none.

    `extraction` is a key of `EXTRACTIONS`. For `tags` and `required` see `strip_thinking`. Raises KeyError if there is
    no such extraction.
    """
    answer = strip_thinking(text, tags=tags, required=required)
    return None if answer is None else EXTRACTIONS[extraction](answer)


def find_last_boxed(text: str) -> str | None:
    r"""Return the content of the boxes \boxed{...}, \fbox{...} and \boxed 5 if all of them agree.

    Braces must balance, and an escaped brace such as \{ does not count. A box inside another box belongs to the outer
    one. The result is None if a box is unbalanced or empty, or if two boxes differ after whitespace is removed.
    """
    candidates: list[str | None] = []
    end = 0
    closings: dict[int, int] | None = None
    for match in _BOX.finditer(text):
        if match.group() not in _BOX_NAMES or match.start() < end or _is_escaped(text, match.start()):
            continue
        start = _skip_spaces(text, match.end())
        if start < len(text) and text[start] == "{":
            closings = _match_braces(text) if closings is None else closings
            closing = closings.get(start)
            if closing is None:
                return None
            candidates.append(text[start + 1 : closing])
            end = closing + 1
        else:
            bare = _BARE.match(text, start)
            candidates.append(bare.group().rstrip(".,;:") if bare and match.group() == r"\boxed" else None)
            end = match.end()
    return _agreed(candidates)


def find_answer_tag(text: str) -> str | None:
    """Return the text between <answer> and </answer>. If there are several such texts, all must be equal.

    The case of the tags does not matter. Returns None for a nested or unclosed tag, or a closing tag without an opening
    one.
    """
    candidates: list[str | None] = []
    opened: int | None = None
    for match in _ANSWER_TAG.finditer(text):
        is_closing = bool(match.group(1))
        if is_closing == (opened is None):
            return None
        if opened is not None:
            candidates.append(text[opened : match.start()])
        opened = None if is_closing else match.end()
    return None if opened is not None else _agreed(candidates)


def find_last_line(text: str) -> str | None:
    """Return the last line that is not empty, reduced to the answer, or None.

    An introduction such as "The answer is", emphasis, a list or heading mark, and a trailing full stop are removed.
    """
    line = next((line for line in reversed(text.splitlines()) if line.strip()), "").strip()
    mark = _LIST_MARK.match(line)
    line = _strip_emphasis(line[mark.end() :] if mark else line)
    plain = line.lstrip("*_")
    prefix = _PREFIX.match(plain)
    if prefix:
        # In "**Answer:** 5" the emphasis opens before the introduction and closes after it.
        marks = line[: len(line) - len(plain)]
        line = plain[prefix.end() :].removeprefix(marks).strip()
    return _strip_emphasis(_strip_stop(_strip_emphasis(line))) or None


def find_final_number(text: str) -> str | None:
    """Return the last number of a text in plain form, for example "-1234.5", "1e-5" or "3/4".

    Digits that follow a letter or an underscore ("x2", "B12") are not numbers. Commas between groups of three digits
    are removed; other commas separate numbers. A percent sign, a dollar sign and a unit are dropped. A sign counts if
    it is directly before the number and does not follow another number, a letter or a bracket, so "2-3" ends in "3".
    Two integers around a slash are one fraction. A number with two points or two slashes, such as a date, gives None.
    """
    runs = [match for match in _DIGITS.finditer(text) if not _follows_word(text, match.start())]
    if not runs:
        return None
    start, number = _read_number(text, runs[-1])
    if number is not None and start > 0 and text[start - 1] == "/" and len(runs) > 1 and runs[-2].end() == start - 1:
        start, numerator = _read_number(text, runs[-2])
        is_fraction = (numerator or "").isdigit() and number.isdigit() and text[start - 1 : start] != "/"
        number = f"{numerator}/{number}" if is_fraction else None
    return None if number is None else _read_sign(text, start) + number


def find_last_code_block(text: str) -> str | None:
    """Return the content of the last fenced block of Python, or None. A block that names no language counts as Python.

    Fences are three or more of ` or ~, as in CommonMark. The closing fence has the same character and at least the same
    length, so a block fenced with four backticks may contain three. An unclosed fence gives None.
    """
    block: list[str] = []
    fence, language, code = "", "", None
    for line in text.splitlines(keepends=True):
        match = _FENCE.match(line)
        marks, rest = (match.group(1), match.group(2).strip()) if match else ("", "")
        if not fence:
            # Backticks later on the line of an opening fence make it an inline code span.
            if marks and not (marks[0] == "`" and "`" in rest):
                fence, language, block = marks, rest.partition(" ")[0].lower(), []
        elif marks and marks[0] == fence[0] and len(marks) >= len(fence) and not rest:
            fence = ""
            if _PYTHON.fullmatch(language):
                code = "".join(block)
        else:
            block.append(line)
    return None if fence or code is None or not code.strip() else code


def find_whole(text: str) -> str | None:
    """Return the text unchanged, or None if it is blank."""
    return text if text.strip() else None


EXTRACTIONS: Mapping[str, Callable[[str], str | None]] = MappingProxyType(
    {
        "last_boxed": find_last_boxed,
        "answer_tag": find_answer_tag,
        "last_line": find_last_line,
        "final_number": find_final_number,
        "last_code_block": find_last_code_block,
        "whole": find_whole,
    }
)
"""Extraction rules by name. Each takes the text after the thinking part, and returns the answer or None."""


def _agreed(candidates: list[str | None]) -> str | None:
    """Return the last candidate, or None if there is none, if one of them is None, or if two of them differ.

    Whitespace is ignored in the comparison.
    """
    if not candidates or any(candidate is None for candidate in candidates):
        return None
    plain = {"".join((candidate or "").split()) for candidate in candidates}
    if len(plain) != 1 or plain == {""}:
        return None
    return (candidates[-1] or "").strip()


def _match_braces(text: str) -> dict[int, int]:
    """Map the position of each opening brace to the position of its closing brace, in one pass over the text."""
    closings: dict[int, int] = {}
    opened: list[int] = []
    for match in _BRACE.finditer(text):
        if match.group() == "{":
            opened.append(match.start())
        elif match.group() == "}" and opened:
            closings[opened.pop()] = match.start()
    return closings


def _is_escaped(text: str, position: int) -> bool:
    """Return whether an odd number of backslashes directly precedes `position`.

    The backslash at `position` is then the second half of a line break, and does not start a command.
    """
    start = position
    while start > 0 and text[start - 1] == "\\":
        start -= 1
    return (position - start) % 2 == 1


def _skip_spaces(text: str, position: int) -> int:
    while position < len(text) and text[position] in " \t\n":
        position += 1
    return position


def _strip_emphasis(line: str) -> str:
    line = line.strip()
    for mark in _EMPHASIS:
        inner = line[len(mark) : -len(mark)]
        if len(line) > 2 * len(mark) and line.startswith(mark) and line.endswith(mark) and mark[0] not in inner:
            return inner.strip()
    return line


def _strip_stop(line: str) -> str:
    return line[:-1].rstrip() if line.endswith(".") and not line.endswith("..") else line


def _follows_word(text: str, position: int) -> bool:
    return position > 0 and (text[position - 1].isalnum() or text[position - 1] == "_")


def _read_number(text: str, run: re.Match[str]) -> tuple[int, str | None]:
    """Return the start and the text of the last number in a run of digits, points and commas.

    The text is None if that part of the run is not a number.
    """
    digits = run.group().rstrip(".,")
    if _GROUPED.fullmatch(digits):
        return run.start(), digits.replace(",", "")
    number = digits.rpartition(",")[2]
    start = run.start() + len(digits) - len(number)
    if not _PLAIN.fullmatch(number):
        return start, None
    if start == run.start() and text[start - 1 : start] == "." and not _follows_word(text, start - 1):
        return start - 1, f"0.{number}" if number.isdigit() else None
    return start, number


def _read_sign(text: str, start: int) -> str:
    """Return the minus sign of the number at `start`, or an empty string."""
    position = start - 1 if text[start - 1 : start] == "$" else start
    if position == 0 or text[position - 1] not in _SIGNS:
        return ""
    before = position - 1
    while before > 0 and text[before - 1] in " \t":
        before -= 1
    is_operator = before > 0 and (text[before - 1].isalnum() or text[before - 1] in ")]}")
    # In "is -3" a word before the space does not make the sign an operator.
    if before < position - 1 and text[before - 1].isalpha():
        is_operator = False
    return "-" if text[position - 1] != "+" and not is_operator else ""
