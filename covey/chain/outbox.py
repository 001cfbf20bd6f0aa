"""What is to happen on chain, durable before it is tried; called by whoever writes intents, and by `Sender`.

An intent has a unique key, so writing it twice is writing it once.  A signed transaction is stored before it is sent,
and all attempts of an intent share one nonce: whatever crashes where, the effect happens once.

A block can be taken back until it is final.  Until then a mined intent keeps its nonce and its attempts, and becomes
SIGNED again when the chain has none of them any more.
"""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Protocol, Self

from covey.chain.finality import REFUSED_BLOCKS, REFUSED_HEADS
from covey.chain.json_rpc import Call
from covey.protocol.ids import Hash


class IntentState(StrEnum):
    """Example: UNSENT -> SIGNED -> MINED.  A reorganisation leads from MINED and REVERTED back to SIGNED."""

    UNSENT = "unsent"
    SIGNED = "signed"
    MINED = "mined"
    """In a block, and its call succeeded."""
    REVERTED = "reverted"
    """The contract refused the call: at several heads before it was signed, or in a block."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Intent:
    """A call that must happen once.  Example: key "publish/1/7"."""

    key: str
    call: Call


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
    """One signed transaction for an intent."""

    hash: Hash
    raw: bytes
    max_fee: int
    """Wei per gas."""
    priority_fee: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where an intent's transaction is in the chain."""

    block_number: int
    block_hash: Hash
    transaction_hash: Hash


@dataclass(frozen=True, kw_only=True, slots=True)
class Refusal:
    """A contract's refusal of a call that is not signed, as one or several newest blocks showed it."""

    first_block: int
    last_block: int
    heads: int
    """Number of different newest blocks at which the call was refused."""

    @classmethod
    def at(cls, block: int) -> Self:
        """The first refusal, at the newest block."""
        return cls(first_block=block, last_block=block, heads=1)

    def repeat(self, block: int) -> Self:
        """The refusal after another one at the newest block, which may be one that is counted already."""
        if block <= self.last_block:
            return self
        return replace(self, last_block=block, heads=self.heads + 1)

    @property
    def stands(self) -> bool:
        """Whether no node that merely lags explains it."""
        return self.heads >= REFUSED_HEADS and self.last_block - self.first_block >= REFUSED_BLOCKS


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """An intent and what became of it."""

    intent: Intent
    state: IntentState
    nonce: int | None
    attempts: tuple[Attempt, ...]
    """Oldest first."""
    offered_at: int | None
    """Number of the newest block when it was signed last, or when a reorganisation was found to have dropped it."""
    place: Place | None
    """Where it was mined; None while it is in no block."""
    refusal: Refusal | None
    """The refusals before it was signed; None when there was none since."""
    reason: str
    """The contract's words when it refused the call; empty otherwise."""

    @property
    def transaction_hash(self) -> Hash | None:
        """The attempt that was mined."""
        return None if self.place is None else self.place.transaction_hash


class OutboxStore(Protocol):
    """Where intents are kept.  Each method is one transaction of its own, or part of the caller's for `put`."""

    def put(self, intent: Intent) -> None:
        """Add an intent; the same again is nothing; raise ProtocolError("intent_conflict") for another call."""

    def find(self, key: str) -> Entry | None: ...

    def list_pending(self) -> list[Entry]:
        """Those that are UNSENT or SIGNED, in the order of `put`."""

    def list_provisional(self) -> list[Entry]:
        """Those that are in a block and not final, in the order of `put`."""

    def list_nonces(self) -> set[int]:
        """Nonces of all that are SIGNED or in a block that is not final."""

    def record_refused(self, key: str, refusal: Refusal, reason: str) -> None:
        """Keep what the contract says of a call that is not signed, which stays UNSENT."""

    def record_signed(self, key: str, nonce: int, attempt: Attempt, *, offered_at: int) -> None:
        """Keep an attempt as the newest one, before it is sent."""

    def record_dropped(self, key: str, *, offered_at: int) -> None:
        """No block holds the transaction any more: SIGNED again, with the nonce and the attempts that it has."""

    def record_displaced(self, key: str) -> None:
        """The nonce went to a transaction that is none of the intent's: it needs a new one.  Attempts are kept."""

    def record_mined(self, key: str, place: Place) -> None: ...

    def record_reverted(self, key: str, reason: str, place: Place | None) -> None:
        """`place` is None when the call was refused before it was signed, which is final."""

    def record_final(self, block_number: int) -> None:
        """Whatever is in a block up to this number stays there."""


def build_place(block_number: int | None, block_hash: str | None, transaction_hash: str | None) -> Place | None:
    """The three columns of a place; None where one is NULL."""
    if block_number is None or block_hash is None or transaction_hash is None:
        return None
    return Place(block_number=block_number, block_hash=Hash(block_hash), transaction_hash=Hash(transaction_hash))


def build_refusal(first: int | None, last: int | None, heads: int | None) -> Refusal | None:
    """The three columns of a refusal; None where one is NULL."""
    if first is None or last is None or heads is None:
        return None
    return Refusal(first_block=first, last_block=last, heads=heads)
