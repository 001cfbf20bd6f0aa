"""Kinds whose tasks are rows and whose answers are strings: mathematics, short answer, multiple choice.

The rows come from a data set. Graders are imported when the first answer is graded, because mathematics loads
sympy, which is slow.
"""

import re
from collections.abc import Mapping
from typing import ClassVar, cast

from covey.environments.base import JsonObject
from covey.environments.kinds.dataset_rows import RowSource, read_strings

MAX_CHARACTERS = 2048
"""Maximum length of a row's answer or choice in characters, for kinds that only compare strings."""
_GSM8K = re.compile(r"####\s*\$?([^#\n]*[^#\s])\s*")
"""End of an answer of GSM8K, which follows the solution. Example: "#### 1,024"."""
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
"""Letters of choices, in order. A row has at most one choice per letter."""


class MathSource(RowSource):
    """Mathematics: an answer is right if it is mathematically the same as a ground truth."""

    task_type: ClassVar[str] = "math"
    extraction: ClassVar[str] = "last_boxed"
    version: ClassVar[str] = "2"

    @classmethod
    def read_info(cls, raw: JsonObject) -> JsonObject:
        """Convert {"ground_truth": "5"} or {"ground_truth": ["5", "five"]} to {"ground_truth": ["5", ...]}."""
        return {"ground_truth": [*read_strings(raw, "ground_truth")]}

    @classmethod
    def read_columns(cls, values: Mapping[str, object]) -> tuple[str, JsonObject]:
        """Read a row of GSM8K: a `question`, and an `answer` whose solution ends with "#### 42"."""
        question, answer = values.get("question"), values.get("answer")
        if not isinstance(question, str) or not isinstance(answer, str):
            raise ValueError("verification_info is missing, and the columns question and answer are not both strings")
        solution, mark, _ = answer.rpartition("####")
        final = _GSM8K.fullmatch(answer, len(solution)) if mark else None
        if final is None:
            raise ValueError(f'answer ends in {answer[-60:]!r}, and not in "#### " and a number')
        return question, {"ground_truth": final.group(1).replace(",", "")}

    def grade(self, verification: JsonObject, answer: str) -> float:
        """Return 1 if the answer is the same as one of the ground truths, else 0."""
        from covey.environments.kinds.mathematics import mathematics

        return float(mathematics.is_right(answer, cast(list[str], verification["ground_truth"])))

    def warm_up(self) -> None:
        """Load sympy and fill its caches."""
        from covey.environments.kinds.mathematics import mathematics

        mathematics.warm_up()

    def list_versions(self) -> Mapping[str, str]:
        """Return the versions of the packages that compare expressions, by name."""
        from covey.environments.kinds.mathematics import mathematics

        return mathematics.versions()


class ShortAnswerSource(RowSource):
    """Short answers: an answer is right if it equals one of the row's answers after normalisation."""

    task_type: ClassVar[str] = "short_answer"
    extraction: ClassVar[str] = "answer_tag"
    is_plain = True

    @classmethod
    def read_info(cls, raw: JsonObject) -> JsonObject:
        """Convert {"answers": ["Paris", ...]}, or the same list under "ground_truth", to {"answers": [...]}."""
        return {"answers": [*_require_short(read_strings(raw, "answers", "ground_truth"))]}

    def grade(self, verification: JsonObject, answer: str) -> float:
        """Return 1 if the answer equals one of the row's answers after normalisation, else 0."""
        from covey.environments.kinds import short_answer

        return float(short_answer.is_right(answer, cast(list[str], verification["answers"])))

    def warm_up(self) -> None:
        """Load the grader, and grade one answer that needs normalisation."""
        self.grade({"answers": ["1,000 caf\u00e9s"]}, "**1000 CAFES**.")


class MultipleChoiceSource(RowSource):
    """Multiple choice: an answer is right if it gives the letter or the text of the right choice."""

    task_type: ClassVar[str] = "multiple_choice"
    extraction: ClassVar[str] = "answer_tag"
    is_plain = True

    @classmethod
    def read_info(cls, raw: JsonObject) -> JsonObject:
        """Convert {"choices": [...], "answer": "B" or 1 or the choice's text} to {"choices": [...], "right": 1}."""
        choices = _require_short(read_strings(raw, "choices"))
        if not 2 <= len(choices) <= len(LETTERS):
            raise ValueError(f"choices has {len(choices)} entries, but must have 2 to {len(LETTERS)}")
        name = "answer" if "answer" in raw else "right"
        if name not in raw:
            raise ValueError("answer is missing or empty")
        return {"choices": [*choices], "right": _find_right(name, raw[name], choices)}

    def ask(self, question: str, info: JsonObject) -> str:
        """Return the question, followed by one line per choice with its letter."""
        choices = cast(list[str], info["choices"])
        return "\n".join([question, *(f"{LETTERS[i]}. {choice}" for i, choice in enumerate(choices))])

    def grade(self, verification: JsonObject, answer: str) -> float:
        """Return 1 if the answer names the right choice and no other, else 0."""
        from covey.environments.kinds import multiple_choice

        choices, right = cast(list[str], verification["choices"]), cast(int, verification["right"])
        return float(multiple_choice.is_right(answer, choices=choices, right=right))

    def warm_up(self) -> None:
        """Load the grader, and grade one answer that has a letter and a text."""
        self.grade({"choices": ["1,000 caf\u00e9s", "none"], "right": 0}, "**B) None**.")


def _require_short(texts: list[str]) -> list[str]:
    """Return the strings unchanged. Raises ValueError if one exceeds `MAX_CHARACTERS`.

    Normalising long strings is slow, and kinds that only compare strings grade without a time limit.
    """
    longest = max(map(len, texts))
    if longest > MAX_CHARACTERS:
        raise ValueError(f"a string has {longest} characters, but at most {MAX_CHARACTERS} are allowed")
    return texts


def _find_right(name: str, value: object, choices: list[str]) -> int:
    """Return the index of the right choice, which `value` gives as an index, a letter or a text.

    Raises ValueError if `value` does not identify exactly one choice.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        if 0 <= value < len(choices):
            return value
        raise ValueError(f"{name} is {value}, which is outside the {len(choices)} choices, counted from 0")
    if not isinstance(value, str):
        raise ValueError(f"{name} is {value!r:.60}, which is neither a letter, an index nor a string")
    letter = value.strip()
    matches = {i for i, choice in enumerate(choices) if choice == value}
    matches |= {LETTERS.index(letter)} if len(letter) == 1 and letter in LETTERS[: len(choices)] else set()
    if len(matches) != 1:  # if choices are letters themselves, a letter may name one choice and be the text of another
        raise ValueError(
            f"{name} is {value!r:.60}, which matches {len(matches)} choices by letter or text instead of one"
        )
    return matches.pop()
