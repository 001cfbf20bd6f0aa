"""The validators of a submission: how many are asked, and what the revealed verdicts decide.

Functions of a submission's row, with its judgements; they use no database and no clock.  Who may take a turn when is
`coordinator.domain.turn_order`.

Verdicts of one kind count together: cheap checks with a replay of the drawn rows until the submission is audited, and
replays of all rows from then on.  A quorum of equal outcomes decides; unknown neither pays nor slashes.
"""

from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import NamedTuple

from coordinator.db.models import SubmissionRow, TurnRow
from coordinator.domain.turn_order import count_free, list_candidates, list_current
from covey.protocol.ids import ZERO_HASH, Address, Hash
from covey.protocol.messages import Verdict
from covey.protocol.params import PoolParams
from covey.protocol.verdict import Decision, Reason
from covey.runtime.log import get_logger

MAX_HELD = 16
"""Turns that one validator may hold at once without having committed."""

CONFIRMING = 2
"""Validators that must agree on a submission that is confirmed, without a whole replay."""
BY_REPLAY = (Reason.TOKEN_MARGIN, Reason.PROOF, Reason.LOGPROB, Reason.FALSE_TERMINATION, Reason.INEXACT)
"""Reasons that a replay finds. Whoever did not replay the rows in question cannot be blamed for missing them."""


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


class Findings(NamedTuple):
    """What one check of the undecided submissions found."""

    decided: list[Decided]
    late: list[str]
    """Validators that let a turn run out, once for each turn."""
    passed: list[str]
    """Those of them whose turn was in the exact lane."""


def advance_turns(
    params: PoolParams,
    rows: Sequence[SubmissionRow],
    *,
    able: Mapping[str, Sequence[Address]],
    active: Container[str],
    due: Container[str],
    now: float,
) -> Findings:
    """End overdue turns of drawn submissions, and decide those whose verdicts, or whose promise, allow it.

    `able`: the validators that can judge each submission, by its receipt hash, whether they have their bonds now or
    not.  `active`: all whose verdicts the court counts.  `due`: receipt hashes that can wait no longer.  A rejection
    without a whole replay condemns nobody: that submission is to be replayed.
    """
    findings = Findings([], [], [])
    for row in rows:
        if row.draw is None:
            continue
        validators = able[row.receipt_hash]
        _lapse_powerless(row, active)
        late = list(_lapse_overdue(params, row, validators=validators, now=now))
        findings.late.extend(late)
        findings.passed.extend(late if row.contract else ())
        if has_cheap_reject(row):
            if not _awaits_reveal(row):
                require_replay(row)
            continue
        is_last_word = row.receipt_hash in due or is_over(params, row, validators)
        ruling = compute_ruling(params, row, is_over=is_last_word)
        if ruling is not None:
            findings.decided.append(Decided(row, ruling, replayed=bool(row.audited)))
    return findings


def open_missing(params: PoolParams, row: SubmissionRow, *, validators: Sequence[Address], now: float) -> int:
    """Open turns until the quorum can be reached, up to the pool's bound of verdicts. Returns how many."""
    opened = 0
    pending = sum(1 for turn in list_current(row) if turn.verdict is None and not turn.lapsed)
    while pending < get_quorum(params, row) - count_best(row) and _may_open(params, row, validators):
        _open_turn(row, now)
        pending, opened = pending + 1, opened + 1
    return opened


