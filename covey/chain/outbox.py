"""Intents: calls that must happen on chain, stored durably before they are tried.

An intent has a unique key, so writing it twice has the effect of writing it once. A signed transaction is stored before
it is sent, and all attempts of an intent share one nonce. A crash at any point therefore cannot repeat the effect.

A block can be replaced until it is final. Until then a mined intent keeps its nonce and its attempts. It becomes SIGNED
again if the chain no longer has any of them.
"""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Protocol, Self

from covey.chain.finality import REFUSED_BLOCKS, REFUSED_HEADS
from covey.chain.json_rpc import Call
from covey.protocol.ids import Hash


class IntentState(StrEnum):
    """State of an intent, for example UNSENT -> SIGNED -> MINED.

    A reorganisation leads from MINED and REVERTED back to SIGNED.
    """

    UNSENT = "unsent"
    SIGNED = "signed"
    MINED = "mined"
    """The transaction is in a block, and its call succeeded."""
    REVERTED = "reverted"
    """The contract refused the call, either at several heads before it was signed, or in a block."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Intent:
    """A call that must happen exactly once. Example: key "publish/1/7"."""

    key: str
    call: Call


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
    """One signed transaction for an intent."""

    hash: Hash
    raw: bytes
    max_fee: int
    """Maximum fee in wei per gas."""
    priority_fee: int
    """Priority fee in wei per gas."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Block and hash of an intent's mined transaction."""

    block_number: int
    block_hash: Hash
    transaction_hash: Hash


@dataclass(frozen=True, kw_only=True, slots=True)
class Refusal:
    """A contract's refusal of an unsigned call, as seen at one or more newest blocks."""

    first_block: int
    """Number of the first newest block at which the call was refused."""
    last_block: int
    """Number of the last newest block at which the call was refused."""
    heads: int
    """Number of different newest blocks at which the call was refused."""

    @classmethod
    def at(cls, block: int) -> Self:
        """Return the first refusal of a call, at the newest block."""
        return cls(first_block=block, last_block=block, heads=1)

    def repeat(self, block: int) -> Self:
        """Return the refusal after another one at the newest block, which may have been counted already."""
        if block <= self.last_block:
            return self
        return replace(self, last_block=block, heads=self.heads + 1)

    @property
    def stands(self) -> bool:
        """Whether the refusal is final, because a lagging node can no longer explain it."""
        return self.heads >= REFUSED_HEADS and self.last_block - self.first_block >= REFUSED_BLOCKS


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """An intent and its progress."""

    intent: Intent
    state: IntentState
    nonce: int | None
    """Nonce that all attempts share. None while the intent has none."""
    attempts: tuple[Attempt, ...]
    """Signed transactions, oldest first."""
    offered_at: int | None
    """Number of the newest block when the intent was last signed, or when a reorganisation was found to have dropped
    it. None while it is not signed."""
    place: Place | None
    """Block and transaction in which it was mined. None while it is not in a block."""
    refusal: Refusal | None
    """Refusals of the call before it was signed. None if there were none, and after it was signed."""
    reason: str
    """Reason that the contract gave when it refused the call. Empty if it did not refuse."""

    @property
    def transaction_hash(self) -> Hash | None:
        """Hash of the attempt that was mined. None if none was."""
        return None if self.place is None else self.place.transaction_hash


class OutboxStore(Protocol):
    """Storage of intents. Each method is a transaction of its own, except `put`, which may be part of the caller's."""

    def put(self, intent: Intent) -> None:
        """Add an intent. Adding the same intent again has no effect.

        Raises ProtocolError("intent_conflict") if the key belongs to another call.
        """

    def find(self, key: str) -> Entry | None:
        """Return the entry of a key. None if there is none."""

    def list_pending(self) -> list[Entry]:
        """Return the entries that are UNSENT or SIGNED, in the order of `put`."""

    def list_provisional(self) -> list[Entry]:
        """Return the entries that are in a block which is not final, in the order of `put`."""

    def list_nonces(self) -> set[int]:
        """Return the nonces of all entries that are SIGNED, or in a block that is not final."""

    def record_refused(self, key: str, refusal: Refusal, reason: str) -> None:
        """Record the contract's refusal of a call that is not signed. The intent stays UNSENT."""

    def record_signed(self, key: str, nonce: int, attempt: Attempt, *, offered_at: int) -> None:
        """Record an attempt as the newest one, before it is sent."""

    def record_dropped(self, key: str, *, offered_at: int) -> None:
        """Record that the transaction is in no block any more. The intent is SIGNED again.

        It keeps its nonce and its attempts.
        """

    def record_displaced(self, key: str) -> None:
        """Record that a transaction which is not an attempt of this intent took the nonce.

        The intent needs a new nonce. Its attempts are kept.
        """

    def record_mined(self, key: str, place: Place) -> None:
        """Record the block and transaction in which the call succeeded."""

    def record_reverted(self, key: str, reason: str, place: Place | None) -> None:
        """Record that the contract refused the call.

        `place` is None if that happened before it was signed, which is final.
        """

    def record_final(self, block_number: int) -> None:
        """Record that blocks up to this number are final."""


def build_place(block_number: int | None, block_hash: str | None, transaction_hash: str | None) -> Place | None:
    """Build a place from its three columns. None if one of them is NULL."""
    if block_number is None or block_hash is None or transaction_hash is None:
        return None
    return Place(block_number=block_number, block_hash=Hash(block_hash), transaction_hash=Hash(transaction_hash))


def build_refusal(first: int | None, last: int | None, heads: int | None) -> Refusal | None:
    """Build a refusal from its three columns. None if one of them is NULL."""
    if first is None or last is None or heads is None:
        return None
    return Refusal(first_block=first, last_block=last, heads=heads)
