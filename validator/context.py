"""The context that every cycle of the validator receives."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from covey.chain.json_rpc import Call
from covey.chain.outbox import Intent
from covey.chain.sender import Sender
from covey.chain.sqlite_outbox import SqliteOutbox
from covey.network.entry import Network
from covey.network.policy_loader import PolicyLoader
from validator.checks import CheckTools
from validator.config import ValidatorConfig
from validator.evidence_bundle import JudgingEnvironment
from validator.held_turns import HeldTurns
from validator.kept_epochs import KeptEpochs
from validator.own_verdicts import OwnVerdicts
from validator.pending_reveals import PendingReveals


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Settings, connections and state that the validator's cycles share."""

    config: ValidatorConfig
    network: Network
    tools: CheckTools
    venue: JudgingEnvironment
    pending: PendingReveals
    verdicts: OwnVerdicts
    epochs: KeptEpochs
    outbox: SqliteOutbox
    sender: Sender
    stop: asyncio.Event
    clock: Callable[[], float] = time.time
    loader: PolicyLoader
    turns: HeldTurns

    def send(self, key: str, call: Call) -> None:
        """Write an intent to the outbox, from which the enforcement cycle sends it.

        A key that already exists has no effect.
        """
        if self.outbox.find(key) is None:
            self.outbox.put(Intent(key=key, call=call))
