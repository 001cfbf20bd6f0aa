"""Who may take a turn at a submission: the drawn order of its validators, and who is asked last.

Functions of a submission's row, with its judgements; they use no database and no clock.  The order follows from the
drawing block (`covey.protocol.seeding.compute_turn_order`), so no validator gains by being fast or by asking often.
After each `turn_seconds` a turn that nobody took is open to one more validator.  Asked last: validators that are away,
that let a turn lapse lately, or that a quorum contradicted.
"""

from collections.abc import Mapping, Sequence

from coordinator.db.models import SubmissionRow, TurnRow, ValidatorRow
from covey.protocol.ids import Address, Hash
from covey.protocol.params import PoolParams
from covey.protocol.seeding import compute_turn_order
from covey.protocol.verdict import Decision

AWAY_SECONDS = 60.0
"""A validator that has not asked for work for this long is away.  A long poll lasts 20 s at most."""
UNRELIABLE_TURNS = 20
"""A validator that failed is asked last for this many times `judgement_seconds`, and longer with each contradiction."""
MAX_LAPSES = 4
"""Turns of one submission that one validator may let lapse; after these it is not asked about it any more."""
MAX_UNKNOWN = 2
"""Number of times that one validator may say unknown of one submission: its machine may recover after the first."""

Standing = Mapping[str, ValidatorRow]
"""What is known of each validator by its address."""


def find_place(
    params: PoolParams,
    row: SubmissionRow,
    turn: TurnRow,
    *,
    validator: Address,
    validators: Sequence[Address],
    standing: Standing,
    now: float,
) -> int | None:
    """Return the place of a validator in the drawn order if it may take a free turn now, otherwise None.

    It may if the turn is its own, or has waited long enough for it.
    """
    candidates = _sort_candidates(params, row, validators=validators, standing=standing, now=now)
    if validator not in candidates:
        return None
    place = candidates.index(validator)
    return place if place < count_free(row) + int((now - turn.opened_at) / params.turn_seconds) else None


def list_current(row: SubmissionRow) -> list[TurnRow]:
    """Judgements of the kind that counts now, lapsed ones included."""
    return [judgement for judgement in row.turns if judgement.full == bool(row.audited)]


def list_candidates(row: SubmissionRow, validators: Sequence[Address]) -> list[Address]:
    """Validators that may still judge: nobody judges twice, and nobody lets turns lapse for ever.

    Unknown is no judgement, and whoever says it may try once more.
    """
    busy = {turn.validator for turn in list_current(row) if not (turn.lapsed or is_unknown(turn))}
    busy |= {turn.validator for turn in list_current(row) if turn.verdict is not None and not is_unknown(turn)}
    return [
        each
        for each in validators
        if each not in busy and count_lapses(row, each) < MAX_LAPSES and count_unknown(row, each) < MAX_UNKNOWN
    ]


def is_unknown(turn: TurnRow) -> bool:
    return turn.verdict is not None and turn.verdict.outcome == Decision.UNKNOWN


def count_unknown(row: SubmissionRow, validator: str) -> int:
    return sum(1 for turn in list_current(row) if turn.validator == validator and is_unknown(turn))


def count_lapses(row: SubmissionRow, validator: str) -> int:
    return sum(1 for turn in list_current(row) if turn.validator == validator and turn.lapsed)


def count_free(row: SubmissionRow) -> int:
    return sum(1 for turn in list_current(row) if turn.validator is None and not turn.lapsed)


def _sort_candidates(
    params: PoolParams, row: SubmissionRow, *, validators: Sequence[Address], standing: Standing, now: float
) -> list[Address]:
    drawn = compute_turn_order(Hash(row.receipt_hash), Hash(row.draw or ""), list_candidates(row, validators))

    def is_last(address: Address) -> bool:
        known = standing.get(address)
        if known is None or known.seen_at < now - AWAY_SECONDS:
            return True
        distrust = UNRELIABLE_TURNS * params.judgement_seconds * (1 + known.contradicted)
        return known.failed_at > 0 and now - known.failed_at < distrust

    def rank(address: Address) -> tuple[int, bool, int]:
        return count_unknown(row, address), is_last(address), count_lapses(row, address)

    return sorted(drawn, key=rank)