def open_signing(
    params: PoolParams,
    row: SubmissionRow,
    *,
    validators: Sequence[Address],
    active: Container[str],
    now: float,
) -> int:
    """Open turns for a hard rejection until as many active validators have signed it as the court asks for.

    `validators`: those that can judge it.  Turns that took too long end, but not while a committed validator waits for
    another one.  Returns how many were opened.
    """
    is_shown = is_revealing(params, row)
    for turn in list_current(row):
        is_due = turn.commitment is None or is_shown
        is_overdue = turn.validator is not None and turn.verdict is None and turn.deadline <= now
        turn.lapsed = turn.lapsed or (is_due and is_overdue)
    turns = [turn for turn in list_current(row) if not turn.lapsed]
    signed = sum(
        1
        for turn in turns
        if turn.verdict is not None
        and _get_outcome(turn.verdict) == (Decision.REJECT, row.reason)
        and turn.validator in active
        and turn.verdict.deadline > now
    )
    pending = sum(1 for turn in turns if turn.verdict is None)
    missing = min(params.quorum - signed, len(list_candidates(row, validators))) - pending
    for _ in range(missing):
        _open_turn(row, now)
    return max(0, missing)


def _open_turn(row: SubmissionRow, now: float) -> None:
    opened = TurnRow(receipt_hash=row.receipt_hash, full=bool(row.audited), opened_at=now)
    opened.lapsed, opened.deadline, opened.drawn_rows_false, opened.drew_other_rows = False, 0.0, False, False
    row.turns.append(opened)


def close_uncommitted(row: SubmissionRow) -> None:
    """End the turns of a submission without a commitment, so that nobody holds them any more."""
    for turn in row.turns:
        turn.lapsed = turn.lapsed or turn.commitment is None


def close_unrevealed(row: SubmissionRow) -> None:
    """End all turns of a rejected submission that are under way: no more signatures are needed."""
    for turn in row.turns:
        turn.lapsed = turn.lapsed or turn.verdict is None


def _may_open(params: PoolParams, row: SubmissionRow, validators: Sequence[Address]) -> bool:
    """Whether one more validator may be asked, with a quorum still within reach.

    A lapsed turn is not a verdict, and an unknown takes no other verdict's place: it has a bound of its own.
    """
    turns, left = list_current(row), len(list_candidates(row, validators))
    verdicts = [turn.verdict for turn in turns if turn.verdict is not None]
    unknown = sum(1 for verdict in verdicts if verdict.outcome == Decision.UNKNOWN)
    spoken = max(unknown, len(verdicts) - unknown)
    free = sum(1 for turn in turns if turn.validator is None and not turn.lapsed)
    taken = sum(1 for turn in turns if turn.validator is not None and turn.verdict is None and not turn.lapsed)
    is_reachable = count_best(row) + taken + left >= get_quorum(params, row)
    return is_reachable and spoken < params.max_judgements and left > free


def is_over(params: PoolParams, row: SubmissionRow, validators: Sequence[Address]) -> bool:
    """Whether no further verdict can come."""
    is_waiting = any(turn.verdict is None and not turn.lapsed for turn in list_current(row))
    return not is_waiting and not _may_open(params, row, validators)


def require_replay(row: SubmissionRow) -> None:
    """Have a submission judged by a quorum, with a replay, whatever was said of it without one.

    Cheap verdicts stay on record and count no more; cheap turns under way end without blame, and nothing follows from
    their commitments.
    """
    row.audited = True
    for turn in row.turns:
        if not (turn.full or turn.lapsed) and turn.verdict is None:
            turn.lapsed, turn.commitment = True, None


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
            turn.lapsed = not list_candidates(row, validators)
        elif turn.deadline > now:
            continue
        elif turn.commitment is not None and not was_revealing:
            turn.lapsed = not _is_open(params, row, validators)
        else:
            turn.lapsed = True
            yield turn.validator
    if not was_revealing:
        start_reveals(params, row, now)


def _lapse_powerless(row: SubmissionRow, active: Container[str]) -> None:
    """End the turns of validators that have lost their bond or their seat, and with them what they revealed.

    The court would not count it, so another validator is asked.
    """
    for turn in list_current(row):
        turn.lapsed = turn.lapsed or (turn.validator is not None and turn.validator not in active)


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


