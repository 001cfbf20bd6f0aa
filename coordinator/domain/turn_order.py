"""The order of validators for a submission: which validator may take a turn, and when.

All functions work on a submission's row with its turns, and use no database and no clock. The order follows from the
drawing block (`covey.protocol.seeding.compute_turn_order`), so a validator gains nothing by being fast or asking often.
After each `turn_seconds`, a free turn is open to one more validator. Validators that are away, that recently let a turn
lapse, or that a quorum contradicted come last.
"""

from collections.abc import Mapping, Sequence

from coordinator.db.models import SubmissionRow, TurnRow, ValidatorRow
from covey.protocol.ids import Address, Hash
from covey.protocol.params import PoolParams
from covey.protocol.seeding import compute_turn_order
from covey.protocol.verdict import Decision

AWAY_SECONDS = 60.0
"""Time in seconds without a request for work after which a validator is away. A long poll lasts at most 20 s."""
UNRELIABLE_TURNS = 20
"""Number of `judgement_seconds` for which a validator comes last after a failure. Each contradiction adds as many."""
MAX_LAPSES = 4
"""Maximum number of turns at one submission that a validator may let lapse before it is no longer asked about it."""
MAX_UNKNOWN = 2
"""Maximum number of unknown verdicts of a validator about one submission. Its machine may recover after the first."""

Standing = Mapping[str, ValidatorRow]
"""The row of each validator by its address."""


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

    It may take the turn if it was drawn for it, or if the turn has waited long enough to be open to it.
    """
    candidates = _sort_candidates(params, row, validators=validators, standing=standing, now=now)
    if validator not in candidates:
        return None
    place = candidates.index(validator)
    return place if place < count_free(row) + int((now - turn.opened_at) / params.turn_seconds) else None


def list_current(row: SubmissionRow) -> list[TurnRow]:
    """Return the turns of the kind that counts now, including lapsed ones: replays of an audited submission, or else
    cheap checks.
    """
    return [judgement for judgement in row.turns if judgement.full == bool(row.audited)]


def list_candidates(row: SubmissionRow, validators: Sequence[Address]) -> list[Address]:
    """Return the validators that may still judge a submission.

    A validator judges only once, unless its first verdict is unknown. It is no longer asked after MAX_LAPSES lapsed
    turns.
    """
    busy = {turn.validator for turn in list_current(row) if not (turn.lapsed or is_unknown(turn))}
    busy |= {turn.validator for turn in list_current(row) if turn.verdict is not None and not is_unknown(turn)}
    return [
        each
        for each in validators
        if each not in busy and count_lapses(row, each) < MAX_LAPSES and count_unknown(row, each) < MAX_UNKNOWN
    ]


def is_unknown(turn: TurnRow) -> bool:
    """Return whether a turn ended with the verdict unknown."""
    return turn.verdict is not None and turn.verdict.outcome == Decision.UNKNOWN


def count_unknown(row: SubmissionRow, validator: str) -> int:
    """Return the number of a validator's unknown verdicts about a submission."""
    return sum(1 for turn in list_current(row) if turn.validator == validator and is_unknown(turn))


def count_lapses(row: SubmissionRow, validator: str) -> int:
    """Return the number of turns at a submission that a validator let lapse."""
    return sum(1 for turn in list_current(row) if turn.validator == validator and turn.lapsed)


def count_free(row: SubmissionRow) -> int:
    """Return the number of open turns at a submission that no validator has taken."""
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
