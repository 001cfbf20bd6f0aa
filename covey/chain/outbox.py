"""Intents: calls that must happen on chain, stored durably before they are sent.

An intent has a unique key, so writing it twice has the effect of writing it once. A signed transaction is stored before
it is sent, and all attempts of an intent share one nonce. A crash at any point therefore cannot repeat the effect.

A block can be replaced until it is final. Until then a mined intent keeps its nonce and its attempts. It becomes SIGNED
again if none of its attempts is in the chain any more.
"""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Protocol, Self

from covey.chain.finality import REFUSED_HEADS, REFUSED_SECONDS
from covey.chain.json_rpc import Call
from covey.protocol.ids import Hash


class IntentState(StrEnum):
    """State of an intent, for example UNSENT -> SIGNED -> MINED.

    A reorganisation can change MINED and REVERTED back to SIGNED.
    """

    UNSENT = "unsent"
    SIGNED = "signed"
    MINED = "mined"
    """The transaction is in a block, and its call succeeded."""
    REVERTED = "reverted"
    """The contract refused the call, either at several newest blocks before it was signed, or in a block."""


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
    """A contract's refusal of an unsigned call, observed at one or more newest blocks."""

    first_at: int
    """Unix seconds of the newest block when the call was first refused."""
    last_at: int
    """Unix seconds of the newest block when the call was last refused."""
    heads: int
    """Number of distinct newest blocks at which the call was refused."""

    @classmethod
    def at(cls, block_time: int) -> Self:
        """Create the record of a call's first refusal, at the newest block, which has this time in Unix seconds."""
        return cls(first_at=block_time, last_at=block_time, heads=1)

    def repeat(self, block_time: int) -> Self:
        """Return the record after one more refusal at the newest block.

        A block that is already counted, or an older one of a lagging node, does not count.
        """
        if block_time <= self.last_at:
            return self
        return replace(self, last_at=block_time, heads=self.heads + 1)

    @property
    def stands(self) -> bool:
        """Whether the refusal is final, because it has lasted longer than a node can lag."""
        return self.heads >= REFUSED_HEADS and self.last_at - self.first_at >= REFUSED_SECONDS


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """An intent with its state."""

    intent: Intent
    state: IntentState
    nonce: int | None
    """Nonce that all attempts share. None before it is assigned."""
    attempts: tuple[Attempt, ...]
    """Signed transactions, oldest first."""
    offered_at: int | None
    """Number of the newest block when the intent was last signed, or when a reorganisation was found to have dropped
    it.

    None if it is not signed.
    """
    place: Place | None
    """Block and transaction in which the call was mined. None if it is not mined."""
    refusal: Refusal | None
    """Refusals of the unsigned call. None if there were none, or once the call is signed."""
    reason: str
    """The contract's reason for refusing the call. Empty if it did not refuse."""

    @property
    def transaction_hash(self) -> Hash | None:
        """Hash of the mined attempt. None if no attempt is mined."""
        return None if self.place is None else self.place.transaction_hash


class OutboxStore(Protocol):
    """Storage of intents. Each method is its own database transaction, except `put`, which can join the caller's."""

    def put(self, intent: Intent) -> None:
        """Add an intent. Adding the same intent again has no effect.

        Raises ProtocolError("intent_conflict") if the key already belongs to a different call.
        """

    def find(self, key: str) -> Entry | None:
        """Return the entry with a key. None if there is none."""

    def list_pending(self) -> list[Entry]:
        """Return the entries that are UNSENT or SIGNED, in the order of `put`."""

    def list_provisional(self) -> list[Entry]:
        """Return the entries whose block is not final, in the order of `put`."""

    def list_nonces(self) -> set[int]:
        """Return the nonces of all entries that are SIGNED or whose block is not final."""

    def list_signed_since(self, block_number: int) -> list[Entry]:
        """Return the entries that were last signed at this block or later."""

    def record_refused(self, key: str, refusal: Refusal, reason: str) -> None:
        """Record that the contract refused an unsigned call. The intent stays UNSENT."""

    def record_signed(self, key: str, nonce: int, attempt: Attempt, *, offered_at: int) -> None:
        """Record an attempt as the newest one, before it is sent."""

    def record_dropped(self, key: str, *, offered_at: int) -> None:
        """Record that the transaction is no longer in any block. The intent is SIGNED again.

        It keeps its nonce and its attempts.
        """

    def record_displaced(self, key: str) -> None:
        """Record that a different transaction of the account used the nonce.

        The intent needs a new nonce. Its attempts are kept.
        """

    def record_mined(self, key: str, place: Place) -> None:
        """Record the block and transaction in which the call succeeded."""

    def record_reverted(self, key: str, reason: str, place: Place | None) -> None:
        """Record that the contract refused the call.

        `place` is None if the call was refused before it was signed. That refusal is final.
        """

    def record_final(self, block_number: int) -> None:
        """Record that blocks up to this number are final."""


def build_place(block_number: int | None, block_hash: str | None, transaction_hash: str | None) -> Place | None:
    """Build a place from its three database columns. None if one of them is NULL."""
    if block_number is None or block_hash is None or transaction_hash is None:
        return None
    return Place(block_number=block_number, block_hash=Hash(block_hash), transaction_hash=Hash(transaction_hash))


def build_refusal(first: int | None, last: int | None, heads: int | None) -> Refusal | None:
    """Build a refusal from its three database columns. None if one of them is NULL."""
    if first is None or last is None or heads is None:
        return None
    return Refusal(first_at=first, last_at=last, heads=heads)
