"""The context that the trainer's cycles share, and their progress.

Its imports are light: the components that compute are imported only for type checkers.
"""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from covey.environments.base import Environment
from covey.network.entry import Network
from covey.protocol.ids import Hash, Step, TaskId
from trainer.config import TrainerConfig

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from trainer.algorithm.learner import Learner
    from trainer.algorithm.logprobs import Recomputer
    from trainer.checkpoints.checkpoint import Checkpoints, StepFolders
    from trainer.data.regrading import Regrader
    from trainer.data.samples import AcceptedWork
    from trainer.monitoring.evaluation import Background
    from trainer.monitoring.metrics import TrainingMetrics
    from trainer.publisher import Publisher


@dataclass(frozen=True, slots=True, kw_only=True)
class Offered:
    """A policy that was written to the origin. Times are on `Context.timer`."""

    record_hash: Hash
    seconds: float
    """Seconds that writing the policy to the origin took, including its delta."""
    at: float
    """Time when it was complete in the origin."""


@dataclass(slots=True, kw_only=True)
class TrainingProgress:
    """Progress that both cycles share. Each cycle writes its own fields."""

    step: Step
    """Step of the policy that the master weights represent."""
    waiting_since: float
    """Time on `Context.timer` when the previous step was saved to disk."""
    unpublished: Step
    """Step of the oldest policy that this process has not seen on chain. Larger than `step` if all are on chain.

    At the start it is the newest policy on chain if that policy is kept here, because this process has not seen it on
    chain yet.
    """
    offered: Offered | None = None
    """The unpublished policy in the origin. None if it is not there yet."""
    jump: asyncio.Task[None] | None = None
    """Addition of the delta from the last anchor to the newest published policy. None if none is awaited."""
    fetched: "dict[TaskId, AcceptedWork | None]" = field(default_factory=dict)
    """Work of the next batch by task. None marks a skipped submission."""
    fruitless: int = 0
    """Number of consecutive requests for the next batch that brought no new file."""
    reported: Step | None = None
    """Step of the newest report to the coordinator whether the run can learn. None: this process has sent none."""
    unreadable: set[Step] = field(default_factory=set)
    """Steps of kept policies that are damaged. Their work is skipped unless it was replayed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Settings, connections and state that the trainer's cycles share."""

    config: TrainerConfig
    network: Network
    tokenizer: "PreTrainedTokenizerBase"
    learner: "Learner"
    recomputer: "Recomputer | None"
    """Scratch model for log-probabilities under other policies. None if no setting requires them."""
    checkpoints: "Checkpoints"
    exports: "StepFolders"
    environment: Environment
    publisher: "Publisher"
    chain_thread: ThreadPoolExecutor
    """Executor with one thread, which alone uses the publisher except for its jumps."""
    background: "Background"
    metrics: "TrainingMetrics"
    decode: Callable[[bytes], bytes]
    regrader: "Regrader"
    progress: TrainingProgress
    stop: asyncio.Event
    clock: Callable[[], float] = time.time
    timer: Callable[[], float] = time.monotonic
