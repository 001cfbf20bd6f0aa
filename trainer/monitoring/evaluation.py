"""Evaluates published policies on held-out prompts in the background, while training continues.

The sampling noise of each completion is the same at every step, so differences come only from the policy.
"""

import asyncio
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, stdev

from covey.engines.base import Engine, GenerationRequest
from covey.engines.process_memory import explain_memory
from covey.environments.base import Environment, Grader
from covey.errors import OperatorError, ProtocolError
from covey.model.prompts import PromptFormat, encode_prompt
from covey.model.text import decode_completion
from covey.protocol.ids import Step
from covey.protocol.seeding import compute_trial_seed
from covey.runtime.log import get_logger


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluationScore:
    """Result of one evaluation. Example: EvaluationScore(reward=0.61, standard_error=0.02)."""

    reward: float
    """Mean reward."""
    standard_error: float
    """Standard error of the mean reward, from the mean of each prompt. 0 for a single prompt."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluator:
    """Evaluates policies with `prompts` x `samples` completions on its own engine."""

    engine: Engine
    environment: Environment
    grade: Grader
    prompts: int
    samples: int
    seed: int
    max_tokens: int
    temperature: float
    format: PromptFormat

    @property
    def size(self) -> int:
        """Number of completions of one evaluation."""
        return self.prompts * self.samples

    def evaluate(self, folder: Path, step: Step) -> EvaluationScore:
        """Return the score of the policy in `folder`. Rewards are computed in the same way as by workers.

        Raises ProtocolError if the policy is lost or does not fit. Raises OperatorError if a different setting would
        help.
        """
        with explain_evaluation():
            return self._evaluate(folder, step)

    def _evaluate(self, folder: Path, step: Step) -> EvaluationScore:
        self.engine.load_policy(folder, step)
        prompts = self.environment.held_out(self.prompts)
        orders = [(i, j) for i in range(self.prompts) for j in range(self.samples)]
        tokens = [
            tuple(encode_prompt(self.engine.tokenizer, prompt.text, system=prompt.system, format=self.format))
            for prompt in prompts
        ]
        requests = [
            GenerationRequest(
                prompt=tokens[i], seed=compute_trial_seed("evaluation", self.seed, i, j), max_tokens=self.max_tokens
            )
            for i, j in orders
        ]
        completions = self.engine.generate(requests, temperature=self.temperature)
        replies = [
            prompts[i].build_reply(
                decode_completion(self.engine.tokenizer, completion.tokens, self.engine.end_tokens),
                finished=completion.finished,
                tokens=len(completion.tokens),
            )
            for (i, _), completion in zip(orders, completions, strict=True)
        ]
        return build_score([grade.reward for grade in self.grade(replies)], samples=self.samples)


def build_score(rewards: Sequence[float], *, samples: int) -> EvaluationScore:
    """Return the score of rewards that are ordered by prompt, with `samples` rewards per prompt.

    Completions of one prompt are not independent, so the standard error is that of the means of prompts.
    """
    means = [fmean(rewards[start : start + samples]) for start in range(0, len(rewards), samples)]
    error = stdev(means) / math.sqrt(len(means)) if len(means) > 1 else 0.0
    return EvaluationScore(reward=fmean(rewards), standard_error=error)


@contextmanager
def explain_evaluation() -> Iterator[None]:
    """Convert an OperatorError or a lack of memory in the context to an error that names the trainer's settings.

    The original advice names parameters of the pool or the engine, which a trainer cannot set.
    """
    try:
        yield
    except (OperatorError, RuntimeError, MemoryError) as error:
        cause = error if isinstance(error, OperatorError) else explain_memory(error, "the evaluation")
        if cause is None:
            raise
        raise OperatorError(
            cause.code,
            f"the evaluation failed: {cause.message.removesuffix(f'. {cause.fix}')}",
            fix="Lower eval.max_batch or eval.prompts, or disable evaluations with eval.every = 0",
        ) from error


@dataclass(slots=True, kw_only=True)
class Background:
    """Evaluations that run in sequence while the loop continues, oldest first, each once.

    If the policy of a step is lost, the step is logged and skipped, because no restart would restore the policy. Any
    other failure ends the process.
    """

    evaluate: Callable[[Step], None]
    """Blocking function that evaluates a step and reports the result. Runs in a thread."""
    on_failure: Callable[[], None]
    """Called after an evaluation has failed. `finish` then raises the error."""
    _ordered: set[Step] = field(default_factory=set)
    _waiting: list[Step] = field(default_factory=list)
    _task: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> Sequence[Step]:
        """Steps that are not evaluated yet. Their policies must be kept."""
        return tuple(self._waiting)

    def add(self, step: Step) -> None:
        """Queue the evaluation of `step`, unless it was queued before. After a failure nothing is queued."""
        if step in self._ordered or (self._task is not None and self._task.done() and self._waiting):
            return
        self._ordered.add(step)
        self._waiting.append(step)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())
            self._task.add_done_callback(self._report)

    async def finish(self) -> None:
        """Wait for all evaluations. Raises the error of a failed one."""
        if self._task is not None:
            await self._task

    async def stop(self) -> None:
        """Finish the current evaluation and drop the others."""
        del self._waiting[1:]
        await self.finish()

    async def _run(self) -> None:
        while self._waiting:
            step = self._waiting[0]
            try:
                await asyncio.to_thread(self.evaluate, step)
            except ProtocolError as error:
                get_logger().error("evaluation skipped", step=step, code=error.code, message=error.message)
            self._waiting.pop(0)

    def _report(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            get_logger().error("evaluation failed", step=self._waiting[0], without="eval.every = 0")
            self.on_failure()