def take(params: PoolParams, row: SubmissionRow, turn: TurnRow, *, validator: Address, place: int, now: float) -> None:
    """Give a free turn to a validator. `place` is that of `find_place`.

    Work that goes to another validator than the drawn one is confirmed. Otherwise one that is fast, or does not check
    at all, would decide alone about everything that the others are too busy for.
    """
    is_drawn = place < count_free(row)
    row.confirmed = row.confirmed or not (is_drawn or row.audited)
    turn.validator, turn.deadline = validator, now + params.judgement_seconds
    row.next_check_at = min(row.next_check_at, turn.deadline)


def get_quorum(params: PoolParams, row: SubmissionRow) -> int:
    """Validators that must agree: the pool's quorum on a whole replay, else one, or two where work is confirmed.

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
    """Whether a validator rejects work that no quorum replays yet: no single one condemns, so a quorum is asked."""
    return not row.audited and any(outcome == Decision.REJECT for outcome, _ in _count_outcomes(row))


def _awaits_reveal(row: SubmissionRow) -> bool:
    """Whether a validator that has committed may still reveal; before a replay is ordered it does, or it lapses."""
    return any(turn.commitment and turn.verdict is None and not turn.lapsed for turn in list_current(row))


def is_rejected(params: PoolParams, row: SubmissionRow) -> bool:
    """Whether a quorum rejects, if for different reasons: a cheat may stand where validators' numbers part."""
    outcomes = _count_outcomes(row).items()
    return sum(count for (outcome, _), count in outcomes if outcome == Decision.REJECT) >= get_quorum(params, row)


def list_contradicted(params: PoolParams, row: SubmissionRow, ruling: Ruling) -> Iterator[str]:
    """Validators that said accept or reject where the ruling is the opposite.

    One that accepted without a whole replay what only a replay finds is contradicted only if all verdicts of the
    quorum say that the drawn rows show it.  One that committed and never revealed is taken to have accepted what a
    quorum rejects: it may have seen that others judge as well.
    """
    is_in_rows = params.verification.audit_rows > 0 and all(
        turn.drawn_rows_false and not turn.drew_other_rows
        for turn in _list_agreed(row, (ruling.decision, ruling.reason))
    )
    opposite = {Decision.ACCEPT: Decision.REJECT, Decision.REJECT: Decision.ACCEPT}.get(ruling.decision)
    for judgement in row.turns:
        if judgement.validator is None or judgement.commitment is None:
            continue
        said = Decision.ACCEPT if judgement.verdict is None else judgement.verdict.outcome
        if said == opposite and (
            judgement.full
            or ruling.decision is Decision.ACCEPT
            or ruling.reason not in BY_REPLAY
            or (is_in_rows and not judgement.drew_other_rows)
        ):
            yield judgement.validator


def _count_outcomes(row: SubmissionRow) -> Counter[tuple[int, int]]:
    """How often each (outcome, reason) was revealed; unknown is not counted, nor is what has lapsed."""
    verdicts = [turn.verdict for turn in list_current(row) if turn.verdict is not None and not turn.lapsed]
    return Counter(_get_outcome(verdict) for verdict in verdicts if verdict.outcome != Decision.UNKNOWN)


def _get_outcome(verdict: Verdict) -> tuple[int, int]:
    return verdict.outcome, verdict.reason


def _build_ruling(params: PoolParams, row: SubmissionRow, agreed: tuple[int, int]) -> Ruling:
    outcome, reason = agreed
    turns = _list_agreed(row, agreed)
    evidence_hash = next(turn.verdict.evidence_hash for turn in turns if turn.verdict is not None)
    live = compute_live_groups(params, row, [turn.live_groups for turn in turns]) if outcome == Decision.ACCEPT else 0
    return Ruling(Decision(outcome), Reason(reason), evidence_hash, live)


def _list_agreed(row: SubmissionRow, agreed: tuple[int, int]) -> list[TurnRow]:
    """Judgements of the kind that counts now whose verdicts have this outcome and reason."""
    turns = [turn for turn in list_current(row) if not turn.lapsed]
    return [turn for turn in turns if turn.verdict is not None and _get_outcome(turn.verdict) == agreed]


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
