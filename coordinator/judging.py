"""How submissions are judged: audits drawn, judgements opened, verdicts committed, revealed and tallied.

Called by `api` (validators) and `queue`.  A quorum of equal outcomes decides; unknown neither pays nor slashes.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import NamedTuple

from coordinator import batches, service
from coordinator.db import Repository
from coordinator.models import Judgement, Submission
from covey.errors import ProtocolError
from covey.protocol import messages
from covey.protocol.canaries import CanaryKind
from covey.protocol.ids import Hash
from covey.protocol.params import PoolParams
from covey.protocol.seeding import is_audited
from covey.protocol.status import SUBMISSION_MOVES, SubmissionState, require_move
from covey.protocol.verdict import Decision, Reason, Severity

DRAW_BLOCKS = 2
"""The drawing block is so many blocks after the one named in the countersignature: neither side knows it."""


TURNS_FOR_ONE = 4
"""Turns of one submission, lapsed ones included, are at most so many times the pool's `max_judgements`."""
MIN_VERDICT_SECONDS = 3600
"""A verdict must stay valid long enough to be brought to the court."""
OURS = (Reason.UNDECIDED, Reason.CANARY)
"""Reasons that no validator gives and no node is blamed for."""


class Ruling(NamedTuple):
    """What a quorum agreed on."""

    decision: Decision
    reason: Reason
    units: int
    evidence_hash: Hash
    live_groups: int = 0
    """Of accepted work."""


def draw_audit(
    repository: Repository, params: PoolParams, row: Submission, block_hash: Callable[[int], Hash | None]
) -> bool | None:
    """Whether a submission is replayed; None while its drawing block does not exist.

    A newcomer is replayed fully, strikes raise the rate, and a certain draw needs no block.  A canary waits for its
    block like other work, and is then replayed: who accepts it without has no excuse.
    """
    node = service.require_node(repository, row.node)
    rules = params.verification
    rate = min(1.0, rules.audit_rate * (1 + node.strikes))
    if rate >= 1.0 or node.accepted < rules.newcomer_submissions:
        return True
    drawn_by = block_hash(row.block_number + DRAW_BLOCKS)
    if drawn_by is None:
        return None
    return row.canary != CanaryKind.ORDINARY or is_audited(Hash(row.receipt_hash), drawn_by, rate)


def dispatch(
    repository: Repository,
    params: PoolParams,
    *,
    validators: int,
    block_hash: Callable[[int], Hash | None],
    now: float,
) -> None:
    """Draw audits, open the judgements that are missing, lapse those that took too long.  Called by Celery only."""
    for row in repository.list_submissions(SubmissionState.SUBMITTED):
        if row.audited is None:
            row.audited = draw_audit(repository, params, row, block_hash)
        if row.audited is None:
            continue
        _lapse_overdue(params, row, validators, now)
        _open_missing(repository, params, row, validators, now)
        tally(repository, params, row, validators=validators, now=now)


def _lapse_overdue(params: PoolParams, row: Submission, validators: int, now: float) -> None:
    """End the turns that took too long.

    A turn that nobody took is late only when somebody waits for it; who has committed and waits for others is late only
    when nobody else can be asked any more.
    """
    was_revealing = is_revealing(params, row)
    is_waited_for = any(j.commitment and not j.lapsed for j in row.judgements)
    for judgement in row.judgements:
        if judgement.verdict is not None or judgement.lapsed or judgement.deadline > now:
            continue
        if judgement.validator is None:
            judgement.lapsed = is_waited_for
        elif judgement.commitment and not was_revealing:
            judgement.lapsed = not is_open(params, row, validators)
        else:
            judgement.lapsed = True
    if not was_revealing:
        _start_reveals(params, row, now)


def _start_reveals(params: PoolParams, row: Submission, now: float) -> None:
    """With the last commitment the time to reveal begins, for all alike."""
    if is_revealing(params, row):
        for judgement in row.judgements:
            if judgement.verdict is None and not judgement.lapsed:
                judgement.deadline = now + params.judgement_seconds


def _open_missing(repository: Repository, params: PoolParams, row: Submission, validators: int, now: float) -> None:
    """Keep so many judgements under way that the quorum can still be reached, up to the pool's bound."""
    needed = get_quorum(params, row)
    best = max(_count_outcomes(row).values(), default=0)
    pending = sum(1 for j in row.judgements if j.verdict is None and not j.lapsed)
    while pending < needed - best and _may_open(params, row, validators):
        deadline = now + params.judgement_seconds
        judgement = Judgement(receipt_hash=row.receipt_hash, lapsed=False, deadline=deadline)
        repository.add(judgement)
        row.judgements.append(judgement)
        pending += 1


