"""The offline filter (INTELLECT-2, section 3): counts how often a smaller model answers each question correctly.

Question n is the environment's prompt of draw n. Results are appended turn by turn, so a filter that was stopped
resumes where it ended.
"""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import JsonValue

from covey.engines.base import Engine, GenerationRequest
from covey.environments.base import Environment, EnvironmentSpec, Grader
from covey.errors import OperatorError
from covey.model.prompts import RAW, PromptFormat, encode_prompt
from covey.model.text import decode_completion
from covey.protocol.seeding import compute_trial_seed
from covey.runtime.files import append, read_lines

Passes = Mapping[int, int | None]
"""Number of right answers by question; None for a prompt that is too long for the pool."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SolveTrial:
    """Settings for which results are valid.

    Example: SolveTrial(kind="reasoning_gym", options={...}, model="...", pass_k=8, ...).
    """

    kind: str
    options: Mapping[str, JsonValue]
    model: str
    engine: str
    dtype: str
    pass_k: int
    """Number of answers to each question."""
    seed: int
    temperature: float
    max_prompt_tokens: int
    max_completion_tokens: int
    format: PromptFormat = RAW
    """Format in which questions become prompts; a chat format uses the template of `model`."""

    @property
    def spec(self) -> EnvironmentSpec:
        return EnvironmentSpec(kind=self.kind, options=self.options)


class Results:
    """A file of JSON lines: the trial first, then {"number": 5, "passes": 3} for each question.

    Raises OperatorError("another_filter") for a file of another trial, and OperatorError("bad_results") for a file that
    is not of this form.
    """

    def __init__(self, path: Path, trial: SolveTrial) -> None:
        self._path = path
        self.passes: dict[int, int | None] = {}
        lines = read_lines(path) if path.exists() else []
        if lines:
            self._read(lines, trial)
        else:
            self._append([asdict(trial)])

    def add(self, found: Passes) -> None:
        """Write results, before the next questions are asked."""
        self._append([{"number": number, "passes": passes} for number, passes in found.items()])
        self.passes |= found

    def _read(self, lines: Sequence[bytes], trial: SolveTrial) -> None:
        try:
            head, *rows = map(json.loads, lines)
            self.passes = {row["number"]: row["passes"] for row in rows}
        except (ValueError, KeyError, TypeError) as error:
            raise OperatorError(
                "bad_results",
                f"{self._path} is not a results file of covey tasks filter",
                fix="Choose another file with --out",
            ) from error
        if head != json.loads(json.dumps(asdict(trial))):
            raise OperatorError(
                "another_filter",
                f"{self._path} contains results for a different model, environment or setting",
                fix="Choose another file with --out, or use the options of the earlier run",
            )

    def _append(self, rows: Sequence[Mapping[str, object]]) -> None:
        append(self._path, "".join(json.dumps(row) + "\n" for row in rows).encode())


def count_passes(
    numbers: Sequence[int],
    trial: SolveTrial,
    *,
    engine: Engine,
    environment: Environment,
    grade: Grader,
) -> dict[int, int | None]:
    """Ask each question `pass_k` times in one batch, and count the answers that pass.

    An answer passes if it is right, regardless of what its length costs.
    """
    questions = {number: environment.prompt(number) for number in numbers}
    prompts = {
        number: tuple(encode_prompt(engine.tokenizer, question.text, system=question.system, format=trial.format))
        for number, question in questions.items()
    }
    asked = [number for number in numbers if len(prompts[number]) <= trial.max_prompt_tokens]
    requests = [
        GenerationRequest(
            prompt=prompts[number],
            seed=compute_trial_seed("filter", trial.seed, number, i),
            max_tokens=trial.max_completion_tokens,
        )
        for number in asked
        for i in range(trial.pass_k)
    ]
    completions = engine.generate(requests, temperature=trial.temperature) if requests else []
    passes: dict[int, int | None] = dict.fromkeys(numbers)
    for i, number in enumerate(asked):
        answers = completions[i * trial.pass_k : (i + 1) * trial.pass_k]
        replies = [
            questions[number].build_reply(
                decode_completion(engine.tokenizer, answer.tokens, engine.end_tokens),
                finished=answer.finished,
                tokens=len(answer.tokens),
            )
            for answer in answers
        ]
        passes[number] = sum(graded.parts["task"] > 0.5 for graded in grade(replies))
    return passes


def list_turns(count: int, done: Collection[int], size: int) -> Iterator[list[int]]:
    """Yield those of the first `count` questions that are not done, in batches of `size`."""
    missing = [number for number in range(count) if number not in done]
    return (missing[start : start + size] for start in range(0, len(missing), size))


def choose_kept(passes: Passes, *, count: int, pass_k: int, low: float, high: float) -> list[int]:
    """Return those of the first `count` questions whose share of right answers is in [low, high], ascending."""
    shares = ((number, passes.get(number)) for number in range(count))
    return [number for number, right in shares if right is not None and low <= right / pass_k <= high]
