"""The offline filter (INTELLECT-2, section 3): counts how often a smaller model solves each task.

Task n is draw n of the environment. Results are appended batch by batch, so an interrupted filter resumes where it
stopped.
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
"""Number of correct completions by task. None for a prompt that is too long for the pool."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SolveTrial:
    """Settings that the results of a filter depend on.

    Example: SolveTrial(kind="reasoning_gym", options={...}, model="...", pass_k=8, ...).
    """

    kind: str
    options: Mapping[str, JsonValue]
    model: str
    engine: str
    dtype: str
    pass_k: int
    """Number of completions sampled per task."""
    seed: int
    temperature: float
    max_prompt_tokens: int
    max_completion_tokens: int
    format: PromptFormat = RAW
    """Prompt format, for example "chat", which uses the chat template of `model`."""

    @property
    def spec(self) -> EnvironmentSpec:
        return EnvironmentSpec(kind=self.kind, options=self.options)


class Results:
    """A file of JSON lines: the trial first, then {"number": 5, "passes": 3} for each task.

    Raises OperatorError("another_filter") for the file of a different trial, and OperatorError("bad_results") for a
    file with other content.
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
        """Append results, before the next batch is sampled."""
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
    """Sample `pass_k` completions for each prompt in one batch, and count the correct ones.

    A completion passes if its answer is correct, whatever its length costs.
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
    """Yield the unfinished tasks among the first `count` in batches of `size`."""
    missing = [number for number in range(count) if number not in done]
    return (missing[start : start + size] for start in range(0, len(missing), size))


def choose_kept(passes: Passes, *, count: int, pass_k: int, low: float, high: float) -> list[int]:
    """Return the tasks among the first `count` whose share of correct completions is in [low, high], ascending."""
    shares = ((number, passes.get(number)) for number in range(count))
    return [number for number, right in shares if right is not None and low <= right / pass_k <= high]