def _may_open(params: PoolParams, row: Submission, validators: int) -> bool:
    """Whether another turn may begin: verdicts and turns are bounded, nobody judges twice.  A turn that lapsed is no
    verdict: an outage must not use up the validators."""
    spoken = sum(1 for j in row.judgements if j.verdict is not None)
    taken = sum(1 for j in row.judgements if not j.lapsed)
    turns = len(row.judgements)
    return spoken < params.max_judgements and taken < validators and turns < TURNS_FOR_ONE * params.max_judgements


def is_open(params: PoolParams, row: Submission, validators: int) -> bool:
    """Whether a turn is under way without a commitment, or may still begin."""
    return _may_open(params, row, validators) or any(not j.lapsed and not j.commitment for j in row.judgements)


def get_quorum(params: PoolParams, row: Submission) -> int:
    """Undrawn submissions need one validator's cheap checks."""
    return params.quorum if row.audited else 1


def claim_judgement(
    repository: Repository, params: PoolParams, *, validator: str, now: float
) -> tuple[str, Judgement] | None:
    """The next order for a validator: ("reveal", ...) when all commitments are in, else ("judge", ...).

    A judgement that it holds and has not committed to is offered again, on the same clock: an answer may be lost, and
    a validator may be restarted.
    """
    held: Judgement | None = None
    free: Judgement | None = None
    for judgement in repository.list_open_judgements():
        row = repository.get_submission(judgement.receipt_hash)
        if row is None:
            continue
        if judgement.validator == validator:
            if judgement.commitment is None:
                held = held or judgement
            elif is_revealing(params, row):
                return "reveal", judgement
        elif free is None and judgement.validator is None and not _has_judged(row, validator):
            free = judgement
    if held is not None:
        return "judge", held
    if free is None:
        return None
    free.validator, free.deadline = validator, now + params.judgement_seconds
    return "judge", free


def _has_judged(row: Submission, validator: str) -> bool:
    """Whether a validator has had its turn; one that lapsed may be asked again."""
    return any(j.validator == validator and not j.lapsed for j in row.judgements)


def is_revealing(params: PoolParams, row: Submission) -> bool:
    """Whether every judgement under way has committed, so that nobody can copy."""
    live = [j for j in row.judgements if not j.lapsed]
    return len(live) >= get_quorum(params, row) and all(j.commitment for j in live)


def record_commit(
    repository: Repository, params: PoolParams, *, validator: str, judgement: int, commitment: Hash, now: float
) -> Submission:
    """Note a commitment; the same one again is no error.  Raises ProtocolError "already_committed"."""
    row = _require_turn(repository, validator, judgement)
    if row.commitment not in (None, commitment):
        raise ProtocolError("already_committed", "another commitment was given", status=409)
    submission = _require_submission(repository, row)
    if row.commitment is None:
        row.commitment = commitment
        _start_reveals(params, submission, now)
    return submission


def record_reveal(
    repository: Repository,
    params: PoolParams,
    *,
    judgement: int,
    verdict: messages.Verdict,
    digest: Hash,
    salt: Hash,
    signature: str,
    live_groups: int | None,
    now: float,
) -> Submission:
    """Note a revealed verdict and what its evidence says of live groups.

    Raises ProtocolError "commitment_mismatch", "not_yet", "bad_verdict".
    """
    row = _require_turn(repository, verdict.validator, judgement)
    submission = _require_submission(repository, row)
    if row.commitment != messages.compute_commitment(digest, salt):
        raise ProtocolError("commitment_mismatch", "verdict and salt are not what was committed", status=409)
    if not is_revealing(params, submission):
        raise ProtocolError("not_yet", "not all validators have committed", status=409)
    _require_verdict(submission, verdict, now)
    row.verdict, row.signature, row.live_groups = messages.to_dict(verdict), signature, live_groups
    return submission


def _require_verdict(row: Submission, verdict: messages.Verdict, now: float) -> None:
    if (verdict.receipt_hash, verdict.work_key) != (row.receipt_hash, row.work_key):
        raise ProtocolError("bad_verdict", "the verdict is about another submission")
    if verdict.deadline < now + MIN_VERDICT_SECONDS:
        raise ProtocolError("bad_verdict", "the verdict expires before a court would hear it")
    try:
        reason = Reason(verdict.reason)
    except ValueError as error:
        raise ProtocolError("bad_verdict", f"there is no reason {verdict.reason}") from error
    rejects = verdict.outcome == Decision.REJECT
    if reason.severity != verdict.severity or rejects == (reason is Reason.NONE) or reason in OURS:
        raise ProtocolError("bad_verdict", "outcome, reason and severity do not fit each other")
    if verdict.units > (row.receipt_units if verdict.outcome == Decision.ACCEPT else 0):
        raise ProtocolError("bad_verdict", "more units than the receipt claims")


