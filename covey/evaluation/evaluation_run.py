"""Samples and grades the completions of one model, and appends them to the log.

Main names: `EvaluationRun`, `Graders`. The noise of a completion follows from the seed, the question and the number of
the completion, so it depends neither on the batch nor on an interruption. Completions are generated in turns of fixed
content. An interrupted turn is generated again as a whole, so even its rounding is the same. A turn is graded while the
next one is generated.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Self, cast

from covey.engines.base import Engine, GenerationRequest
from covey.environments.answer_extraction import THINK_TAGS, strip_thinking
from covey.environments.base import Environment, EnvironmentSpec, Grade, Reply
from covey.environments.grader import GradingPool
from covey.environments.registry import load
from covey.evaluation.evaluation_config import SamplingChoice
from covey.evaluation.exam_replies import read_exam_reply
from covey.evaluation.question_file import AskedQuestion, QuestionFile
from covey.evaluation.sample_log import SampleKey, SampleLog, SampleRecord
from covey.model.prompts import PromptFormat, encode_prompt
from covey.model.text import Tokenizer, decode_completion
from covey.protocol.params import GradingParams
from covey.protocol.seeding import compute_trial_seed
from covey.runtime.settings import SandboxSettings

PROMPT_TOO_LONG = "prompt_too_long"
"""Limit of a question whose prompt leaves no room for a completion in the model's context."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CompletionText:
    """A completion as text."""

    text: str
    tokens: int
    """Length in tokens, including the end token. 0 if nothing was generated."""
    finished: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Judged:
    """What a completion earned."""

    answered: bool
    score: float
    limit: str = ""
    confidence: float | None = None


