"""What is to happen on chain, durable before it is tried; called by whoever writes intents, and by `Sender`.

An intent has a unique key, so writing it twice is writing it once.  A signed transaction is stored before it is sent,
and all attempts of an intent share one nonce: whatever crashes where, the effect happens once.
"""

import sqlite3
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

from covey.chain.client import Call
from covey.errors import ProtocolError
from covey.protocol.ids import Address, Hash


class IntentState(StrEnum):
    """Example: UNSENT -> SIGNED -> MINED."""

    UNSENT = "unsent"
    SIGNED = "signed"
    MINED = "mined"
    """In a block, and its call succeeded."""
    REVERTED = "reverted"
    """The contract said no: before it was signed, or in a block."""

    @property
    def is_terminal(self) -> bool:
        return self in (IntentState.MINED, IntentState.REVERTED)


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
    signed_at: int
    """Number of the newest block when it was signed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """An intent and what became of it."""

    intent: Intent
    state: IntentState
    nonce: int | None
    attempts: tuple[Attempt, ...]
    """Oldest first."""
    block_number: int | None
    """Where it was mined."""
    transaction_hash: Hash | None
    """The attempt that was mined."""
    reason: str
    """Why it was reverted; empty otherwise."""


class OutboxStore(Protocol):
    """Where intents are kept.  Each method is one transaction of its own, or part of the caller's for `put`."""

    def put(self, intent: Intent) -> None:
        """Add an intent; the same again is nothing; raise ProtocolError("intent_conflict") for another call."""

    def find(self, key: str) -> Entry | None: ...

    def list_pending(self) -> list[Entry]:
        """Those that are not terminal, in the order of `put`."""

    def get_next_nonce(self) -> int:
        """One more than the highest recorded; 0 when there is none."""

    def record_signed(self, key: str, nonce: int, attempt: Attempt) -> None:
        """Keep an attempt, before it is sent."""

    def record_displaced(self, key: str) -> None:
        """The nonce went to a transaction that is none of the intent's: it needs a new one.  Attempts are kept."""

    def record_mined(self, key: str, block_number: int, transaction_hash: Hash) -> None: ...

    def record_reverted(self, key: str, reason: str, transaction_hash: Hash | None) -> None: ...


_SCHEMA = """
CREATE TABLE IF NOT EXISTS intents (
    position INTEGER PRIMARY KEY,
    key TEXT NOT NULL UNIQUE,
    target TEXT NOT NULL,
    data BLOB NOT NULL,
    value TEXT NOT NULL,
    label TEXT NOT NULL,
    state TEXT NOT NULL,
    nonce INTEGER,
    block_number INTEGER,
    transaction_hash TEXT,
    reason TEXT NOT NULL DEFAULT ''
);
CREATE TABLE IF NOT EXISTS attempts (
    position INTEGER PRIMARY KEY,
    key TEXT NOT NULL REFERENCES intents (key),
    hash TEXT NOT NULL UNIQUE,
    raw BLOB NOT NULL,
    max_fee INTEGER NOT NULL,
    priority_fee INTEGER NOT NULL,
    signed_at INTEGER NOT NULL
);
"""


class SqliteOutbox:
    """An OutboxStore in one SQLite file, or ":memory:".  One process, and one thread at a time."""

    def __init__(self, path: Path | str) -> None:
        self._database = sqlite3.connect(path, check_same_thread=False)
        self._database.executescript("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;" + _SCHEMA)

    def close(self) -> None:
        self._database.close()

    def put(self, intent: Intent) -> None:
        call = intent.call
        with self._database as database:
            database.execute(
                "INSERT INTO intents (key, target, data, value, label, state) VALUES (?, ?, ?, ?, ?, ?)"
                " ON CONFLICT (key) DO NOTHING",
                (intent.key, call.to, call.data, str(call.value), call.label, IntentState.UNSENT),
            )
        kept = self.find(intent.key)
        if kept is None or kept.intent != intent:
            raise ProtocolError("intent_conflict", f"{intent.key} stands for another call", status=409)

    def find(self, key: str) -> Entry | None:
        entries = self._select("WHERE key = ?", key)
        return entries[0] if entries else None

    def list_pending(self) -> list[Entry]:
        return self._select("WHERE state IN (?, ?)", IntentState.UNSENT, IntentState.SIGNED)

    def get_next_nonce(self) -> int:
        (highest,) = self._database.execute("SELECT MAX(nonce) FROM intents").fetchone()
        return 0 if highest is None else int(highest) + 1

    def record_signed(self, key: str, nonce: int, attempt: Attempt) -> None:
        with self._database as database:
            database.execute("UPDATE intents SET state = ?, nonce = ? WHERE key = ?", (IntentState.SIGNED, nonce, key))
            database.execute(
                "INSERT INTO attempts (key, hash, raw, max_fee, priority_fee, signed_at) VALUES (?, ?, ?, ?, ?, ?)",
                (key, attempt.hash, attempt.raw, attempt.max_fee, attempt.priority_fee, attempt.signed_at),
            )

    def record_displaced(self, key: str) -> None:
        with self._database as database:
            database.execute("UPDATE intents SET state = ?, nonce = NULL WHERE key = ?", (IntentState.UNSENT, key))

    def record_mined(self, key: str, block_number: int, transaction_hash: Hash) -> None:
        with self._database as database:
            database.execute(
                "UPDATE intents SET state = ?, block_number = ?, transaction_hash = ? WHERE key = ?",
                (IntentState.MINED, block_number, transaction_hash, key),
            )

    def record_reverted(self, key: str, reason: str, transaction_hash: Hash | None) -> None:
        with self._database as database:
            database.execute(
                "UPDATE intents SET state = ?, reason = ?, transaction_hash = ? WHERE key = ?",
                (IntentState.REVERTED, reason, transaction_hash, key),
            )

    def _select(self, where: str, *values: str) -> list[Entry]:
        rows = self._database.execute(
            "SELECT key, target, data, value, label, state, nonce, block_number, transaction_hash, reason"  # noqa: S608
            f" FROM intents {where} ORDER BY position",
            values,
        ).fetchall()
        return [self._build_entry(row) for row in rows]

    def _build_entry(self, row: tuple[Any, ...]) -> Entry:
        key, target, data, value, label, state, nonce, block_number, transaction_hash, reason = row
        attempts = self._database.execute(
            "SELECT hash, raw, max_fee, priority_fee, signed_at FROM attempts WHERE key = ? ORDER BY position", (key,)
        ).fetchall()
        return Entry(
            intent=Intent(key=key, call=Call(to=Address(target), data=data, value=int(value), label=label)),
            state=IntentState(state),
            nonce=nonce,
            attempts=tuple(
                Attempt(hash=Hash(made[0]), raw=made[1], max_fee=made[2], priority_fee=made[3], signed_at=made[4])
                for made in attempts
            ),
            block_number=block_number,
            transaction_hash=transaction_hash,
            reason=reason,
        )