def _require_turn(repository: Repository, validator: str, judgement: int) -> Judgement:
    row = repository.get_judgement(judgement)
    if row is None or row.validator != validator:
        raise ProtocolError("not_your_judgement", f"judgement {judgement} is not that of {validator}", status=403)
    if row.lapsed:
        raise ProtocolError("judgement_lapsed", "the judgement took too long", status=409)
    return row


def _require_submission(repository: Repository, judgement: Judgement) -> Submission:
    row = repository.get_submission(judgement.receipt_hash)
    if row is None:
        raise ProtocolError("unknown_submission", "the judgement's submission is gone", status=404)
    return row


def _count_outcomes(row: Submission) -> Counter[tuple[int, int, int]]:
    """How often each (outcome, reason, units) was revealed; unknown is counted by nobody."""
    verdicts = [j.verdict for j in row.judgements if j.verdict is not None]
    return Counter(_get_outcome(v) for v in verdicts if v["outcome"] != Decision.UNKNOWN)


def _get_outcome(verdict: Mapping[str, str | int]) -> tuple[int, int, int]:
    return int(verdict["outcome"]), int(verdict["reason"]), int(verdict["units"])


def compute_ruling(params: PoolParams, row: Submission, *, validators: int) -> Ruling | None:
    """What the revealed verdicts decide: a quorum's outcome, void when no quorum can come any more, or nothing yet."""
    for agreed, count in _count_outcomes(row).items():
        if count >= get_quorum(params, row):
            return _build_ruling(params, row, agreed)
    is_over = all(j.lapsed or j.verdict is not None for j in row.judgements)
    if is_over and not _may_open(params, row, validators):
        return Ruling(Decision.UNKNOWN, Reason.UNDECIDED, 0, Hash("0x" + "00" * 32))
    return None


def _is_rejected(params: PoolParams, row: Submission) -> bool:
    """Whether a quorum rejects, if for different reasons: a cheat may stand where validators' numbers part."""
    outcomes = _count_outcomes(row).items()
    return sum(count for (outcome, _, _), count in outcomes if outcome == Decision.REJECT) >= get_quorum(params, row)


def _build_ruling(params: PoolParams, row: Submission, agreed: tuple[int, int, int]) -> Ruling:
    outcome, reason, units = agreed
    found = [(j.verdict, j.live_groups) for j in row.judgements if j.verdict and _get_outcome(j.verdict) == agreed]
    evidence_hash = Hash(str(found[0][0]["evidence_hash"]))
    live = batches.compute_live_groups(params, row, [count for _, count in found]) if outcome == Decision.ACCEPT else 0
    return Ruling(Decision(outcome), Reason(reason), units, evidence_hash, live)


def tally(repository: Repository, params: PoolParams, row: Submission, *, validators: int, now: float) -> Ruling | None:
    """Decide a submission if its verdicts allow it, with all that follows for node, tasks and step."""
    if row.state is not SubmissionState.SUBMITTED or row.audited is None:
        return None
    ruling = compute_ruling(params, row, validators=validators)
    if ruling is None:
        return None
    if ruling.decision is Decision.REJECT and not row.audited:
        row.audited = True  # no single validator condemns: the others are asked, with a replay
        return None
    if row.canary != CanaryKind.ORDINARY:  # whatever they say: no pay, no case, nothing to learn from
        ruling = Ruling(Decision.UNKNOWN, Reason.CANARY, 0, ruling.evidence_hash)
    node = service.require_node(repository, row.node)
    row.reason, row.evidence_hash, row.decided_at = ruling.reason, ruling.evidence_hash, now
    row.units = ruling.units if ruling.decision is Decision.ACCEPT else 0
    if ruling.decision is Decision.ACCEPT:
        row.state = require_move(SUBMISSION_MOVES, row.state, SubmissionState.ACCEPTED)
        row.live_groups = ruling.live_groups
        node.accepted += 1
    elif ruling.reason.severity is Severity.HARD:
        row.state = require_move(SUBMISSION_MOVES, row.state, SubmissionState.REJECTED)
        service.suspend(repository, node, service.REJECTED)
    else:
        row.state = require_move(SUBMISSION_MOVES, row.state, SubmissionState.VOID)
        if ruling.reason not in OURS or (ruling.reason is Reason.UNDECIDED and _is_rejected(params, row)):
            service.add_strike(params, node)
    repository.session.flush()
    batches.close_step(repository, params)
    batches.plan_tasks(repository, params)
    return ruling
