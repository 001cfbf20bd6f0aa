"""Everything that the trainer's cycles are given.

Light to import: what computes is named for type checkers only.
"""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from covey.environments.base import Environment
from covey.network.entry import Network
from trainer.config import TrainerConfig
from trainer.progress import TrainingProgress

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from trainer.algorithm.learner import Learner
    from trainer.algorithm.logprobs import Recomputer
    from trainer.checkpoints.checkpoint import Checkpoints, StepFolders
    from trainer.data.regrading import Regrader
    from trainer.monitoring.evaluation import Background
    from trainer.monitoring.metrics import TrainingMetrics
    from trainer.publisher import Publisher


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
