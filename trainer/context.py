"""Everything that the trainer's cycles are given, and how far they are.

Light to import: what computes is named for type checkers only.
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
    """A policy that the origin has.  Times are of `Context.timer`."""

    manifest_hash: Hash
    seconds: float
    """Of cutting it into shards."""
    at: float


@dataclass(slots=True, kw_only=True)
class TrainingProgress:
    """Shared by both cycles, each of which writes its own part."""

    step: Step
    """The policy that the masters stand for."""
    waiting_since: float
    """When the step before was on disk."""
    unpublished: Step
    """The oldest policy that this process has not seen on chain, so at first the newest there; above `step` when there
    is none."""
    offered: Offered | None = None
    """Of that policy."""
    fetched: "dict[TaskId, AcceptedWork | None]" = field(default_factory=dict)
    """Of the next batch; None for what is left out."""
    fruitless: int = 0
    """Orders for it, one after the other, of which no file was new."""
    unreadable: set[Step] = field(default_factory=set)
    """Kept policies that are damaged: what nobody replayed of their work is left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Everything that the trainer's loop is given."""

    config: TrainerConfig
    network: Network
    tokenizer: "PreTrainedTokenizerBase"
    learner: "Learner"
    recomputer: "Recomputer | None"
    """None where no setting asks for another policy's log-probabilities."""
    checkpoints: "Checkpoints"
    exports: "StepFolders"
    environment: Environment
    publisher: "Publisher"
    chain_thread: ThreadPoolExecutor
    """One thread, the only one that uses the publisher."""
    background: "Background"
    metrics: "TrainingMetrics"
    decode: Callable[[bytes], bytes]
    regrader: "Regrader"
    progress: TrainingProgress
    stop: asyncio.Event
    clock: Callable[[], float] = time.time
    timer: Callable[[], float] = time.monotonic
