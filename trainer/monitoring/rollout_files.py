"""Completions of each step as readable lines, HOME/rollouts/STEP.jsonl, for `covey rollouts show` and other tools."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import TypeAdapter

from covey.environments.length_costs import LengthCosts
from covey.errors import OperatorError
from covey.model.prompts import PromptFormat, decode_question
from covey.model.text import Tokenizer, decode_completion
from covey.protocol.ids import Step
from covey.runtime.files import read_lines, write_atomically
from covey.runtime.full_disk import ExplainFullDisk
from trainer.data.samples import Sample

FOLDER = "rollouts"


@dataclass(frozen=True, kw_only=True, slots=True)
class RolloutLine:
    """One completion of a step. Example: RolloutLine(step=3, question="1 + 1 = ?", completion="2", reward=1.0, ...)."""

    step: int
    """Step that learned from the completion."""
    policy: int
    """Step of the policy that sampled it."""
    task: int
    group: int
    sibling: int
    question: str
    """Text of the prompt, including the system message."""
    completion: str
    """Text of the completion, without its end token."""
    reward: float
    length_penalty: float
    """Part of the reward that the length cost, 0 or negative."""
    advantage: float
    """Advantage in its group. 0 for all of a group without a difference, which teaches nothing."""
    finished: bool
    """Whether it ended with an end token. Otherwise it was cut at the token limit."""
    tokens: int
    """Length in tokens, including the end token."""

    @staticmethod
    def parse(line: bytes) -> "RolloutLine":
        """Return the completion in a line of a file. Raises ValueError if a value is missing or of another type."""
        return _LINE.validate_json(line, strict=True)


_LINE = TypeAdapter(RolloutLine)


class RolloutFiles:
    """The folder with one file per step. Example: `RolloutFiles(Path("run/rollouts")).read(Step(3))`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(
        self,
        step: Step,
        samples: Sequence[Sample],
        *,
        count: int,
        costs: LengthCosts,
        tokenizer: Tokenizer,
        format: PromptFormat,
    ) -> None:
        """Write `count` completions of a step, spread evenly over its samples. A step that is repeated is replaced."""
        if not count:
            return
        count = min(count, len(samples))
        chosen = [samples[n * len(samples) // count] for n in range(count)]
        lines = [_build_line(step, sample, costs=costs, tokenizer=tokenizer, format=format) for sample in chosen]
        text = "".join(json.dumps(asdict(line), ensure_ascii=False) + "\n" for line in lines)
        with ExplainFullDisk(self._folder.parent, f"the rollouts of step {step}"):
            self._folder.mkdir(exist_ok=True)
            write_atomically(self._folder / f"{step}.jsonl", text.encode(errors="replace"))

    def list_steps(self) -> list[Step]:
        """Return the steps that have a file, in ascending order."""
        files = self._folder.glob("*.jsonl") if self._folder.is_dir() else ()
        return sorted(Step(int(file.stem)) for file in files if file.stem.isdecimal())

    def read(self, step: Step) -> Iterator[RolloutLine]:
        """Yield the completions of a step. Raises OperatorError("no_rollouts") if there are none."""
        file = self._folder / f"{step}.jsonl"
        if not file.exists():
            steps = self.list_steps()
            raise OperatorError(
                "no_rollouts",
                f"{self._folder} has no completions of step {step}",
                fix=f"Choose a step from {steps[0]} to {steps[-1]}" if steps else "Set log.rollouts above 0",
            )
        for line in read_lines(file):
            yield RolloutLine.parse(line)


def _build_line(
    step: Step, sample: Sample, *, costs: LengthCosts, tokenizer: Tokenizer, format: PromptFormat
) -> RolloutLine:
    question = decode_question(tokenizer, sample.prompt, format=format)
    ends = {sample.tokens[-1]} if sample.finished else frozenset[int]()
    return RolloutLine(
        step=step,
        policy=sample.policy_version,
        task=sample.id.task,
        group=sample.id.group,
        sibling=sample.id.sibling,
        question=question,
        completion=decode_completion(tokenizer, sample.tokens, ends),
        reward=sample.reward,
        length_penalty=-costs.compute(question, completion_tokens=len(sample.tokens)),
        advantage=sample.advantage,
        finished=sample.finished,
        tokens=len(sample.tokens),
    )
