"""What the revealed verdicts of a submission decide.  Pure functions of its rows.

Verdicts of one kind count together: cheap checks until the submission is audited, replays from then on.  A quorum of
equal outcomes decides; unknown neither pays nor slashes.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from coordinator.db.models import JudgementRow, SubmissionRow
from covey.protocol.ids import ZERO_HASH, Hash
from covey.protocol.messages import Verdict
from covey.protocol.params import PoolParams
from covey.protocol.verdict import Decision, Reason
from covey.runtime.log import get_logger

CONFIRMING = 2
"""Validators that must agree on the cheap checks of a submission that is confirmed."""
BY_REPLAY = (Reason.TOKEN_MARGIN, Reason.PROOF, Reason.LOGPROB, Reason.FALSE_TERMINATION, Reason.INEXACT)
"""Reasons that a replay may find and cheap checks cannot be blamed for missing."""


class Ruling(NamedTuple):
    """What a quorum agreed on."""

    decision: Decision
    reason: Reason
    evidence_hash: Hash
    live_groups: int = 0
    """Groups of accepted work whose rewards are not all equal."""


UNDECIDED = Ruling(Decision.UNKNOWN, Reason.UNDECIDED, ZERO_HASH)


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
