"""What learning shares with the rest of a trainer, and its progress.

`LearningContext` is enough to learn. `Context` adds the pool of a trainer, and `covey.standalone` the generator of a
run on one machine. The imports are light: the components that compute are imported only for type checkers.
"""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from covey.network.entry import Network
from covey.protocol.ids import Hash, Step, TaskId
from covey.protocol.params import TrainingParams
from trainer.config import LearningSettings, TrainerConfig

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from covey.shardcast.export_preview import PreviewWriter
    from trainer.algorithm.learner import Learner
    from trainer.algorithm.logprobs import Recomputer
    from trainer.checkpoints.checkpoint import Checkpoints, StepFolders
    from trainer.checkpoints.journal import StepJournal
    from trainer.checkpoints.saver import Saver
    from trainer.data.regrading import Regrader
    from trainer.data.samples import AcceptedWork
    from trainer.monitoring.evaluation import Background
    from trainer.monitoring.metrics import TrainingMetrics
    from trainer.publisher import Publisher


@dataclass(frozen=True, slots=True, kw_only=True)
class Offered:
    """A policy that was written to the origin. Times are on `LearningContext.timer`."""

    record_hash: Hash
    seconds: float
    """Seconds that writing the policy to the origin took, including its delta."""
    at: float
    """Time when it was complete in the origin."""


@dataclass(slots=True, kw_only=True)
class LearningProgress:
    """Progress of learning."""

    step: Step
    """Step of the policy that the master weights represent."""
    written: Step
    """Step of the newest policy that is on disk with its checkpoint, or with the batches since the newest checkpoint.
    Only such policies are published or evaluated.
    """
    waiting_since: float
    """Time on `LearningContext.timer` when the previous step ended."""
    considered: int = -1
    """Newest step of which `evaluate` has seen whether it is due. Later policies are kept for it. -1: none."""
    unreadable: set[Step] = field(default_factory=set)
    """Steps of kept policies that are damaged. Their work is skipped unless it was replayed."""


@dataclass(slots=True, kw_only=True)
class TrainingProgress(LearningProgress):
    """Progress that both cycles of a pool's trainer share. Each cycle writes its own fields."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningContext:
    """Settings, components and state of learning."""

    config: LearningSettings
    params: TrainingParams
    tokenizer: "PreTrainedTokenizerBase"
    learner: "Learner"
    recomputer: "Recomputer | None"
    """Scratch model for log-probabilities under other policies. None if no setting requires them."""
    checkpoints: "Checkpoints"
    journal: "StepJournal"
    exports: "StepFolders"
    saver: "Saver"
    background: "Background"
    metrics: "TrainingMetrics"
    progress: LearningProgress
    stop: asyncio.Event
    clock: Callable[[], float] = time.time
    timer: Callable[[], float] = time.monotonic

    @property
    def waits_for_writes(self) -> bool:
        """Whether a step ends only when its policy and checkpoint are written."""
        return not self.learner.is_saved_apart

    def note_export(self, version: Step, folder: Path) -> None:
        """Receive the folder of a policy that was just written and hashed."""

    def open_preview(self, version: Step, weights: Path) -> "PreviewWriter | None":
        """Begin to serve the weights of a policy while they are written. None if nobody waits for them."""
        return None

    def requires(self, version: Step) -> bool:
        """Return whether the settings keep the export of a policy, or something outside learning requires it."""
        every = self.config.ckpt.keep_policies_every
        return every > 0 and version % every == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Context(LearningContext):
    """Settings, connections and state that the cycles of a pool's trainer share."""

    config: TrainerConfig
    network: Network
    publisher: "Publisher"
    chain_thread: ThreadPoolExecutor
    """Executor with one thread, which alone uses the publisher except for its jumps."""
    decode: Callable[[bytes], bytes]
    regrader: "Regrader"
    progress: TrainingProgress

    def note_export(self, version: Step, folder: Path) -> None:
        """Remember the hashes of an export, which is then published without reading it again."""
        self.publisher.checks.record(folder)

    def open_preview(self, version: Step, weights: Path) -> "PreviewWriter | None":
        """Let relays and clients without a policy fetch what is already written of an anchor."""
        return self.publisher.open_preview(version, weights)

    def requires(self, version: Step) -> bool:
        """Return whether the settings keep a policy, or it still has to be published or compared with the chain."""
        return version >= self.progress.unpublished - 1 or LearningContext.requires(self, version)
