"""Measures how many completion tokens per second a machine generates, proves and grades for a pool.

The work is that of real tasks: the newest policy, the pool's prompts, lengths and proofs. It takes no lease and
submits nothing, so neither a registration nor a stake is needed.
"""

import asyncio
import itertools
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from covey.chain.structs import PoolTerms
from covey.engines.factory import run_in_lane
from covey.environments.grader import GradingPool
from covey.errors import OperatorError, TransientError
from covey.network.entry import Network, join
from covey.protocol.api.worker import TaskOrder
from covey.protocol.ids import LeaseId, Step, TaskId
from covey.protocol.params import PoolParams
from covey.rollouts import Draft, build_rollouts, grade_drafts
from covey.runtime.cycle import keep_trying, or_stop, stop_signals
from worker import loop
from worker.app import build
from worker.config import WorkerConfig
from worker.context import Context

LONGEST_SECONDS = 1800.0
"""Deadline in seconds for the whole generation, from the first task on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Speed of a machine at the work of a pool."""

    tokens_per_second: float
    tasks: int
    """Number of tasks that were generated."""
    seconds: float
    """Length of the window over which the speed is the mean."""
    policy: Step
    """Version of the policy that generated."""
    terms: PoolTerms
    params: PoolParams


@dataclass(frozen=True, slots=True, kw_only=True)
class DoneTask:
    """A generated task. Times are in seconds of one monotonic clock."""

    begun: float
    ended: float
    tokens: int


def compute_speed(tasks: Iterable[DoneTask], *, since: float, until: float) -> float:
    """Return the completion tokens per second in a window.

    A task that is partly in the window counts in proportion, so that the result does not depend on where tasks end.
    """
    inside = (
        task.tokens
        * max(0.0, min(task.ended, until) - max(task.begun, since))
        / max(task.ended - task.begun, math.ulp(task.ended))
        for task in tasks
    )
    return sum(inside) / (until - since)


def measure(config: WorkerConfig, seconds: float) -> Speed:
    """Generate tasks of the pool for about `seconds` after the first one, and return the speed.

    The first task warms the engine up and is not counted. Raises OperatorError("no_policy") if the pool has published
    none, OperatorError("stopped") after a stop signal, TransientError("too_slow") after LONGEST_SECONDS, and the errors
    of `join` and `build`.
    """
    found: list[Speed] = []
    run_in_lane(
        config.vllm,
        lambda vllm: found.append(asyncio.run(_measure(config.model_copy(update={"vllm": vllm}), seconds))),
    )
    return found[0]


async def _measure(config: WorkerConfig, seconds: float) -> Speed:
    stop = asyncio.Event()
    with stop_signals(stop):
        network = await keep_trying(lambda: join(config), stop)
        if network is None:
            raise _build_stopped()
        try:
            environment = await asyncio.to_thread(network.load_environment)
            with GradingPool(network.environment, environment, network.params.grading, config) as grade:
                ctx = await asyncio.to_thread(
                    build,
                    config,
                    network,
                    contributor=network.wallet.address,
                    environment=environment,
                    grade=grade,
                    stop=stop,
                )
                try:
                    trial = await run_trial(ctx, seconds)
                finally:
                    await asyncio.to_thread(ctx.engine.close)
                    ctx.engine_threads.shutdown()
        finally:
            await network.close()
    return Speed(
        tokens_per_second=compute_speed(trial.done, since=trial.window, until=trial.window + seconds),
        tasks=len(trial.done),
        seconds=seconds,
        policy=trial.order.policy_version,
        terms=network.terms,
        params=network.params,
    )


async def run_trial(ctx: Context, seconds: float) -> "Trial":
    """Work on tasks of the newest policy until `seconds` after the first one was finished. See `measure`."""
    order = await asyncio.to_thread(_build_order, ctx.network)
    if not await or_stop(ctx.stop, _load(ctx, order)):
        raise _build_stopped()
    trial = Trial(ctx=ctx, order=order, seconds=seconds)
    try:
        async with asyncio.timeout(LONGEST_SECONDS):
            if not await or_stop(ctx.stop, trial.run()):
                raise _build_stopped()
    except TimeoutError as error:
        raise TransientError(
            "too_slow", f"{len(trial.done)} tasks were generated in {LONGEST_SECONDS:.0f} s, which is too few"
        ) from error
    return trial


async def _load(ctx: Context, order: TaskOrder) -> bool:
    await loop.load_policy(ctx, order.policy_version, order.record_hash)
    return True


def _build_order(network: Network) -> TaskOrder:
    """Return an order for a full task of the newest policy."""
    steps = network.contracts.policies.steps_of(network.pool)
    if steps == 0:
        raise OperatorError(
            "no_policy",
            f"pool {network.pool} has not published a policy yet, so there is nothing to generate with",
            fix="Try again once its trainer has published one, or give --tokens-per-second",
        )
    newest = Step(steps - 1)
    return TaskOrder(
        task=TaskId(0),
        lease=LeaseId(0),
        policy_version=newest,
        record_hash=network.policies.get_record_hash(newest),
        groups=network.params.groups_per_task,
        deadline=0.0,
    )


@dataclass(kw_only=True)
class Trial:
    """Keeps as many tasks in the engine as the worker would, and proves and grades one at a time alongside."""

    ctx: Context
    order: TaskOrder
    seconds: float
    clock: Callable[[], float] = time.monotonic
    numbers: Iterable[int] = field(default_factory=itertools.count)
    finishing: asyncio.Lock = field(default_factory=asyncio.Lock)
    done: list[DoneTask] = field(default_factory=list)
    """Tasks that the engine has finished, in that order."""

    @property
    def window(self) -> float:
        """Start of the window: the end of the task that was finished first."""
        return min(task.ended for task in self.done)

    @property
    def is_over(self) -> bool:
        return bool(self.done) and self.clock() >= self.window + self.seconds

    async def run(self) -> bool:
        async with asyncio.TaskGroup() as lanes:
            for _ in range(self.ctx.leases.together):
                lanes.create_task(self._generate())
        return True

    async def _generate(self) -> None:
        running = asyncio.get_running_loop()
        behind: asyncio.Task[None] | None = None
        for number in self.numbers:
            order = self.order.model_copy(update={"task": TaskId(number)})
            begun = self.clock()
            drafts = await running.run_in_executor(self.ctx.engine_threads, loop.roll_out, self.ctx, order)
            tokens = sum(len(draft.completion.tokens) for draft in drafts)
            self.done.append(DoneTask(begun=begun, ended=self.clock(), tokens=tokens))
            if behind is not None:  # a worker holds back too when its proofs and grades do not keep up
                await behind
            behind = asyncio.create_task(self._finish(drafts))
            if self.is_over:
                break
        if behind is not None:
            await behind

    async def _finish(self, drafts: list[Draft]) -> None:
        async with self.finishing:
            await asyncio.to_thread(_prove_and_grade, self.ctx, drafts)


def _prove_and_grade(ctx: Context, drafts: list[Draft]) -> None:
    build_rollouts(drafts, grade_drafts(drafts, ctx.grade), contract=ctx.contract)


def _build_stopped() -> OperatorError:
    return OperatorError("stopped", "the measurement was stopped", fix="Run the command again")
