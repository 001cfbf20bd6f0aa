"""The validators of a submission: who may judge it, whose turn it is, and what the revealed verdicts decide.

Functions of a submission's row, with its judgements; they use no database and no clock.

The order of turns follows from the drawing block (`covey.protocol.seeding.compute_turn_order`), so no validator gains
by being fast or by asking often.  After each `turn_seconds` a turn that nobody took is open to one more validator.
Asked last: validators that are away, that let a turn lapse lately, or that a quorum contradicted.

Verdicts of one kind count together: cheap checks until the submission is audited, replays from then on.  A quorum of
equal outcomes decides; unknown neither pays nor slashes.
"""

from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import NamedTuple

from coordinator.db.models import JudgementRow, SubmissionRow, ValidatorRow
from covey.protocol.ids import ZERO_HASH, Address, Hash
from covey.protocol.messages import Verdict
from covey.protocol.params import PoolParams
from covey.protocol.seeding import compute_turn_order
from covey.protocol.verdict import Decision, Reason
from covey.runtime.log import get_logger

AWAY_SECONDS = 60.0
"""A validator that has not asked for work for this long is away.  A long poll lasts 20 s at most."""
UNRELIABLE_TURNS = 20
"""A validator that failed is asked last for this many times `judgement_seconds`, and longer with each contradiction."""
MOST_LAPSES = 4
"""Turns of one submission that one validator may let lapse; after these it is not asked about it any more."""
MOST_HELD = 16
"""Turns that one validator may hold at once without having committed."""

CONFIRMING = 2
"""Validators that must agree on the cheap checks of a submission that is confirmed."""
BY_REPLAY = (Reason.TOKEN_MARGIN, Reason.PROOF, Reason.LOGPROB, Reason.FALSE_TERMINATION, Reason.INEXACT)
"""Reasons that a replay may find and cheap checks cannot be blamed for missing."""

Standing = Mapping[str, ValidatorRow]
"""What is known of each validator by its address."""


class Ruling(NamedTuple):
    """What a quorum agreed on."""

    decision: Decision
    reason: Reason
    evidence_hash: Hash
    live_groups: int = 0
    """Groups of accepted work whose rewards are not all equal."""


UNDECIDED = Ruling(Decision.UNKNOWN, Reason.UNDECIDED, ZERO_HASH)


class Decided(NamedTuple):
    """A ruling that is not applied yet."""

    row: SubmissionRow
    ruling: Ruling
    replayed: bool
    """Whether verdicts after a replay decided it."""


class Look(NamedTuple):
    """What one look at the undecided submissions found."""

    decided: list[Decided]
    late: list[str]
    """Validators that let a turn run out, once for each turn."""


def advance_turns(
    params: PoolParams,
    rows: Sequence[SubmissionRow],
    *,
    validators: Sequence[Address],
    due: Container[str],
    now: float,
) -> Look:
    """End overdue turns of drawn submissions, and decide those whose verdicts, or whose promise, allow it.

    `due`: receipt hashes that can wait no longer.  A rejection by cheap checks alone condemns nobody: that submission
    is to be replayed.
    """
    look = Look([], [])
    for row in rows:
        if row.draw is None:
            continue
        look.late.extend(_lapse_overdue(params, row, validators=validators, now=now))
        if has_cheap_reject(row):
            order_replay(row)
            continue
        is_last_word = row.receipt_hash in due or is_over(params, row, validators)
        ruling = compute_ruling(params, row, is_over=is_last_word)
        if ruling is not None:
            look.decided.append(Decided(row, ruling, replayed=bool(row.audited)))
    return look


def open_missing(params: PoolParams, row: SubmissionRow, *, validators: Sequence[Address], now: float) -> int:
    """Open turns until the quorum can be reached, up to the pool's bound of verdicts. Returns how many."""
    opened = 0
    pending = sum(1 for turn in list_current(row) if turn.verdict is None and not turn.lapsed)
    while pending < get_quorum(params, row) - count_best(row) and _may_open(params, row, validators):
        turn = JudgementRow(
            receipt_hash=row.receipt_hash, full=bool(row.audited), lapsed=False, opened_at=now, deadline=0.0
        )
        row.judgements.append(turn)
        pending, opened = pending + 1, opened + 1
    return opened


