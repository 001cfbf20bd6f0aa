"""Everything that the validator's cycles are given."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from covey.chain.json_rpc import Call
from covey.chain.outbox import Intent
from covey.chain.sender import Sender
from covey.chain.sqlite_outbox import SqliteOutbox
from covey.network.entry import Network
from validator.checks import CheckTools
from validator.config import ValidatorConfig
from validator.evidence_bundle import JudgingEnvironment
from validator.held_turns import HeldTurns
from validator.pending_reveals import PendingReveals


@dataclass(slots=True)
class Loaded:
    """Which policy the engine was given last: a reorganisation may give a version another one."""

    folder: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Everything that the validator's loops are given."""

    config: ValidatorConfig
    network: Network
    tools: CheckTools
    venue: JudgingEnvironment
    pending: PendingReveals
    outbox: SqliteOutbox
    sender: Sender
    stop: asyncio.Event
    clock: Callable[[], float] = time.time
    loaded: Loaded = field(default_factory=Loaded)
    turns: HeldTurns

    def send(self, key: str, call: Call) -> None:
        """Write an intent; the enforcement's pump sends it.  The same key again changes nothing."""
        if self.outbox.find(key) is None:
            self.outbox.put(Intent(key=key, call=call))
