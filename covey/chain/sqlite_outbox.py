"""An outbox in one SQLite file, for roles without a database. The coordinator uses `coordinator.db.database_outbox`."""

import sqlite3
from pathlib import Path
from typing import Any

from covey.chain.json_rpc import Call
from covey.chain.outbox import (
    Attempt,
    Entry,
    Intent,
    IntentState,
    Place,
    Refusal,
    build_place,
    build_refusal,
)
from covey.errors import OperatorError, ProtocolError
from covey.protocol.ids import Address, Hash

SCHEMA_VERSION = 1
"""Version of the file format, stored as PRAGMA user_version. Older files have 0."""
_SCHEMA = f"""
CREATE TABLE IF NOT EXISTS intents (
    position INTEGER PRIMARY KEY,
    key TEXT NOT NULL UNIQUE,
    target TEXT NOT NULL,
    data BLOB NOT NULL,
    value TEXT NOT NULL,
    label TEXT NOT NULL,
    state TEXT NOT NULL,
    nonce INTEGER,
    offered_at INTEGER,
    block_number INTEGER,
    block_hash TEXT,
    transaction_hash TEXT,
    is_final INTEGER NOT NULL DEFAULT 0,
    refused_first INTEGER,
    refused_last INTEGER,
    refused_heads INTEGER,
    reason TEXT NOT NULL DEFAULT ''
);
CREATE TABLE IF NOT EXISTS attempts (
    position INTEGER PRIMARY KEY,
    key TEXT NOT NULL REFERENCES intents (key),
    hash TEXT NOT NULL UNIQUE,
    raw BLOB NOT NULL,
    max_fee INTEGER NOT NULL,
    priority_fee INTEGER NOT NULL
);
PRAGMA user_version = {SCHEMA_VERSION};
"""
_COLUMNS = (
    "key, target, data, value, label, state, nonce, offered_at, block_number, block_hash, transaction_hash,"
    " refused_first, refused_last, refused_heads, reason"
)
_PROVISIONAL = "block_number IS NOT NULL AND NOT is_final"


class SqliteOutbox:
    """An OutboxStore in one SQLite file, or in memory with ":memory:". One process and one thread at a time can use it.

    Raises OperatorError("old_outbox") if a different version of Covey wrote the file.
    """

    def __init__(self, path: Path | str) -> None:
        self._database = sqlite3.connect(path, check_same_thread=False)
        self._require_version(path)
        self._database.executescript("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;" + _SCHEMA)

    def _require_version(self, path: Path | str) -> None:
        (version,) = self._database.execute("PRAGMA user_version").fetchone()
        (tables,) = self._database.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()
        if version == SCHEMA_VERSION or (version, tables) == (0, 0):
            return
        self.close()
        raise OperatorError(
            "old_outbox",
            f"the outbox {path} has format {version}, but this release reads only format {SCHEMA_VERSION}",
            fix=f"Wait until no transaction of this key is pending, remove {path} and start again",
        )

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
        entry = self.find(intent.key)
        if entry is None or entry.intent != intent:
            raise ProtocolError(
                "intent_conflict", f"the intent key {intent.key} is already used for a different call", status=409
            )

    def find(self, key: str) -> Entry | None:
        entries = self._select("key = ?", key)
        return entries[0] if entries else None

    def list_pending(self) -> list[Entry]:
        return self._select("state IN (?, ?)", IntentState.UNSENT, IntentState.SIGNED)

    def list_provisional(self) -> list[Entry]:
        return self._select(_PROVISIONAL)

    def list_signed_since(self, block_number: int) -> list[Entry]:
        return self._select("offered_at >= ?", block_number)

    def list_nonces(self) -> set[int]:
        rows = self._database.execute(
            f"SELECT nonce FROM intents WHERE nonce IS NOT NULL AND (state = ? OR {_PROVISIONAL})",  # noqa: S608
            (IntentState.SIGNED,),
        )
        return {nonce for (nonce,) in rows}

    def record_refused(self, key: str, refusal: Refusal, reason: str) -> None:
        values = (refusal.first_at, refusal.last_at, refusal.heads, reason)
        self._update(key, "refused_first = ?, refused_last = ?, refused_heads = ?, reason = ?", *values)

    def record_signed(self, key: str, nonce: int, attempt: Attempt, *, offered_at: int) -> None:
        with self._database as database:
            database.execute(
                "UPDATE intents SET state = ?, nonce = ?, offered_at = ?, refused_first = NULL, refused_last = NULL,"
                " refused_heads = NULL, reason = '' WHERE key = ?",
                (IntentState.SIGNED, nonce, offered_at, key),
            )
            # The same attempt may exist already, if a reorganisation freed its nonce.
            database.execute("DELETE FROM attempts WHERE key = ? AND hash = ?", (key, attempt.hash))
            database.execute(
                "INSERT INTO attempts (key, hash, raw, max_fee, priority_fee) VALUES (?, ?, ?, ?, ?)",
                (key, attempt.hash, attempt.raw, attempt.max_fee, attempt.priority_fee),
            )

    def record_dropped(self, key: str, *, offered_at: int) -> None:
        self._update(
            key,
            "state = ?, offered_at = ?, block_number = NULL, block_hash = NULL, transaction_hash = NULL, reason = ''",
            IntentState.SIGNED,
            offered_at,
        )

    def record_displaced(self, key: str) -> None:
        self._update(key, "state = ?, nonce = NULL, offered_at = NULL", IntentState.UNSENT)

    def record_mined(self, key: str, place: Place) -> None:
        self._record_place(key, IntentState.MINED, "", place)

    def record_reverted(self, key: str, reason: str, place: Place | None) -> None:
        self._record_place(key, IntentState.REVERTED, reason, place)

    def record_final(self, block_number: int) -> None:
        with self._database as database:
            database.execute("UPDATE intents SET is_final = 1 WHERE block_number <= ?", (block_number,))

    def _record_place(self, key: str, state: IntentState, reason: str, place: Place | None) -> None:
        values = (None, None, None) if place is None else (place.block_number, place.block_hash, place.transaction_hash)
        assignments = "state = ?, reason = ?, block_number = ?, block_hash = ?, transaction_hash = ?"
        self._update(key, assignments, state, reason, *values)

    def _update(self, key: str, assignments: str, *values: Any) -> None:
        with self._database as database:
            database.execute(f"UPDATE intents SET {assignments} WHERE key = ?", (*values, key))  # noqa: S608

    def _select(self, condition: str, *values: str | int) -> list[Entry]:
        rows = self._database.execute(
            f"SELECT {_COLUMNS} FROM intents WHERE {condition} ORDER BY position",  # noqa: S608
            values,
        ).fetchall()
        return [self._build_entry(row) for row in rows]

    def _build_entry(self, row: tuple[Any, ...]) -> Entry:
        key, target, data, value, label, state, nonce, offered_at = row[:8]
        attempts = self._database.execute(
            "SELECT hash, raw, max_fee, priority_fee FROM attempts WHERE key = ? ORDER BY position", (key,)
        ).fetchall()
        return Entry(
            intent=Intent(key=key, call=Call(to=Address(target), data=data, value=int(value), label=label)),
            state=IntentState(state),
            nonce=nonce,
            attempts=tuple(
                Attempt(hash=Hash(hash), raw=raw, max_fee=max_fee, priority_fee=priority_fee)
                for hash, raw, max_fee, priority_fee in attempts
            ),
            offered_at=offered_at,
            place=build_place(*row[8:11]),
            refusal=build_refusal(*row[11:14]),
            reason=row[14],
        )
