"""The verdicts that this validator has signed. It compares them with the leaves of an epoch before it signs its header.

They are in one SQLite file in the validator's home, of which the newest MOST remain.
"""

import sqlite3
from collections.abc import Iterable
from dataclasses import astuple, dataclass
from pathlib import Path

from covey.protocol.ids import Address, Hash
from covey.protocol.messages import Receipt, Verdict
from covey.protocol.verdict import Decision

MOST = 200_000
"""Number of verdicts that are kept. An epoch has fewer leaves than that."""
_SCHEMA = """
PRAGMA journal_mode = WAL;
PRAGMA synchronous = NORMAL;
CREATE TABLE IF NOT EXISTS verdicts (
    position INTEGER PRIMARY KEY AUTOINCREMENT,
    receipt_hash TEXT NOT NULL UNIQUE,
    work_key TEXT NOT NULL,
    node TEXT NOT NULL,
    contributor TEXT NOT NULL,
    outcome INTEGER NOT NULL,
    severity INTEGER NOT NULL,
    units INTEGER NOT NULL
);
"""
_ADD = """
INSERT OR REPLACE INTO verdicts (receipt_hash, work_key, node, contributor, outcome, severity, units)
VALUES (?, ?, ?, ?, ?, ?, ?)
"""
_FIND = """
SELECT receipt_hash, work_key, node, contributor, outcome, severity, units FROM verdicts WHERE receipt_hash = ?
"""


@dataclass(frozen=True, slots=True)
class OwnVerdict:
    """The newest verdict of this validator on a receipt, and the fields of the receipt that decide who is paid."""

    receipt_hash: Hash
    work_key: Hash
    node: Address
    contributor: Address
    outcome: int
    severity: int
    units: int


class OwnVerdicts:
    """A store in one SQLite file, or in memory with ":memory:". One process and one thread at a time can use it."""

    def __init__(self, path: Path | str) -> None:
        self._database = sqlite3.connect(path, check_same_thread=False)
        self._database.executescript(_SCHEMA)

    def close(self) -> None:
        self._database.close()

    def add(self, verdict: Verdict, receipt: Receipt) -> None:
        """Store a verdict instead of an earlier one on the same receipt, and delete the oldest ones above MOST.

        A verdict that decides nothing is not stored.
        """
        if verdict.outcome == Decision.UNKNOWN:
            return
        own = OwnVerdict(
            receipt_hash=verdict.receipt_hash,
            work_key=receipt.work_key,
            node=receipt.node,
            contributor=receipt.contributor,
            outcome=verdict.outcome,
            severity=verdict.severity,
            units=verdict.units,
        )
        with self._database as database:
            placed = database.execute(_ADD, astuple(own))
            database.execute("DELETE FROM verdicts WHERE position <= ?", ((placed.lastrowid or 0) - MOST,))

    def find(self, receipt_hashes: Iterable[Hash]) -> dict[Hash, OwnVerdict]:
        """Return the verdicts on some receipts by the hash of the receipt."""
        found: dict[Hash, OwnVerdict] = {}
        for receipt_hash in receipt_hashes:
            row = self._database.execute(_FIND, (receipt_hash,)).fetchone()
            if row is not None:
                found[receipt_hash] = OwnVerdict(*row)
        return found