def _may_open(params: PoolParams, row: SubmissionRow, validators: Sequence[Address]) -> bool:
    """Whether one more validator may be asked, with a quorum still within reach.  A lapsed turn is not a verdict."""
    turns, left = list_current(row), len(_list_candidates(row, validators))
    spoken = sum(1 for turn in turns if turn.verdict is not None)
    free = sum(1 for turn in turns if turn.validator is None and not turn.lapsed)
    taken = sum(1 for turn in turns if turn.validator is not None and turn.verdict is None and not turn.lapsed)
    is_reachable = count_best(row) + taken + left >= get_quorum(params, row)
    return is_reachable and spoken < params.max_judgements and left > free


def _list_candidates(row: SubmissionRow, validators: Sequence[Address]) -> list[Address]:
    """Validators that may still judge: nobody judges twice, and nobody lets turns lapse for ever."""
    turns = list_current(row)
    busy = {turn.validator for turn in turns if not turn.lapsed}
    return [each for each in validators if each not in busy and _count_lapses(row, each) < MOST_LAPSES]


def _count_lapses(row: SubmissionRow, validator: str) -> int:
    return sum(1 for turn in list_current(row) if turn.validator == validator and turn.lapsed)


def is_over(params: PoolParams, row: SubmissionRow, validators: Sequence[Address]) -> bool:
    """Whether no further verdict can come."""
    is_waiting = any(turn.verdict is None and not turn.lapsed for turn in list_current(row))
    return not is_waiting and not _may_open(params, row, validators)


def order_replay(row: SubmissionRow) -> None:
    """Have a submission judged by a quorum, with a replay, whatever was said of it without one.

    Cheap verdicts stay on record and count no more; cheap turns under way end without blame.
    """
    row.audited = True
    for turn in row.judgements:
        turn.lapsed = turn.lapsed or (not turn.full and turn.verdict is None)


def _lapse_overdue(
    params: PoolParams, row: SubmissionRow, *, validators: Sequence[Address], now: float
) -> Iterator[str]:
    """End the turns that took too long; yield the validators that are to blame for one.

    A turn that nobody has taken waits, unless nobody is left to take it.  A validator that committed and waits for
    others is late only when nobody else can be asked any more; it is not to blame then.
    """
    was_revealing = is_revealing(params, row)
    for turn in list_current(row):
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
            yield turn.validator
    if not was_revealing:
        start_reveals(params, row, now)


def _is_open(params: PoolParams, row: SubmissionRow, validators: Sequence[Address]) -> bool:
    """Whether a turn is under way without a commitment, or may still begin."""
    turns = list_current(row)
    return _may_open(params, row, validators) or any(not turn.lapsed and turn.commitment is None for turn in turns)


def is_revealing(params: PoolParams, row: SubmissionRow) -> bool:
    """Whether every turn under way has a commitment, so that nobody can copy."""
    live = [turn for turn in list_current(row) if not turn.lapsed]
    return len(live) >= get_quorum(params, row) and all(turn.commitment for turn in live)


def start_reveals(params: PoolParams, row: SubmissionRow, now: float) -> None:
    """With the last commitment the time to reveal begins, for all alike."""
    if is_revealing(params, row):
        for turn in list_current(row):
            if turn.verdict is None and not turn.lapsed:
                turn.deadline = now + params.judgement_seconds


