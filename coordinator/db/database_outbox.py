"""The outbox in the coordinator's database. An intent is committed together with the state that requires it.

Jobs add intents with `add_intent` within their transactions. The sender reads and updates them by `DatabaseOutbox`.
"""

from coordinator.db.database import Database
from coordinator.db.intent_row import IntentRow
from coordinator.db.repository import Repository
from covey.chain.json_rpc import Call
from covey.chain.outbox import Attempt, Entry, Intent, IntentState, Place, Refusal, build_place, build_refusal
from covey.errors import ProtocolError
from covey.protocol.ids import Address, Hash


def add_intent(repository: Repository, *, key: str, call: Call) -> None:
    """Add an intent within the caller's transaction. Adding the same intent again changes nothing.

    Raises ProtocolError("intent_conflict") if `key` is already used for a different call.
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
        raise ProtocolError("intent_conflict", f"the intent key {key} is already used for a different call", status=409)


class DatabaseOutbox:
    """An `OutboxStore` in the coordinator's database. Each method is one transaction."""

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

    def list_provisional(self) -> list[Entry]:
        with self._database.read() as repository:
            return [_to_entry(row) for row in repository.list_provisional_intents()]

    def list_signed_since(self, block_number: int) -> list[Entry]:
        with self._database.read() as repository:
            return [_to_entry(row) for row in repository.list_signed_intents(block_number)]

    def list_nonces(self) -> set[int]:
        with self._database.read() as repository:
            return repository.list_nonces()

    def record_refused(self, key: str, refusal: Refusal, reason: str) -> None:
        with self._database.write() as repository:
            row = _require_row(repository, key)
            _set_refusal(row, refusal, reason)

    def record_signed(self, key: str, nonce: int, attempt: Attempt, *, offered_at: int) -> None:
        with self._database.write() as repository:
            row = _require_row(repository, key)
            row.state, row.nonce, row.offered_at = IntentState.SIGNED, nonce, offered_at
            # A transaction signed again with a nonce that a reorganization freed may be identical to an earlier one.
            row.attempts = [*(made for made in row.attempts if made["hash"] != attempt.hash), _to_json(attempt)]
            _set_refusal(row, None, "")

    def record_dropped(self, key: str, *, offered_at: int) -> None:
        with self._database.write() as repository:
            row = _require_row(repository, key)
            row.offered_at = offered_at
            _set_place(row, IntentState.SIGNED, "", None)

    def record_displaced(self, key: str) -> None:
        with self._database.write() as repository:
            row = _require_row(repository, key)
            row.state, row.nonce, row.offered_at = IntentState.UNSENT, None, None

    def record_mined(self, key: str, place: Place) -> None:
        with self._database.write() as repository:
            _set_place(_require_row(repository, key), IntentState.MINED, "", place)

    def record_reverted(self, key: str, reason: str, place: Place | None) -> None:
        with self._database.write() as repository:
            _set_place(_require_row(repository, key), IntentState.REVERTED, reason, place)

    def record_final(self, block_number: int) -> None:
        with self._database.write() as repository:
            repository.mark_intents_final(block_number)


def _set_refusal(row: IntentRow, refusal: Refusal | None, reason: str) -> None:
    row.refused_first = None if refusal is None else refusal.first_at
    row.refused_last = None if refusal is None else refusal.last_at
    row.refused_heads = None if refusal is None else refusal.heads
    row.reason = reason


def _set_place(row: IntentRow, state: IntentState, reason: str, place: Place | None) -> None:
    row.state, row.reason = state, reason
    row.block_number = None if place is None else place.block_number
    row.block_hash = None if place is None else place.block_hash
    row.transaction_hash = None if place is None else place.transaction_hash


def _require_row(repository: Repository, key: str) -> IntentRow:
    row = repository.get_intent(key)
    if row is None:
        raise ProtocolError("unknown_intent", f"no intent has the key {key}", status=404)
    return row


def _to_entry(row: IntentRow) -> Entry:
    call = Call(to=Address(row.recipient), data=bytes.fromhex(row.data), value=int(row.value), label=row.label)
    return Entry(
        intent=Intent(key=row.key, call=call),
        state=IntentState(row.state),
        nonce=row.nonce,
        attempts=tuple(_from_json(attempt) for attempt in row.attempts),
        offered_at=row.offered_at,
        place=build_place(row.block_number, row.block_hash, row.transaction_hash),
        refusal=build_refusal(row.refused_first, row.refused_last, row.refused_heads),
        reason=row.reason or "",
    )


def _to_json(attempt: Attempt) -> dict[str, str | int]:
    return {
        "hash": attempt.hash,
        "raw": attempt.raw.hex(),
        "max_fee": attempt.max_fee,
        "priority_fee": attempt.priority_fee,
    }


def _from_json(values: dict[str, str | int]) -> Attempt:
    return Attempt(
        hash=Hash(str(values["hash"])),
        raw=bytes.fromhex(str(values["raw"])),
        max_fee=int(values["max_fee"]),
        priority_fee=int(values["priority_fee"]),
    )