class Graders:
    """Grades completions with the environments of their questions, in processes that may die.

    Example: `with Graders(questions, GradingParams(), SandboxSettings()) as graders: ...`.
    """

    def __init__(self, questions: QuestionFile, limits: GradingParams, settings: SandboxSettings) -> None:
        """Build the environments. Raises OperatorError("unisolated_programs") as `GradingPool` does."""
        self._is_exam = questions.layout == "hle"
        self._specs = questions.specs
        self._environments: list[Environment] = []
        self._pools: list[GradingPool] = []
        with ExitStack() as stack:
            for spec in questions.specs:
                environment = load(spec, interpreters=settings.list_interpreters())
                self._environments.append(environment)
                self._pools.append(stack.enter_context(GradingPool(spec, environment, limits, settings)))
            self._stack = stack.pop_all()

    @property
    def unopened_tags(self) -> frozenset[str]:
        """Thinking tags that the model's chat template must not open in a prompt."""
        return frozenset[str]().union(*(environment.unopened_tags for environment in self._environments))

    @property
    def versions(self) -> Mapping[str, str]:
        """Versions of everything that questions and grades depend on, by name."""
        return {name: version for environment in self._environments for name, version in environment.versions.items()}

    def judge(self, questions: Sequence[AskedQuestion], readings: Sequence[CompletionText]) -> list[Judged]:
        """Grade completions, one per question, in their order."""
        judged: list[Judged | None] = [None] * len(questions)
        for part, (environment, pool) in enumerate(zip(self._environments, self._pools, strict=True)):
            places = [i for i, question in enumerate(questions) if question.part == part]
            replies, confidences = [], []
            for i in places:
                text, confidence = self._read(readings[i].text, self._specs[part])
                replies.append(
                    questions[i].prompt.build_reply(text, finished=readings[i].finished, tokens=readings[i].tokens)
                )
                confidences.append(confidence)
            for i, reply, grade, confidence in zip(places, replies, pool(replies), confidences, strict=True):
                judged[i] = _judge(environment, reply, grade, confidence)
        return cast(list[Judged], judged)

    def close(self) -> None:
        """End the grading processes."""
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(self, text: str, spec: EnvironmentSpec) -> tuple[str, float | None]:
        """Return the text to grade and the stated confidence. Only replies of the exam state one."""
        if not self._is_exam:
            return text, None
        opening, closing = cast(tuple[str, str], spec.options.get("thinking_tags", THINK_TAGS))
        is_required = bool(spec.options.get("thinking_required"))
        answer = strip_thinking(text, tags=(opening, closing), required=is_required)
        stated = read_exam_reply(answer or "")
        # The environment removes a thinking part again, and may require its closing tag.
        return (closing if is_required else "") + (stated.answer or ""), stated.confidence


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluationRun:
    """One model's part of an evaluation. Example: `EvaluationRun(...).fill(lambda count: None)`."""

    log: SampleLog
    questions: QuestionFile
    graders: Graders
    engine: Engine
    model: int
    """Index of the model in the log."""
    prompts: Sequence[tuple[int, ...]]
    """Tokens of the questions' prompts."""
    sampling: SamplingChoice
    context: int | None
    """Maximum number of tokens of a prompt and its completion. None if the model has no limit."""
    turn: int
    """Number of completions that are generated in one call of the engine."""

    def fill(self, advance: Callable[[int], None]) -> None:
        """Generate, grade and append what the log lacks. `advance` is called with the number of new completions."""
        with ThreadPoolExecutor(1, thread_name_prefix="grading") as thread:
            pending: Future[None] | None = None
            for keys in self._list_turns():
                readings = self._generate(keys)
                if pending is not None:
                    pending.result()
                pending = thread.submit(self._record, keys, readings, advance)
            if pending is not None:
                pending.result()

    def _list_turns(self) -> Iterator[list[SampleKey]]:
        """Yield the turns of which a completion is missing."""
        keys = list_keys(self.model, len(self.questions), self.sampling.samples)
        for start in range(0, len(keys), self.turn):
            turn = keys[start : start + self.turn]
            if self.log.list_missing(turn):
                yield turn

    def _generate(self, keys: Sequence[SampleKey]) -> list[CompletionText]:
        requests = {
            key: GenerationRequest(
                prompt=self.prompts[key[1]],
                seed=compute_trial_seed("eval", self.sampling.seed, key[1], key[2]),
                max_tokens=room,
            )
            for key in keys
            if (room := self._count_room(self.prompts[key[1]])) > 0
        }
        completions = self.engine.generate([*requests.values()], temperature=self.sampling.temperature)
        readings = {
            key: CompletionText(
                text=decode_completion(self.engine.tokenizer, completion.tokens, self.engine.end_tokens),
                tokens=len(completion.tokens),
                finished=completion.finished,
            )
            for key, completion in zip(requests, completions, strict=True)
        }
        return [readings.get(key, CompletionText(text="", tokens=0, finished=False)) for key in keys]

    def _record(
        self, keys: Sequence[SampleKey], readings: Sequence[CompletionText], advance: Callable[[int], None]
    ) -> None:
        wanted = set(self.log.list_missing(keys))
        rows = [(key, reading) for key, reading in zip(keys, readings, strict=True) if key in wanted]
        asked = {number: self.questions.read(number) for number in {key[1] for key, _ in rows}}
        judged = self.graders.judge([asked[key[1]] for key, _ in rows], [reading for _, reading in rows])
        records = [
            SampleRecord(
                model=key[0],
                question=key[1],
                sample=key[2],
                tokens=reading.tokens,
                finished=reading.finished,
                answered=found.answered,
                score=found.score,
                limit=found.limit if reading.tokens else PROMPT_TOO_LONG,
                confidence=found.confidence,
            )
            for (key, reading), found in zip(rows, judged, strict=True)
        ]
        self.log.append(zip(records, (reading.text for _, reading in rows), strict=True))
        advance(len(records))

    def _count_room(self, prompt: tuple[int, ...]) -> int:
        """Return the maximum number of tokens of a completion, at most 0 if the prompt fills the context."""
        limit = self.sampling.max_tokens
        return limit if self.context is None else min(limit, self.context - len(prompt))


def list_keys(model: int, questions: int, samples: int) -> list[SampleKey]:
    """Return the keys of all completions of one model, in the order in which they are generated."""
    return [(model, question, sample) for question in range(questions) for sample in range(samples)]


def encode_questions(questions: QuestionFile, tokenizer: Tokenizer, format: PromptFormat) -> list[tuple[int, ...]]:
    """Return the tokens of all prompts. Raises the errors of `encode_prompt`."""
    prompts = (questions.read(index).prompt for index in range(len(questions)))
    return [tuple(encode_prompt(tokenizer, prompt.text, system=prompt.system, format=format)) for prompt in prompts]


def _judge(environment: Environment, reply: Reply, grade: Grade, confidence: float | None) -> Judged:
    return Judged(
        answered=environment.has_answer(reply),
        score=float(grade.parts["task"]),
        limit=grade.limit,
        confidence=confidence,
    )
