"""Whose turn it is to judge: turns are opened for a submission, taken by validators in a drawn order, and may lapse.

The order follows from the drawing block (`covey.protocol.seeding.compute_turn_order`), so no validator gains by being
fast or by asking often.  After each `turn_seconds` a turn that nobody took is open to one more validator.  Asked last:
validators that are away, that let a turn lapse lately, or that a quorum contradicted.
"""

from collections.abc import Mapping, Sequence

from coordinator.db.models import JudgementRow, SubmissionRow, ValidatorRow
from coordinator.db.repository import Repository
from coordinator.domain import ruling
from covey.protocol.ids import Address, Hash
from covey.protocol.params import PoolParams
from covey.protocol.seeding import compute_turn_order

AWAY_SECONDS = 60.0
"""A validator that has not asked for work for this long is away.  A long poll lasts 20 s at most."""
UNRELIABLE_TURNS = 20
"""A validator that failed is asked last for this many times `judgement_seconds`, and longer with each contradiction."""
MOST_LAPSES = 4
"""Turns of one submission that one validator may let lapse; after these it is not asked about it any more."""
MOST_HELD = 16
"""Turns that one validator may hold at once without having committed."""

Standing = Mapping[str, ValidatorRow]
"""What is known of each validator by its address."""


def open_missing(
    repository: Repository, params: PoolParams, row: SubmissionRow, *, validators: Sequence[Address], now: float
) -> None:
    """Open turns until the quorum can be reached, up to the pool's bound of verdicts."""
    pending = sum(1 for turn in ruling.list_current(row) if turn.verdict is None and not turn.lapsed)
    while pending < ruling.get_quorum(params, row) - ruling.count_best(row) and _may_open(params, row, validators):
        turn = JudgementRow(receipt_hash=row.receipt_hash, full=bool(row.audited), lapsed=False, opened_at=now)
        repository.add(turn)
        row.judgements.append(turn)
        pending += 1


def _may_open(params: PoolParams, row: SubmissionRow, validators: Sequence[Address]) -> bool:
    """Whether one more validator may be asked, with a quorum still within reach.  A lapsed turn is not a verdict."""
    turns, left = ruling.list_current(row), len(_list_candidates(row, validators))
    spoken = sum(1 for turn in turns if turn.verdict is not None)
    free = sum(1 for turn in turns if turn.validator is None and not turn.lapsed)
    taken = sum(1 for turn in turns if turn.validator is not None and turn.verdict is None and not turn.lapsed)
    is_reachable = ruling.count_best(row) + taken + left >= ruling.get_quorum(params, row)
    return is_reachable and spoken < params.max_judgements and left > free


def _list_candidates(row: SubmissionRow, validators: Sequence[Address]) -> list[Address]:
    """Validators that may still judge: nobody judges twice, and nobody lets turns lapse for ever."""
    turns = ruling.list_current(row)
    busy = {turn.validator for turn in turns if not turn.lapsed}
    return [each for each in validators if each not in busy and _count_lapses(row, each) < MOST_LAPSES]


def _count_lapses(row: SubmissionRow, validator: str) -> int:
    return sum(1 for turn in ruling.list_current(row) if turn.validator == validator and turn.lapsed)


def is_over(params: PoolParams, row: SubmissionRow, validators: Sequence[Address]) -> bool:
    """Whether no further verdict can come."""
    is_waiting = any(turn.verdict is None and not turn.lapsed for turn in ruling.list_current(row))
    return not is_waiting and not _may_open(params, row, validators)


def order_replay(row: SubmissionRow) -> None:
    """Have a submission judged by a quorum, with a replay, whatever was said of it without one.

    Cheap verdicts stay on record and count no more; cheap turns under way end without blame.
    """
    row.audited = True
    for turn in row.judgements:
        turn.lapsed = turn.lapsed or (not turn.full and turn.verdict is None)


def lapse_overdue(
    repository: Repository, params: PoolParams, row: SubmissionRow, *, validators: Sequence[Address], now: float
) -> None:
    """End the turns that took too long, and count them against their validators.

    A turn that nobody has taken waits, unless nobody is left to take it.  A validator that committed and waits for
    others is late only when nobody else can be asked any more; it is not to blame then.
    """
    was_revealing = is_revealing(params, row)
    for turn in ruling.list_current(row):
        if turn.verdict is not None or turn.lapsed:
            continue
        if turn.validator is None:
            turn.lapsed = not _list_candidates(row, validators)
        elif turn.deadline > now:
            continue
        elif turn.commitment is not None and not was_revealing:
            turn.lapsed = not _is_open(params, row, validators)
        else:
            turn.lapsed = True
            standing = repository.require_validator(turn.validator)
            standing.lapsed, standing.failed_at = standing.lapsed + 1, now
    if not was_revealing:
        start_reveals(params, row, now)


def _is_open(params: PoolParams, row: SubmissionRow, validators: Sequence[Address]) -> bool:
    """Whether a turn is under way without a commitment, or may still begin."""
    turns = ruling.list_current(row)
    return _may_open(params, row, validators) or any(not turn.lapsed and turn.commitment is None for turn in turns)


def is_revealing(params: PoolParams, row: SubmissionRow) -> bool:
    """Whether every turn under way has a commitment, so that nobody can copy."""
    live = [turn for turn in ruling.list_current(row) if not turn.lapsed]
    return len(live) >= ruling.get_quorum(params, row) and all(turn.commitment for turn in live)


def start_reveals(params: PoolParams, row: SubmissionRow, now: float) -> None:
    """With the last commitment the time to reveal begins, for all alike."""
    if is_revealing(params, row):
        for turn in ruling.list_current(row):
            if turn.verdict is None and not turn.lapsed:
                turn.deadline = now + params.judgement_seconds


def take(
    params: PoolParams,
    row: SubmissionRow,
    turn: JudgementRow,
    *,
    validator: Address,
    validators: Sequence[Address],
    standing: Standing,
    now: float,
) -> bool:
    """Give a free turn to `validator` if it is its own by the drawn order, or has waited long enough; return whether.

    Work that goes to another validator than the drawn one is confirmed.  Otherwise who is fast, or does not check at
    all, would decide alone about everything that the others are too busy for.
    """
    candidates = _sort_candidates(params, row, validators=validators, standing=standing, now=now)
    if validator not in candidates:
        return False
    place = candidates.index(validator)
    free = sum(1 for each in ruling.list_current(row) if each.validator is None and not each.lapsed)
    if place >= free + int((now - turn.opened_at) / params.turn_seconds):
        return False
    row.confirmed = row.confirmed or (place >= free and not row.audited)
    turn.validator, turn.deadline = validator, now + params.judgement_seconds
    return True


def _sort_candidates(
    params: PoolParams, row: SubmissionRow, *, validators: Sequence[Address], standing: Standing, now: float
) -> list[Address]:
    drawn = compute_turn_order(Hash(row.receipt_hash), Hash(row.draw or ""), _list_candidates(row, validators))

    def is_last(address: Address) -> bool:
        known = standing.get(address)
        if known is None or known.seen_at < now - AWAY_SECONDS:
            return True
        distrust = UNRELIABLE_TURNS * params.judgement_seconds * (1 + known.contradicted)
        return known.failed_at > 0 and now - known.failed_at < distrust

    return sorted(drawn, key=lambda address: (is_last(address), _count_lapses(row, address)))
