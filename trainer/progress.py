"""Where the trainer's cycles stand; everything in it can be found again, from checkpoint and chain or by asking."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from covey.protocol.ids import Hash, Step, TaskId

if TYPE_CHECKING:
    from trainer.data.samples import AcceptedWork


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
