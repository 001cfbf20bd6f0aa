"""The offline filter (INTELLECT-2, section 3): how often a smaller model answers each question of a pool.

Called by `covey tasks filter`.  Question n is the environment's prompt of draw n.  Results are appended turn by turn,
so a filter that was stopped goes on where it was.
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
"""By question: how many answers were right; None for a prompt that is too long for the pool."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SolveTrial:
    """What results hold for.  Example: Trial(kind="reasoning_gym", options={...}, model="...", pass_k=8, ...)."""

    kind: str
    options: Mapping[str, JsonValue]
    model: str
    engine: str
    dtype: str
    pass_k: int
    """Answers to each question."""
    seed: int
    temperature: float
    max_prompt_tokens: int
    max_completion_tokens: int
    format: PromptFormat = RAW
    """How questions become prompts, by the template of `model`."""

    @property
    def spec(self) -> EnvironmentSpec:
        return EnvironmentSpec(kind=self.kind, options=self.options)


class Results:
    """A file of JSON lines: the trial first, then {"number": 5, "passes": 3} for each question.

    Raises OperatorError("another_filter") for a file of another trial, "bad_results" for anything else.
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
        """Write what was found before anything else is asked for."""
        self._append([{"number": number, "passes": passes} for number, passes in found.items()])
        self.passes |= found

    def _read(self, lines: Sequence[bytes], trial: SolveTrial) -> None:
        try:
            head, *rows = map(json.loads, lines)
            self.passes = {row["number"]: row["passes"] for row in rows}
        except (ValueError, KeyError, TypeError) as error:
            raise OperatorError(
                "bad_results", f"{self._path} holds no results of a filter", fix="Name another file with --out"
            ) from error
        if head != json.loads(json.dumps(asdict(trial))):
            raise OperatorError(
                "another_filter",
                f"{self._path} holds results of another model, environment or setting",
                fix="Name another file with --out, or repeat the first command",
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
    """Ask each question `pass_k` times in one batch; an answer passes if it is right, whatever its length cost."""
    questions = {number: environment.prompt(number) for number in numbers}
    prompts = {
        number: tuple(encode_prompt(engine.tokenizer, each.text, system=each.system, format=trial.format))
        for number, each in questions.items()
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
    found: dict[int, int | None] = dict.fromkeys(numbers)
    for place, number in enumerate(asked):
        answers = completions[place * trial.pass_k : (place + 1) * trial.pass_k]
        replies = [
            questions[number].build_reply(
                decode_completion(engine.tokenizer, answer.tokens, engine.end_tokens),
                finished=answer.finished,
                tokens=len(answer.tokens),
            )
            for answer in answers
        ]
        found[number] = sum(graded.parts["task"] > 0.5 for graded in grade(replies))
    return found


def list_turns(count: int, done: Collection[int], size: int) -> Iterator[list[int]]:
    """The first `count` questions that are not done, `size` at a time."""
    missing = [number for number in range(count) if number not in done]
    return (missing[start : start + size] for start in range(0, len(missing), size))


def choose_kept(passes: Passes, *, count: int, pass_k: int, low: float, high: float) -> list[int]:
    """Of the first `count` questions those whose share of right answers lies in [low, high], ascending."""
    shares = ((number, passes.get(number)) for number in range(count))
    return [number for number, found in shares if found is not None and low <= found / pass_k <= high]
