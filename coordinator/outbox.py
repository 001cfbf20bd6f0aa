"""The outbox in the coordinator's database, so that an intent commits together with the state that wants it.

`add_intent` is for whoever decides (jobs); `DatabaseOutbox` is what the one sender, `loop.cycle`, works on.
"""

from coordinator.db import Database, Repository
from coordinator.models import IntentRow
from covey.chain.client import Call
from covey.chain.outbox import Attempt, Entry, Intent, IntentState
from covey.errors import ProtocolError
from covey.protocol.ids import Address, Hash


def add_intent(repository: Repository, *, key: str, call: Call) -> None:
    """Add an intent within the caller's transaction; the same again changes nothing.

    Raises ProtocolError("intent_conflict") when `key` stands for another call.
    """
    row = repository.get_intent(key)
    if row is None:
        row = IntentRow(
            key=key,
            recipient=call.to,
            data=call.data.hex(),
            value=str(call.value),
            label=call.label,
            state=IntentState.UNSENT,
            attempts=[],
        )
        repository.add(row)
    if _to_entry(row).intent.call != call:
        raise ProtocolError("intent_conflict", f"{key} stands for another call", status=409)


class DatabaseOutbox:
    """An `OutboxStore`; each method is one transaction."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def put(self, intent: Intent) -> None:
        with self._database.write() as repository:
            add_intent(repository, key=intent.key, call=intent.call)

    def find(self, key: str) -> Entry | None:
        with self._database.read() as repository:
            row = repository.get_intent(key)
            return None if row is None else _to_entry(row)

    def list_pending(self) -> list[Entry]:
        with self._database.read() as repository:
            return [_to_entry(row) for row in repository.list_intents(IntentState.UNSENT, IntentState.SIGNED)]

    def get_next_nonce(self) -> int:
        with self._database.read() as repository:
            return repository.get_next_nonce()

    def record_signed(self, key: str, nonce: int, attempt: Attempt) -> None:
        with self._database.write() as repository:
            row = _require_row(repository, key)
            row.state, row.nonce = IntentState.SIGNED, nonce
            row.attempts = [*row.attempts, _to_json(attempt)]

    def record_displaced(self, key: str) -> None:
        with self._database.write() as repository:
            row = _require_row(repository, key)
            row.state, row.nonce = IntentState.UNSENT, None

    def record_mined(self, key: str, block_number: int, transaction_hash: Hash) -> None:
        with self._database.write() as repository:
            row = _require_row(repository, key)
            row.state, row.block_number, row.transaction_hash = IntentState.MINED, block_number, transaction_hash

    def record_reverted(self, key: str, reason: str, transaction_hash: Hash | None) -> None:
        with self._database.write() as repository:
            row = _require_row(repository, key)
            row.state, row.reason, row.transaction_hash = IntentState.REVERTED, reason, transaction_hash


def _require_row(repository: Repository, key: str) -> IntentRow:
    row = repository.get_intent(key)
    if row is None:
        raise ProtocolError("unknown_intent", f"there is no intent {key}", status=404)
    return row


def _to_entry(row: IntentRow) -> Entry:
    call = Call(to=Address(row.recipient), data=bytes.fromhex(row.data), value=int(row.value), label=row.label)
    return Entry(
        intent=Intent(key=row.key, call=call),
        state=IntentState(row.state),
        nonce=row.nonce,
        attempts=tuple(_from_json(attempt) for attempt in row.attempts),
        block_number=row.block_number,
        transaction_hash=None if row.transaction_hash is None else Hash(row.transaction_hash),
        reason=row.reason or "",
    )


def _to_json(attempt: Attempt) -> dict[str, str | int]:
    return {
        "hash": attempt.hash,
        "raw": attempt.raw.hex(),
        "max_fee": attempt.max_fee,
        "priority_fee": attempt.priority_fee,
        "signed_at": attempt.signed_at,
    }


def _from_json(values: dict[str, str | int]) -> Attempt:
    return Attempt(
        hash=Hash(str(values["hash"])),
        raw=bytes.fromhex(str(values["raw"])),
        max_fee=int(values["max_fee"]),
        priority_fee=int(values["priority_fee"]),
        signed_at=int(values["signed_at"]),
    )
