"""The demo's task for both sides of `local_run`: spell a word backward with the tiny model.

The module imports neither Covey's trainer nor an engine, so that the memory of a peer's process holds neither.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from benchmarks.isolated_process import read_peak
from benchmarks.training.copy_task import read_clocks
from covey.environments.python_rewards import HELD_OUT

MAX_TOKENS = 8
"""Maximum number of tokens of a completion: a word of at most five letters, its end token and room for mistakes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SpellingConfig:
    """One size of the comparison. Example: SpellingConfig(rows=2048, steps=20, every=4, timed=10)."""

    rows: int
    """Number of questions, of which every eighth is held out."""
    steps: int
    """Number of steps of the run with evaluations."""
    every: int
    """Number of steps from one evaluation to the next."""
    timed: int
    """Number of steps of the run without evaluations, whose rate counts."""
    groups: int = 16
    """Number of questions in a step."""
    siblings: int = 8
    """Number of completions of one question."""
    learning_rate: float = 5e-4
    """AdamW's learning rate, which is constant."""

    @property
    def batch(self) -> int:
        """Number of completions in a step."""
        return self.groups * self.siblings

    @property
    def held_out(self) -> int:
        """Number of held-out questions, each with one completion in an evaluation."""
        return self.rows // HELD_OUT


@dataclass(kw_only=True, slots=True)
class SpellingRun:
    """What one side measured. Clocks are pairs of wall seconds and CPU seconds."""

    stamps: list[tuple[float, float]] = field(default_factory=list)
    """Clocks at the end of each step of the run without evaluations."""
    evaluations: list[tuple[int, float, float, float]] = field(default_factory=list)
    """Step, mean held-out reward, and wall and CPU seconds since the run with evaluations began to load its model."""
    peak: int = 0
    """Peak of the process's memory in bytes."""
    begun: tuple[float, float] = (0.0, 0.0)
    """Clocks when the run with evaluations began."""

    def begin(self) -> None:
        """Record the beginning of the run with evaluations."""
        self.begun = read_clocks()

    def stamp(self) -> None:
        """Record the end of a step of the run without evaluations."""
        self.stamps.append(read_clocks())

    def add_evaluation(self, step: int, reward: float) -> None:
        """Record an evaluation that has just ended."""
        wall, cpu = read_clocks()
        self.evaluations.append((step, reward, wall - self.begun[0], cpu - self.begun[1]))

    def finish(self) -> "SpellingRun":
        """Record the peak of memory, and return the run."""
        self.peak = read_peak()
        return self


def write_rows(file: Path, number: int) -> None:
    """Write different questions of the demo's generator as JSON lines with "prompt" and "answer"."""
    from covey.environments import registry
    from covey.environments.environment import TaskEnvironment

    environment = registry.load(registry.DEMO)
    assert isinstance(environment, TaskEnvironment)
    rows: dict[str, str] = {}
    for draw in count():
        if len(rows) == number:
            break
        task = environment.source.draw(draw)
        rows.setdefault(task.question, environment.source.find_answer(task))  # type: ignore[attr-defined]
    lines = [json.dumps({"prompt": question, "answer": answer}) + "\n" for question, answer in rows.items()]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(lines))


def read_rows(file: str) -> list[dict[str, str]]:
    """Read the rows that `write_rows` has written."""
    return [json.loads(line) for line in Path(file).read_text().splitlines()]


def split_rows(rows: Sequence[dict[str, str]]) -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    """Return training rows and held-out rows, as Covey splits rows of Python."""
    training = [row for number, row in enumerate(rows) if number % HELD_OUT != HELD_OUT - 1]
    return training, [row for number, row in enumerate(rows) if number % HELD_OUT == HELD_OUT - 1]


def compute_reward(completion: str, row: Mapping[str, Any]) -> float:
    """Return 1 if the completion is exactly the answer, else 0. One that was cut off is longer than every answer."""
    return float(completion == row["answer"])
