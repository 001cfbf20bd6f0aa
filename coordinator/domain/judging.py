"""The judging of submissions: they are drawn, judged in turns, and decided by the revealed verdicts.

`audit_draws` decides whether work is replayed. `panel` decides how many validators judge it and what their verdicts
mean. This module applies the rulings to submissions, nodes, tasks and steps.
"""

from collections import Counter
from collections.abc import Container, Sequence
from itertools import chain

from coordinator.db.models import SubmissionRow
from coordinator.db.rate_queries import MinuteCounts
from coordinator.db.repository import Repository
from coordinator.domain import audit_draws, exact_lane, nodes, panel, promised_times, sum_limits, turn_order
from coordinator.domain.panel import Findings, Ruling, is_rejected
from coordinator.domain.steps import close_step, plan_tasks
from coordinator.domain.turns import OURS, announce_turns
from covey.protocol.canaries import CanaryKind
from covey.protocol.ids import Address
from covey.protocol.params import PoolParams
from covey.protocol.status import SUBMISSION_MOVES, SubmissionState, require_move
from covey.protocol.verdict import Decision, Reason, Severity

CHECK_SECONDS = 30.0
"""Maximum time in seconds between two checks of a submission that is drawn and undecided."""


def dispatch(
    repository: Repository,
    params: PoolParams,
    rows: Sequence[SubmissionRow],
    *,
    validators: Sequence[Address],
    active: Container[str],
    find_block: audit_draws.FindBlock,
    secret: bytes,
    now: float,
) -> None:
    """Decide those of some undecided submissions that can be decided. Draw and open turns for the others.

    Only jobs call this. The turns of `rows` must be loaded. `validators` are all validators of the pool, and `active`
    are those whose verdicts the court counts. An inactive validator may add to its bond and judge again, so work does
    not become void because few are active. Sets `next_check_at` of each row that is still undecided.
    """
    repository.load_nodes({row.node for row in rows})
    due, standing = promised_times.find_due(params, rows, now=now), repository.list_validators()
    able = {row.receipt_hash: exact_lane.list_able(row, validators, standing) for row in rows}
    passed = [exact_lane.list_passed(params, row, able[row.receipt_hash], standing, now=now) for row in rows]
    exact_lane.record_passes(repository, chain.from_iterable(passed), now=now)
    findings = panel.advance_turns(params, rows, able=able, active=active, due=due, now=now)
    apply(repository, params, findings, validators=validators, now=now)
    above = repository.list_nodes_above({row.node for row in rows if row.draw is None})
    opened = 0
    for row in rows:
        if row.state is not SubmissionState.SUBMITTED:
            continue
        if audit_draws.draw(repository, params, row, above=above, find_block=find_block, secret=secret):
            opened += panel.open_missing(params, row, validators=able[row.receipt_hash], now=now)
        row.next_check_at = _compute_next_check(params, row, now)
    if opened:
        announce_turns(repository)


def _compute_next_check(params: PoolParams, row: SubmissionRow, now: float) -> float:
    """Return the next Unix time at which an undecided submission must be checked if no event concerns it before."""
    if row.draw is None:
        return now + audit_draws.UNDRAWN_CHECK_SECONDS
    deadlines = [turn.deadline for turn in turn_order.list_current(row) if turn.verdict is None and not turn.lapsed]
    deadlines = [deadline for deadline in deadlines if deadline > now]
    return min(now + CHECK_SECONDS, promised_times.compute_decide_by(params, row), *deadlines)


def forget_draws_above(repository: Repository, block: int) -> None:
    """Undo the draws of blocks that a reorganization removed, which are those above `block`.

    Submissions in an epoch keep their draw. If validators have judged a submission without a whole replay, it is now
    replayed, because the new block may require that and draws other rows. A replay that a removed block ordered stays
    ordered. Turns without a commitment end.
    """
    for row in repository.list_drawn(above=block):
        row.draw, row.draw_block, row.next_check_at = None, None, 0.0
        if not row.audited and any(turn.commitment for turn in row.turns):
            nodes.judge_again(repository, row)
        for turn in row.turns:
            turn.drew_other_rows = True
        panel.close_uncommitted(row)


