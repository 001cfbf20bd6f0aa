"""Reward of published policies on held-out prompts, in the background: training neither waits for it nor feels it.

Called by `loop`.  The noise of each completion is the same at every step, so that differences are the policy's.
"""

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from covey.engines.base import Engine, Request
from covey.environments.base import Environment
from covey.model.text import decode_completion, encode_prompt
from covey.protocol.ids import Step


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluator:
    """`prompts` x `samples` completions on an engine of its own."""

    engine: Engine
    environment: Environment
    prompts: int
    samples: int
    seed: int
    max_tokens: int
    temperature: float

    @property
    def size(self) -> int:
        return self.prompts * self.samples

    def evaluate(self, folder: Path, step: Step) -> float:
        """Mean reward of the policy in `folder`, computed as workers compute."""
        self.engine.load_policy(folder, step)
        prompts = self.environment.held_out(self.prompts)
        orders = [(i, j) for i in range(self.prompts) for j in range(self.samples)]
        tokens = [tuple(encode_prompt(self.engine.tokenizer, prompt.text)) for prompt in prompts]
        requests = [
            Request(prompt=tokens[i], seed=compute_seed(self.seed, i, j), max_tokens=self.max_tokens) for i, j in orders
        ]
        completions = self.engine.generate(requests, temperature=self.temperature)
        rewards = [
            self.environment.reward(
                prompts[i],
                decode_completion(self.engine.tokenizer, completion.tokens),
                finished=completion.finished,
                completion_tokens=len(completion.tokens),
            )
            for (i, _), completion in zip(orders, completions, strict=True)
        ]
        return sum(rewards) / len(rewards)


def compute_seed(seed: int, prompt: int, sample: int) -> int:
    """63 bits that depend on the prompt's index and the sample, not on the step."""
    digest = hashlib.sha256(f"covey.evaluation/{seed}/{prompt}/{sample}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


@dataclass(slots=True, kw_only=True)
class Background:
    """Evaluations one after another beside the loop, oldest first."""

    evaluate: Callable[[Step], None]
    """Blocking; runs in a thread and reports by itself."""
    on_failure: Callable[[], None]
    """Called when one raised: `finish` raises the same."""
    _waiting: list[Step] = field(default_factory=list)
    _task: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> Sequence[Step]:
        """Steps whose policy must be kept."""
        return tuple(self._waiting)

    def add(self, step: Step) -> None:
        """Evaluate `step` when those before it are done."""
        if step in self._waiting:
            return
        self._waiting.append(step)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())
            self._task.add_done_callback(self._report)

    async def finish(self) -> None:
        """Wait for all; raise what one raised."""
        if self._task is not None:
            await self._task

    async def stop(self) -> None:
        """Finish the one under way and forget the others."""
        del self._waiting[1:]
        await self.finish()

    async def _run(self) -> None:
        while self._waiting:
            await asyncio.to_thread(self.evaluate, self._waiting[0])
            self._waiting.pop(0)

    def _report(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            self.on_failure()
