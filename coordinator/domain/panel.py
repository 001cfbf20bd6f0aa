"""The validators of a submission: how many must judge it, and what their revealed verdicts decide.

All functions work on a submission's row with its turns, and use no database and no clock. The module
`coordinator.domain.turn_order` decides who may take a turn when.

Only verdicts of one kind count together. Before an audit is ordered, these are cheap checks with a replay of the drawn
rows. From then on, they are replays of all rows. A quorum of equal outcomes decides. The outcome unknown neither pays
nor slashes.
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
"""Maximum number of uncommitted turns that one validator may hold at once."""

CONFIRMING = 2
"""Number of validators that must agree on a confirmed submission without a whole replay."""
BY_REPLAY = (Reason.TOKEN_MARGIN, Reason.PROOF, Reason.LOGPROB, Reason.FALSE_TERMINATION, Reason.INEXACT)
"""Reasons that only a replay finds. A validator that did not replay the rows is not blamed for missing them."""


class Ruling(NamedTuple):
    """The outcome on which a quorum agreed."""

    decision: Decision
    reason: Reason
    evidence_hash: Hash
    live_groups: int = 0
    """Number of groups of an accepted submission whose rewards are not all equal."""


UNDECIDED = Ruling(Decision.UNKNOWN, Reason.UNDECIDED, ZERO_HASH)


class Decided(NamedTuple):
    """A ruling that is not applied yet."""

    row: SubmissionRow
    ruling: Ruling
    replayed: bool
    """Whether verdicts after a whole replay decided."""


class Findings(NamedTuple):
    """Result of one check of undecided submissions."""

    decided: list[Decided]
    late: list[str]
    """Validators that let a turn lapse, once for each turn."""
    passed: list[str]
    """Those among `late` whose turn was in the exact lane."""


def advance_turns(
    params: PoolParams,
    rows: Sequence[SubmissionRow],
    *,
    able: Mapping[str, Sequence[Address]],
    active: Container[str],
    due: Container[str],
    now: float,
) -> Findings:
    """End overdue turns of drawn submissions, and decide the submissions that have a quorum or cannot wait longer.

    `able` contains the validators that can judge each submission, by receipt hash, even if they lack their bond now.
    `active` contains the validators whose verdicts the court counts. `due` contains the receipt hashes of submissions
    that can wait no longer. A rejection without a whole replay only orders the replay.
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
    """Open turns until a quorum can be reached, within the pool's limit of verdicts. Return the number of new turns."""
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
    """Open turns for a hard rejection until enough active validators can sign it for the court.

    `validators` are those that can judge the submission. Overdue turns end, except those of committed validators that
    wait for another one. Returns the number of new turns.
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
    """End the turns of a submission that have no commitment."""
    for turn in row.turns:
        turn.lapsed = turn.lapsed or turn.commitment is None


def close_unrevealed(row: SubmissionRow) -> None:
    """End all unrevealed turns of a rejected submission, because no more signatures are needed."""
    for turn in row.turns:
        turn.lapsed = turn.lapsed or turn.verdict is None


def _may_open(params: PoolParams, row: SubmissionRow, validators: Sequence[Address]) -> bool:
    """Return whether another turn may be opened, and a quorum can still be reached.

    Lapsed turns do not count towards the limit of verdicts. Unknown verdicts have their own limit.
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
    """Return whether no further verdict can arrive."""
    is_waiting = any(turn.verdict is None and not turn.lapsed for turn in list_current(row))
    return not is_waiting and not _may_open(params, row, validators)


def require_replay(row: SubmissionRow) -> None:
    """Order the replay of a submission by a quorum, whatever the cheap checks found.

    Cheap verdicts stay on record and no longer count. Cheap turns that are under way end without blame, and their
    commitments are discarded.
    """
    row.audited = True
    for turn in row.turns:
        if not (turn.full or turn.lapsed) and turn.verdict is None:
            turn.lapsed, turn.commitment = True, None


