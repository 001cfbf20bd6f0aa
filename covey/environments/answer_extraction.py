"""Extracts the answer from a completion: the thinking part is removed, then one named rule finds the answer.

Main names: `strip_thinking`, `EXTRACTIONS`, `extract_answer`. Every function is pure and takes linear time.
No rule guesses: if an answer is not written as its rule requires, the result is None, which earns nothing.
Listing several answers never helps: either only the last one counts, or answers that differ give None.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from covey.environments.final_number import find_final_number

ANSWERS_VERSION = "3"
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
_MARKERS = re.compile(r"(?:[ \t]*(?:>|[-*+](?=[ \t])|[0-9]{1,9}[.)](?=[ \t])))*[ \t]*")
"""What may precede an opening fence on its line: marks of block quotes and of list items, and indentation."""
_QUOTE = re.compile(r"[ \t]*>")
_FENCE = re.compile(r"(`{3,}|~{3,})[ \t]*([^\n]*)")
_LANGUAGE = re.compile(r"[{.]*([^\s,:;{}]*)")
_PYTHON = re.compile(r"(?:python|py)[0-9.]*")
_TAB = 4
"""Columns to which a tab extends, as in CommonMark."""


def read_tags(options: object) -> tuple[str, str]:
    """Return the tags of the thinking part from the options of an environment, which may be damaged."""
    match options:
        case {"thinking_tags": [str(opening), str(closing)]} if opening and closing:
            return opening, closing
    return THINK_TAGS


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


def find_last_code_block(text: str) -> str | None:
    """Return the content of the last fenced block that is marked as Python, or None.

    If no block is marked as Python, the last block that names no language is the program. Blocks of other languages,
    such as an output, never are, nor are sessions of the interpreter, which begin with >>>.
    Fences are three or more of ` or ~, as in CommonMark. The closing fence has the same character, at least the same
    length, and at most three columns more indentation than the opening one. A fence may be in a list item or a
    block quote. The marks of block quotes and the indentation of the first line are removed from
    all lines. An unclosed fence gives None.
    """
    blocks: dict[bool, str] = {}
    lines: list[str] = []
    opening: _Opening | None = None
    for line in text.splitlines(keepends=True):
        if opening is None:
            opening, lines = _read_opening(line), []
        elif opening.is_closed_by(line):
            block = _strip_indentation(lines)
            if opening.language in ("", "python") and not block.lstrip().startswith(">>> "):
                blocks[opening.language == "python"] = block
            opening = None
        else:
            lines.append(_strip_quotes(line, opening.quotes))
    program = blocks.get(True, blocks.get(False, ""))
    return program if opening is None and program.strip() else None


def find_whole(text: str) -> str | None:
    """Return the text without the whitespace around it, or None if it is blank.

    If the text has several lines, the indentation of its first line is kept, because it may be part of a grid.
    """
    return _strip_blank(text) or None


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
    return _strip_blank(candidates[-1] or "")


def _strip_blank(text: str) -> str:
    """Remove blank lines around a text and whitespace after it. A single line loses its indentation, too."""
    text = text.rstrip()
    start = len(text) - len(text.lstrip())
    text = text[max(text.rfind(end, 0, start) for end in "\n\r") + 1 :]
    return text if "\n" in text or "\r" in text else text.strip()


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


@dataclass(frozen=True, kw_only=True, slots=True)
class _Opening:
    """An opening fence."""

    marks: str
    """Characters of the fence, for example three backticks."""
    language: str
    """Language of the block in lower case, "python" for all its names and versions, or "" if none is named."""
    quotes: int
    """Number of block quotes around the block."""
    columns: int
    """Columns before the fence, within the innermost block quote."""

    def is_closed_by(self, line: str) -> bool:
        """Return whether a line is the closing fence."""
        line = _strip_quotes(line, self.quotes)
        fence = line.strip()
        is_fence = len(fence) >= len(self.marks) and set(fence) == {self.marks[0]}
        return is_fence and _count_columns(line[: len(line) - len(line.lstrip())]) <= self.columns + 3


def _read_opening(line: str) -> _Opening | None:
    """Return the opening fence of a line, or None if there is none."""
    markers = (_MARKERS.match(line) or line)[0]
    fence = _FENCE.match(line, len(markers))
    # Backticks later on the line of an opening fence make it an inline code span.
    if not fence or (fence.group(1)[0] == "`" and "`" in fence.group(2)):
        return None
    name = (_LANGUAGE.match(fence.group(2)) or ("", ""))[1].lower()
    outer, quote, inner = markers.rpartition(">")
    return _Opening(
        marks=fence.group(1),
        language="python" if _PYTHON.fullmatch(name) else name,
        quotes=(outer + quote).count(">"),
        columns=_count_columns(inner.removeprefix(" ") if quote else inner),
    )


def _strip_quotes(line: str, count: int) -> str:
    """Remove up to `count` marks of block quotes from the start of a line, each with one space after it."""
    for _ in range(count):
        quote = _QUOTE.match(line)
        if not quote:
            break
        line = line[quote.end() :].removeprefix(" ")
    return line


def _count_columns(indentation: str) -> int:
    return len(indentation.expandtabs(_TAB))


def _strip_indentation(lines: list[str]) -> str:
    """Join lines without the indentation of the first one that is not blank, because a program begins without one."""
    first = next((line for line in lines if line.strip()), "")
    columns = _count_columns(first[: len(first) - len(first.lstrip())])
    return "".join(_remove_columns(line, columns) for line in lines)


def _remove_columns(line: str, columns: int) -> str:
    start = 0
    while line[start : start + 1] in (" ", "\t") and _count_columns(line[:start]) < columns:
        start += 1
    return line[start:]