def find_place(
    params: PoolParams,
    row: SubmissionRow,
    turn: JudgementRow,
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
    return place if place < _count_free(row) + int((now - turn.opened_at) / params.turn_seconds) else None


def take(
    params: PoolParams, row: SubmissionRow, turn: JudgementRow, *, validator: Address, place: int, now: float
) -> None:
    """Give a free turn to a validator. `place` is that of `find_place`.

    Work that goes to another validator than the drawn one is confirmed. Otherwise one that is fast, or does not check
    at all, would decide alone about everything that the others are too busy for.
    """
    is_drawn = place < _count_free(row)
    row.confirmed = row.confirmed or not (is_drawn or row.audited)
    turn.validator, turn.deadline = validator, now + params.judgement_seconds
    row.look_at = min(row.look_at, turn.deadline)


def _count_free(row: SubmissionRow) -> int:
    return sum(1 for turn in list_current(row) if turn.validator is None and not turn.lapsed)


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


def list_current(row: SubmissionRow) -> list[JudgementRow]:
    """Judgements of the kind that counts now, lapsed ones included."""
    return [judgement for judgement in row.judgements if judgement.full == bool(row.audited)]


def get_quorum(params: PoolParams, row: SubmissionRow) -> int:
    """Validators that must agree: the pool's quorum on a replay, one on cheap checks, two where these are confirmed.

    Never more than the pool's quorum: a pool may have no second validator.
    """
    if row.audited:
        return params.quorum
    return min(CONFIRMING, params.quorum) if row.confirmed else 1


def count_best(row: SubmissionRow) -> int:
    """Verdicts that agree with each other, of the largest such set."""
    return max(_count_outcomes(row).values(), default=0)


def compute_ruling(params: PoolParams, row: SubmissionRow, *, is_over: bool) -> Ruling | None:
    """A quorum's outcome; UNDECIDED when there is none and `is_over`, as no further verdict can come; None before."""
    for agreed, count in _count_outcomes(row).items():
        if count >= get_quorum(params, row):
            return _build_ruling(params, row, agreed)
    return UNDECIDED if is_over else None


def has_cheap_reject(row: SubmissionRow) -> bool:
    """Whether a validator rejects work that is not replayed yet: no single one condemns, so a quorum is asked."""
    return not row.audited and any(outcome == Decision.REJECT for outcome, _ in _count_outcomes(row))


def is_rejected(params: PoolParams, row: SubmissionRow) -> bool:
    """Whether a quorum rejects, if for different reasons: a cheat may stand where validators' numbers part."""
    outcomes = _count_outcomes(row).items()
    return sum(count for (outcome, _), count in outcomes if outcome == Decision.REJECT) >= get_quorum(params, row)


def list_contradicted(row: SubmissionRow, ruling: Ruling) -> Iterator[str]:
    """Validators that said accept or reject where the ruling is the opposite.

    One that accepted on cheap checks what only a replay could find is not contradicted.  One that committed and never
    revealed is taken to have accepted what a quorum rejects: it may have seen that others judge as well.
    """
    opposite = {Decision.ACCEPT: Decision.REJECT, Decision.REJECT: Decision.ACCEPT}.get(ruling.decision)
    for judgement in row.judgements:
        if judgement.validator is None or judgement.commitment is None:
            continue
        said = Decision.ACCEPT if judgement.verdict is None else judgement.verdict.outcome
        if said == opposite and (
            judgement.full or ruling.decision is Decision.ACCEPT or ruling.reason not in BY_REPLAY
        ):
            yield judgement.validator


def _count_outcomes(row: SubmissionRow) -> Counter[tuple[int, int]]:
    """How often each (outcome, reason) was revealed; unknown is not counted."""
    verdicts = [judgement.verdict for judgement in list_current(row) if judgement.verdict is not None]
    return Counter(_get_outcome(verdict) for verdict in verdicts if verdict.outcome != Decision.UNKNOWN)


def _get_outcome(verdict: Verdict) -> tuple[int, int]:
    return verdict.outcome, verdict.reason


def _build_ruling(params: PoolParams, row: SubmissionRow, agreed: tuple[int, int]) -> Ruling:
    outcome, reason = agreed
    found = [
        (judgement.verdict, judgement.live_groups)
        for judgement in list_current(row)
        if judgement.verdict and _get_outcome(judgement.verdict) == agreed
    ]
    evidence_hash = found[0][0].evidence_hash
    live = compute_live_groups(params, row, [count for _, count in found]) if outcome == Decision.ACCEPT else 0
    return Ruling(Decision(outcome), Reason(reason), evidence_hash, live)


def compute_live_groups(params: PoolParams, row: SubmissionRow, told: Sequence[int | None]) -> int:
    """Live groups of an accepted submission, by the words of the verdicts that decided it: the smallest, so that fewer
    hostile validators than the quorum never pass dead work for live.  Too small a word costs sampling, up to the cap,
    and stands under its validator's signature.

    Without a word a submission counts nothing where the filter goes by it, and whole where it does not.
    """
    if len(set(told)) > 1:
        get_logger().warning("validators differ about live groups", task=row.task, told=list(told))
    silent = 0 if params.online_filter else row.groups
    return min((silent if count is None else count for count in told), default=silent)