def apply(
    repository: Repository, params: PoolParams, findings: Findings, *, validators: Container[str], now: float
) -> None:
    """Apply the findings of a check to submissions, validators and nodes. Then pack the step and plan tasks once.

    An acceptance by cheap checks is dropped if an earlier ruling of the same findings ordered a replay of that work.
    """
    for validator in findings.late:
        standing = repository.require_validator(validator)
        standing.lapsed, standing.failed_at = standing.lapsed + 1, now
    silent = [exact_lane.list_silent(row) for row, _, _ in findings.decided]
    exact_lane.record_passes(repository, [*findings.passed, *chain.from_iterable(silent)], now=now)
    decided: list[SubmissionRow] = []
    for row, agreed, replayed in findings.decided:
        if replayed != bool(row.audited):
            continue
        for validator in panel.list_contradicted(params, row, agreed):
            standing = repository.require_validator(validator)
            standing.contradicted, standing.failed_at = standing.contradicted + 1, now
        ruling = agreed
        if row.canary != CanaryKind.ORDINARY:  # A canary is never paid, never opens a case, and is never trained on.
            ruling = Ruling(Decision.UNKNOWN, Reason.CANARY, agreed.evidence_hash)
        _record(row, ruling, now)
        _count(repository, row, ruling)
        _judge_node(repository, params, row, ruling)
        decided.append(row)
    if findings.decided:
        repository.add_to_minute(now, _count_decided(decided))
        sum_limits.add_accepted(repository, params, [row for row, _, _ in findings.decided], validators=validators)
        repository.flush()
        close_step(repository, params)
        plan_tasks(repository, params)


def _record(row: SubmissionRow, ruling: Ruling, now: float) -> None:
    is_accepted = ruling.decision is Decision.ACCEPT
    row.decision, row.reason, row.evidence_hash, row.decided_at = (
        ruling.decision,
        ruling.reason,
        ruling.evidence_hash,
        now,
    )
    row.units, row.live_groups = (row.receipt_units, ruling.live_groups) if is_accepted else (0, row.live_groups)
    is_hard = ruling.reason.severity is Severity.HARD
    after = SubmissionState.ACCEPTED if is_accepted else SubmissionState.REJECTED if is_hard else SubmissionState.VOID
    row.state = require_move(SUBMISSION_MOVES, row.state, after)
    if is_hard:
        panel.close_uncommitted(row)


def _count(repository: Repository, row: SubmissionRow, ruling: Ruling) -> None:
    for turn in turn_order.list_current(row):
        if turn.validator is not None and turn.verdict is not None:
            repository.require_validator(turn.validator).judged += 1
    step = repository.get_step(row.policy_version)
    if step is not None and ruling.decision is Decision.ACCEPT:
        step.accepted_groups += row.groups


def _count_decided(rows: Sequence[SubmissionRow]) -> MinuteCounts:
    """Count submissions by what was decided."""
    states = Counter(row.state for row in rows)
    return MinuteCounts(
        accepted=states[SubmissionState.ACCEPTED],
        rejected=states[SubmissionState.REJECTED],
        void=states[SubmissionState.VOID],
        units=sum(row.units for row in rows),
    )


def _judge_node(repository: Repository, params: PoolParams, row: SubmissionRow, ruling: Ruling) -> None:
    node = nodes.require_node(repository, row.node)
    if ruling.decision is Decision.ACCEPT:
        owner = repository.require_contributor(row.contributor)
        node.accepted, owner.accepted = node.accepted + 1, owner.accepted + 1
        nodes.take_back_strike(repository, params, row.contributor)
    elif ruling.reason.severity is Severity.HARD:
        nodes.condemn(repository, node=node, contributor=row.contributor, why=nodes.REJECTED)
    elif ruling.reason is Reason.INEXACT:
        nodes.note_fault(repository, params, node=node, contributor=row.contributor)
    elif ruling.reason not in OURS or (ruling.reason is Reason.UNDECIDED and is_rejected(params, row)):
        nodes.add_strike(repository, params, row.contributor)
