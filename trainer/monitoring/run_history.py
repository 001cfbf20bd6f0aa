"""What the files of a run or a pool's trainer say about its past, read without changing them.

Damaged lines are left out and reported in `RunHistory.problems`, so that a run can be looked at while it writes, or
after its disk has failed.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeGuard

from trainer.monitoring.rollout_files import FOLDER, RolloutFiles, RolloutLine

METRICS_FILE = "metrics.jsonl"
_SHOWN_PROBLEMS = 8
"""Number of problems of one file that are described. The others are counted."""
_LARGEST = 1e300
"""Bound on values that are drawn, so that scales cannot overflow."""
EventValues = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class RunHistory:
    """Metrics by event and step. Example: `read_history(Path("run")).get_series("update", "reward/mean")`."""

    events: Mapping[str, Mapping[int, EventValues]]
    """Values by event and ascending step, without alarms."""
    alarms: Sequence[tuple[int, EventValues]]
    """Step and values of each alarm, in their order."""
    problems: Sequence[str] = field(default_factory=tuple)
    """What could not be read, one sentence each."""

    def get_series(self, event: str, name: str) -> dict[int, float]:
        """Return the finite values of a metric by step."""
        pairs = ((step, values.get(name)) for step, values in self.events.get(event, {}).items())
        return {step: float(value) for step, value in pairs if _is_number(value)}


def read_history(home: Path) -> RunHistory:
    """Read the metrics of a run's folder or a trainer's home. Missing files are problems and not errors."""
    problems = list[str]()
    return parse_history(_read_file(home / METRICS_FILE, problems), problems)


def parse_history(data: bytes, problems: Sequence[str] = ()) -> RunHistory:
    """Return what the lines of a metrics file say. `problems` are those of reading the file."""
    events: dict[str, dict[int, EventValues]] = {}
    alarms, found = list[tuple[int, EventValues]](), [*problems]
    for event, step, values in _parse_metrics(data, found):
        if event == "alarm":
            alarms.append((step, values))
        else:
            events.setdefault(event, {}).setdefault(step, values)
    ordered = {event: dict(sorted(by_step.items())) for event, by_step in events.items()}
    found += _find_gaps([*ordered.get("update", {})])
    return RunHistory(events=ordered, alarms=alarms, problems=_shorten(found))


def read_samples(home: Path, step: int, count: int) -> tuple[list[RolloutLine], list[str]]:
    """Return at most `count` completions of a step, and what could not be read."""
    problems = list[str]()
    lines, damaged = parse_samples(_read_file(home / FOLDER / f"{step}.jsonl", problems), step)
    return lines[:count], problems or damaged


def parse_samples(data: bytes, step: int) -> tuple[list[RolloutLine], list[str]]:
    """Return the completions in the lines of a step's file, and a sentence for each damaged line."""
    lines, problems = list[RolloutLine](), list[str]()
    for number, line in _list_lines(data):
        try:
            lines.append(RolloutLine.parse(line))
        except ValueError:
            problems.append(f"Line {number} of {step}.jsonl is not a completion.")
    return lines, _shorten(problems)


def list_sample_steps(home: Path) -> list[int]:
    """Return the steps whose completions are kept, in ascending order."""
    return [*RolloutFiles(home / FOLDER).list_steps()]


def _parse_metrics(data: bytes, problems: list[str]) -> Iterator[tuple[str, int, EventValues]]:
    """Yield event, step and values of each line."""
    for number, line in _list_lines(data):
        try:
            values = json.loads(line)
            event, step = values["event"], values["step"]
        except (ValueError, RecursionError, TypeError, LookupError):
            event = step = None
        if isinstance(event, str) and type(step) is int:
            yield event, step, values
        else:
            problems.append(f"Line {number} of {METRICS_FILE} is not an object with an event and a step.")


def _read_file(file: Path, problems: list[str]) -> bytes:
    """Return the content of a file. The file is not changed, unlike by `read_lines`."""
    try:
        return file.read_bytes()
    except OSError as error:
        problems.append(f"{file.name} cannot be read: {error.strerror or 'unknown error'}.")
        return b""


def _list_lines(data: bytes) -> list[tuple[int, bytes]]:
    """Return number and content of each line that is not empty."""
    return [(number, line) for number, line in enumerate(data.split(b"\n"), start=1) if line.strip()]


def _find_gaps(steps: Sequence[int]) -> Iterator[str]:
    for before, after in pairwise(steps):
        if after > before + 1:
            missing = f"step {before + 1}" if after == before + 2 else f"steps {before + 1} to {after - 1}"
            yield f"The metrics of {missing} are missing."


def _shorten(problems: Sequence[str]) -> list[str]:
    rest = len(problems) - _SHOWN_PROBLEMS
    return [*problems[:_SHOWN_PROBLEMS], *([f"There are {rest} more problems like these."] if rest > 0 else [])]


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _LARGEST
