"""The folder of an evaluation: what it evaluates (`evaluation.json`) and one line per completion (`samples.jsonl`).

Main names: `SampleLog`, `SampleRecord`. A line is written whole or not at all, so a killed evaluation resumes after the
last line. A folder belongs to one evaluation: other models, questions or settings are refused. The text of a completion
stays in the file and is read when it is needed.
"""

import fcntl
import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from pydantic import JsonValue

from covey.errors import OperatorError
from covey.runtime.files import append, read_lines, write_atomically
from covey.runtime.flat_tables import compare, flatten
from covey.runtime.full_disk import is_full

MANIFEST_NAME = "evaluation.json"
SAMPLES_NAME = "samples.jsonl"
_LOCK = ".lock"
SampleKey = tuple[int, int, int]
"""Index of the model, index of the question, and number of the completion, each from 0."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SampleRecord:
    """A graded completion, without its text."""

    model: int
    """Index of the model in the manifest."""
    question: int
    """Index of the question in the file of questions."""
    sample: int
    """Number of the completion among those of its question, from 0."""
    tokens: int
    """Length in tokens, including the end token. 0 if the prompt was too long for the model."""
    finished: bool
    """Whether the completion ended with an end token, and not at the token limit."""
    answered: bool
    """Whether an answer could be extracted."""
    score: float
    """What the answer earns, from 0 to 1."""
    limit: str = ""
    """Why the completion counts as wrong without a comparison: a limit of its grading, or "prompt_too_long"."""
    confidence: float | None = None
    """Confidence that the completion states, from 0 to 1. None if it states none."""

    @property
    def key(self) -> SampleKey:
        """Place of the completion in the evaluation."""
        return self.model, self.question, self.sample


class SampleLog:
    """The folder of one evaluation. Only one process has it open. Example: `with SampleLog(folder) as log: ...`."""

    def __init__(self, folder: Path) -> None:
        """Create the folder if it is missing, and lock it. Raises OperatorError("evaluation_running") if it is open."""
        self.folder = folder
        self.records: dict[SampleKey, SampleRecord] = {}
        self._offsets: dict[SampleKey, int] = {}
        self._size = 0
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = (folder / _LOCK).open("w")
        except OSError as error:
            raise OperatorError(
                "no_folder",
                f"the folder {folder} cannot be written: {error.strerror}",
                fix="Choose a folder that you can write to with --out",
            ) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._lock.close()
            raise OperatorError(
                "evaluation_running",
                f"another process evaluates into {folder}",
                fix="Wait until it has ended, or choose another folder with --out",
            ) from error

    def open(self, identity: Mapping[str, JsonValue], details: Mapping[str, JsonValue]) -> None:
        """Start an evaluation, or read what it has so far.

        `identity` is what its results depend on, and `details` is what a reader may want to know. Raises
        OperatorError("another_evaluation") if the folder has an evaluation with another identity, and
        OperatorError("bad_results") if its files are damaged.
        """
        path = self.folder / MANIFEST_NAME
        if path.exists():
            self._require_same(path, identity)
        else:
            (self.folder / SAMPLES_NAME).unlink(missing_ok=True)
            text = json.dumps({"identity": identity, "details": details}, indent=2, sort_keys=True)
            write_atomically(path, text.encode() + b"\n")
        samples = self.folder / SAMPLES_NAME
        for line in read_lines(samples) if samples.exists() else []:
            try:
                values = json.loads(line)
                del values["text"]
                self._add(SampleRecord(**values), len(line) + 1)
            except (ValueError, KeyError, TypeError) as error:
                raise self._refuse(samples) from error

    def append(self, rows: Iterable[tuple[SampleRecord, str]]) -> None:
        """Append completions with their texts in one write. Raises OperatorError("disk_full") if there is no space."""
        lines = [(record, json.dumps({**asdict(record), "text": text}).encode() + b"\n") for record, text in rows]
        try:
            append(self.folder / SAMPLES_NAME, b"".join(line for _, line in lines))
        except OSError as error:
            if not is_full(error):
                raise
            raise OperatorError(
                "disk_full",
                f"the disk of {self.folder} is full, so no more completions could be written",
                fix="Free space on this disk and run the same command again, which continues",
            ) from error
        for record, line in lines:
            self._add(record, len(line))

    def read_text(self, key: SampleKey) -> str:
        """Return the text of a completion."""
        with (self.folder / SAMPLES_NAME).open("rb") as file:
            file.seek(self._offsets[key])
            return str(json.loads(file.readline())["text"])

    def list_missing(self, keys: Sequence[SampleKey]) -> list[SampleKey]:
        """Return the keys that have no completion yet, in their order."""
        return [key for key in keys if key not in self.records]

    def close(self) -> None:
        """Unlock the folder. It is removed if nothing was started in it and it is empty."""
        if not (self.folder / MANIFEST_NAME).exists():
            (self.folder / _LOCK).unlink(missing_ok=True)
            with suppress(OSError):  # it has other files
                self.folder.rmdir()
        self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _add(self, record: SampleRecord, size: int) -> None:
        self.records[record.key] = record
        self._offsets[record.key] = self._size
        self._size += size

    def _require_same(self, path: Path, identity: Mapping[str, JsonValue]) -> None:
        try:
            earlier: Any = json.loads(path.read_bytes())
            before = flatten({**earlier["identity"]}, splits_lists=True)
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise self._refuse(path) from error
        differing = [*compare(before, flatten(json.loads(json.dumps(identity)), splits_lists=True))]
        if differing:
            name, was, now = differing[0]
            others = f" (and {len(differing) - 1} others)" if len(differing) > 1 else ""
            raise OperatorError(
                "another_evaluation",
                f"{self.folder} has another evaluation: {name}{others} was {_shorten(was)} and is now {_shorten(now)}",
                fix="Choose another folder with --out, or use the models, tasks and options of the earlier evaluation",
            )

    def _refuse(self, path: Path) -> OperatorError:
        return OperatorError(
            "bad_results", f"{path} is not a file of covey eval, or is damaged", fix="Choose another folder with --out"
        )


def _shorten(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:59]}\u2026"