def _lapse_overdue(
    params: PoolParams, row: SubmissionRow, *, validators: Sequence[Address], now: float
) -> Iterator[str]:
    """End overdue turns, and yield the validators that are to blame.

    A turn that nobody has taken stays open while any validator can take it. The turn of a validator that has committed
    and waits for others ends only when no other validator can be asked, and that validator is not blamed.
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
    """End the turns of validators that have lost their bond or their seat, even if they have revealed a verdict.

    The court would not count their verdicts, so other validators are asked.
    """
    for turn in list_current(row):
        turn.lapsed = turn.lapsed or (turn.validator is not None and turn.validator not in active)


def _is_open(params: PoolParams, row: SubmissionRow, validators: Sequence[Address]) -> bool:
    """Return whether any turn lacks its commitment, or another turn may still be opened."""
    turns = list_current(row)
    return _may_open(params, row, validators) or any(not turn.lapsed and turn.commitment is None for turn in turns)


def is_revealing(params: PoolParams, row: SubmissionRow) -> bool:
    """Return whether verdicts may be revealed: enough turns are open, and all of them have commitments.

    Before that, a validator could copy a revealed verdict.
    """
    live = [turn for turn in list_current(row) if not turn.lapsed]
    return len(live) >= get_quorum(params, row) and all(turn.commitment for turn in live)


def start_reveals(params: PoolParams, row: SubmissionRow, now: float) -> None:
    """Give all validators the same time to reveal, once the last one has committed."""
    if is_revealing(params, row):
        for turn in list_current(row):
            if turn.verdict is None and not turn.lapsed:
                turn.deadline = now + params.judgement_seconds


def take(params: PoolParams, row: SubmissionRow, turn: TurnRow, *, validator: Address, place: int, now: float) -> None:
    """Give a free turn to a validator. `place` is the result of `find_place`.

    If a validator other than the drawn one takes the turn, a second validator must confirm the work. Otherwise a fast
    or careless validator could decide alone about everything for which the others are too busy.
    """
    is_drawn = place < count_free(row)
    row.confirmed = row.confirmed or not (is_drawn or row.audited)
    turn.validator, turn.deadline = validator, now + params.judgement_seconds
    row.next_check_at = min(row.next_check_at, turn.deadline)


def get_quorum(params: PoolParams, row: SubmissionRow) -> int:
    """Return the number of validators that must agree.

    It is the pool's quorum for a whole replay, two for confirmed work, and one otherwise. It is never more than the
    pool's quorum, because a pool may have only one validator.
    """
    if row.audited:
        return params.quorum
    return min(CONFIRMING, params.quorum) if row.confirmed else 1


def count_best(row: SubmissionRow) -> int:
    """Return the size of the largest set of verdicts that agree with each other."""
    return max(_count_outcomes(row).values(), default=0)


def compute_ruling(params: PoolParams, row: SubmissionRow, *, is_over: bool) -> Ruling | None:
    """Return the outcome of a quorum, or None if there is none yet.

    If there is none and `is_over`, because no further verdict can arrive, the ruling is UNDECIDED.
    """
    for agreed, count in _count_outcomes(row).items():
        if count >= get_quorum(params, row):
            return _build_ruling(params, row, agreed)
    return UNDECIDED if is_over else None


def has_cheap_reject(row: SubmissionRow) -> bool:
    """Return whether a validator rejects work that is not replayed yet. A quorum must confirm such a rejection."""
    return not row.audited and any(outcome == Decision.REJECT for outcome, _ in _count_outcomes(row))


def _awaits_reveal(row: SubmissionRow) -> bool:
    """Return whether a committed validator may still reveal. A replay is ordered only after it has, or has lapsed."""
    return any(turn.commitment and turn.verdict is None and not turn.lapsed for turn in list_current(row))


def is_rejected(params: PoolParams, row: SubmissionRow) -> bool:
    """Return whether a quorum rejects, even if for different reasons.

    Near a limit, validators on different hardware may find different reasons for the same cheat.
    """
    outcomes = _count_outcomes(row).items()
    return sum(count for (outcome, _), count in outcomes if outcome == Decision.REJECT) >= get_quorum(params, row)


def list_contradicted(params: PoolParams, row: SubmissionRow, ruling: Ruling) -> Iterator[str]:
    """Yield the validators whose verdict, accept or reject, is the opposite of the ruling.

    A validator may have accepted without a whole replay what only a replay finds. It is contradicted only if all
    verdicts of the quorum say that the drawn rows prove the reason. A validator that committed and never revealed
    counts as having accepted, because it may have withheld its verdict after seeing that others judge as well.
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
    """Return how often each (outcome, reason) was revealed. Unknown verdicts and lapsed turns do not count."""
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
    """Return the turns that count now and whose verdicts have this outcome and reason."""
    turns = [turn for turn in list_current(row) if not turn.lapsed]
    return [turn for turn in turns if turn.verdict is not None and _get_outcome(turn.verdict) == agreed]


def compute_live_groups(params: PoolParams, row: SubmissionRow, told: Sequence[int | None]) -> int:
    """Return the number of live groups of an accepted submission: the smallest that a deciding verdict reported.

    With the smallest, fewer hostile validators than a quorum cannot pass off dead groups as live. A number that is too
    small costs only more sampling, up to the cap, and its validator has signed it.

    A verdict that reports no number counts as 0 if the pool filters by live groups, and as all groups otherwise.
    """
    if len(set(told)) > 1:
        get_logger().warning("validators disagree about live groups", task=row.task, told=list(told))
    silent = 0 if params.online_filter else row.groups
    return min((silent if count is None else count for count in told), default=silent)
