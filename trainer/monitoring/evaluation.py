"""Rewards of published policies on held-out prompts, measured in the background while training continues.

The sampling noise of each completion is the same at every step, so that differences come from the policy alone.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

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
class Evaluator:
    """An evaluation of `prompts` x `samples` completions on its own engine."""

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

    def evaluate(self, folder: Path, step: Step) -> float:
        """Return the mean reward of the policy in `folder`, computed as workers compute it.

        Raises ProtocolError if the policy is lost or does not fit, and OperatorError if another setting would help.
        """
        with explain_evaluation():
            return self._evaluate(folder, step)

    def _evaluate(self, folder: Path, step: Step) -> float:
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
        return sum(grade.reward for grade in self.grade(replies)) / len(replies)


@contextmanager
def explain_evaluation() -> Iterator[None]:
    """Make an OperatorError or a lack of memory raised within name the trainer's settings that help.

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
            fix="Lower evaluation_batch or evaluation_prompts, or disable evaluations with evaluation_every = 0",
        ) from error


@dataclass(slots=True, kw_only=True)
class Background:
    """Evaluations that run one after another concurrently with the loop, oldest first, each once.

    A step whose policy is lost is logged and skipped, because no restart would bring it back. Any other failure ends
    the process.
    """

    evaluate: Callable[[Step], None]
    """Blocking function that evaluates a step and reports the result. It runs in a thread."""
    on_failure: Callable[[], None]
    """Function that is called when an evaluation raised. `finish` then raises the same error."""
    _ordered: set[Step] = field(default_factory=set)
    _waiting: list[Step] = field(default_factory=list)
    _task: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> Sequence[Step]:
        """Steps that are not evaluated yet, whose policies must be kept."""
        return tuple(self._waiting)

    def add(self, step: Step) -> None:
        """Evaluate `step` after the steps before it, unless it was added before. After a failure nothing is added."""
        if step in self._ordered or (self._task is not None and self._task.done() and self._waiting):
            return
        self._ordered.add(step)
        self._waiting.append(step)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())
            self._task.add_done_callback(self._report)

    async def finish(self) -> None:
        """Wait for all evaluations. Raises the error of one that failed."""
        if self._task is not None:
            await self._task

    async def stop(self) -> None:
        """Finish the current evaluation and forget the others."""
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
            get_logger().error("evaluation failed", step=self._waiting[0], without="evaluation_every = 0")
            self.on_failure()
