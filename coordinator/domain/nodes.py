"""The standing of nodes and contributors: records, strikes, suspensions, and what a cheat loses.

A contributor counts as one person. Strikes, drops and suspensions of any of its nodes count for the contributor, and a
suspension applies to all its nodes, including future ones. A suspended node stays suspended under another contributor.
Accepted work removes strikes one by one, and a pardon of the operator removes all. Removal of a node is independent of
this, and ends when the node registers again.
"""

from collections.abc import Sequence
from typing import NamedTuple

from coordinator.db.models import ContributorRow, NodeRow, SubmissionRow, TaskRow
from coordinator.db.repository import Repository
from coordinator.domain import panel, scheduling
from covey.errors import ProtocolError
from covey.protocol.ids import ZERO_HASH, Address
from covey.protocol.params import PoolParams
from covey.protocol.status import (
    SUBMISSION_MOVES,
    TASK_MOVES,
    CaseState,
    SubmissionState,
    TaskState,
    require_move,
)
from covey.protocol.verdict import Reason

REJECTED, CASE, EQUIVOCATION = "rejected", "case", "equivocation"
STRIKES, FAULTS = "strikes", "faults"
SUMS = "sums"
"""Reasons of a suspension. SUMS means that running sums are above a limit (`coordinator.domain.sum_limits`)."""
PARDONABLE = (STRIKES, FAULTS, SUMS)
"""Reasons that a pardon of the operator revokes."""
WINDOWS_PER_FAULT = 100_000
"""Minimum number of a contributor's replayed proof windows per single fault. More frequent faults suspend all its nodes
(decision 064)."""
VETOABLE = (REJECTED, CASE)
"""Reasons that a veto of the arbiter revokes. EQUIVOCATION is permanent, and no other reason replaces it."""
INSTANCE_SECONDS = 120.0
"""Time in seconds without a heartbeat after which another worker process with the node's key may take over."""


def register_node(
    repository: Repository, *, node: str, contributor: str, block: int = 0, contract: str = ""
) -> NodeRow:
    """Record a node that is registered on chain, or restore a removed one. A suspended node stays suspended.

    `block` is the number of the newest block. The node's key could have been chosen with knowledge of policies up to
    that block. `contract` is the digest of its execution contract, and empty for the calibrated lane.

    Under another contributor, the node's record restarts, because reputation must not be for sale.
    """
    row = repository.get_node(node)
    if row is None:
        row = NodeRow(address=node, contributor=contributor, accepted=0, suspended="", registered_block=block)
        repository.add(row)
    elif row.removed or row.contributor != contributor:
        row.registered_block = block
    if row.contributor != contributor:
        row.contributor, row.accepted = contributor, 0
    row.removed, row.contract = False, contract
    row.suspended = row.suspended or repository.require_contributor(contributor).suspended
    return row


def require_node(repository: Repository, node: str) -> NodeRow:
    """Return the row of a registered node. Raises ProtocolError("unknown_node") if there is none."""
    row = repository.get_node(node)
    if row is None:
        raise ProtocolError("unknown_node", f"{node} is not registered here; register it first", status=403)
    return row


def take_over(repository: Repository, params: PoolParams, node: NodeRow, instance: str, now: float) -> None:
    """Let a worker process take over a node from a silent one, whose leases end as dropped.

    The silent process may have signed receipts for its leases. Second receipts would be equivocation.
    """
    if node.instance not in ("", instance):
        cool_down(repository, params, [(node, task) for task in _end_leases(repository, node)], now)


def require_instance(node: NodeRow, instance: str, now: float) -> None:
    """Raise ProtocolError("another_instance") if another worker with the node's key was heard in INSTANCE_SECONDS."""
    silence = now - node.seen_at
    if node.instance not in ("", instance) and silence < INSTANCE_SECONDS:
        raise build_another_instance(node.address, silence=silence)


def build_another_instance(node: str, *, silence: float) -> ProtocolError:
    """Return the error for a worker whose key another worker uses, which was heard `silence` seconds ago."""
    message = (
        f"another worker with the key of {node} was heard {silence:.0f} s ago, and two receipts for one lease"
        f" cost stake. Stop one of them; this one is served after {INSTANCE_SECONDS:.0f} s of silence"
    )
    return ProtocolError("another_instance", message, status=409)


def get_most_leases(node: NodeRow) -> int:
    """Return the maximum number of leases that a node may hold at once, which grows with its accepted work."""
    return 1 + node.accepted // 2


def count_strikes(repository: Repository, contributor: str) -> int:
    """Return the number of a contributor's strikes, from all present and former nodes."""
    row = repository.get_contributor(contributor)
    return row.strikes if row else 0


def count_pardons(repository: Repository, contributor: str) -> int:
    """Return how many times the operator has pardoned a contributor's strikes."""
    row = repository.get_contributor(contributor)
    return row.pardons if row else 0


def is_struck_out(repository: Repository, params: PoolParams, contributor: str) -> bool:
    """Return whether a contributor has enough strikes to suspend all its nodes, including future ones."""
    return count_strikes(repository, contributor) >= params.strikes_to_suspend


def add_strike(repository: Repository, params: PoolParams, contributor: str) -> None:
    """Add a strike to a contributor. Enough strikes suspend all its nodes, but never cost stake."""
    row = repository.require_contributor(contributor)
    row.strikes += 1
    if row.strikes >= params.strikes_to_suspend:
        for each in _list_standings(repository, contributor):
            each.suspended = each.suspended or STRIKES


def note_fault(repository: Repository, params: PoolParams, *, node: NodeRow, contributor: str) -> None:
    """Count a single fault in the exact lane, for which the submission is void and the contributor gets a strike.

    All nodes of a contributor count together. Otherwise each new node would have one free fault. From the second fault
    on, more than one fault in WINDOWS_PER_FAULT replayed windows suspends all its nodes, including future ones. The
    operator can pardon that.
    """
    add_strike(repository, params, contributor)
    replayed = repository.sum_replayed(contributor)
    windows = replayed.units // params.verification.proof_window
    if replayed.faults > 1 and replayed.faults * WINDOWS_PER_FAULT > windows:
        suspend_all(repository, contributor, FAULTS, with_node=node)


def take_back_strike(repository: Repository, params: PoolParams, contributor: str) -> None:
    """Count an accepted submission. After every `accepted_per_strike` of them, the contributor loses one strike.

    Submissions count only while there are strikes, so that nobody can work off later strikes in advance. Strikes that
    have led to a suspension stay.
    """
    row = repository.get_contributor(contributor)
    if row is None or not 0 < row.strikes < params.strikes_to_suspend:
        return
    row.accepted_since += 1
    if row.accepted_since >= params.accepted_per_strike:
        row.strikes, row.accepted_since = row.strikes - 1, 0


class Pardon(NamedTuple):
    """Effects of a pardon."""

    contributor: Address
    strikes: int
    nodes: list[Address]
    """Nodes whose suspension for strikes, faults or running sums was revoked."""


def pardon(repository: Repository, address: str) -> Pardon:
    """Revoke the pardonable suspensions of a contributor. `address` is its own or that of one of its nodes.

    Given a node, suspensions of the contributor's other nodes for the same reasons are revoked, too. Running sums of
    nodes that were suspended for them restart at 0. All strikes are removed, unless running sums are the only reason.

    Raises ProtocolError("no_contributor") if the address is neither a node nor a contributor.
    """
    node = repository.get_node(address)
    row = repository.get_contributor(address if node is None else node.contributor)
    if row is None:
        raise ProtocolError(
            "no_contributor",
            f"{address} is neither a node nor a contributor of this pool. covey submissions list shows who worked",
            status=404,
        )
    siblings = repository.list_nodes_of(row.address)
    suspended = {row.suspended, *(each.suspended for each in siblings)} if node is None else {node.suspended}
    is_sums_only = SUMS in suspended and not suspended & {STRIKES, FAULTS}
    reasons = {SUMS} if is_sums_only else {STRIKES, FAULTS} | (suspended & {SUMS})
    strikes = 0 if is_sums_only else row.strikes
    if not is_sums_only:
        row.strikes, row.accepted_since, row.pardons = 0, 0, row.pardons + 1
    if row.suspended in reasons:
        row.suspended = ""
    barred = [each for each in siblings if each.suspended in reasons]
    repository.reset_running_sums([each.address for each in barred if each.suspended == SUMS])
    for each in barred:
        each.suspended = row.suspended
    return Pardon(Address(row.address), strikes, [Address(node.address) for node in barred])


def cool_down(repository: Repository, params: PoolParams, ended: Sequence[tuple[NodeRow, TaskRow]], now: float) -> None:
    """Start a cooldown for nodes whose leases ended without a submission. Frequent drops cost a strike.

    By dropping leases a node could choose its prompts. All nodes of a contributor count together, including removed
    ones, because a new key would be another choice. Four drops per node are free. A lease that was never collected does
    not count as a drop, but it starts a cooldown as well. Otherwise a node could reserve a task forever.
    """
    counts = repository.count_nodes_of({node.contributor for node, _ in ended})
    for node, task in ended:
        if task.collected_at is None:
            node.cooldown_until = max(node.cooldown_until, now + params.cooldown_seconds)
            continue
        # Cooldowns add up. Otherwise a node could inspect and return many leases during one cooldown.
        node.cooldown_until = max(now, node.cooldown_until) + params.cooldown_seconds
        owner = repository.require_contributor(node.contributor)
        node.dropped, owner.dropped = node.dropped + 1, owner.dropped + 1
        live = max(1, counts.get(owner.address, 0))
        if owner.dropped >= 4 * live and scheduling.compute_drop_rate(owner.accepted, owner.dropped) > 0.5:
            add_strike(repository, params, owner.address)


def remove(repository: Repository, params: PoolParams, node: NodeRow, now: float) -> None:
    """Remove a node on behalf of its contributor. It gets no tasks until it registers again.

    The leases that it has collected count as dropped.
    """
    node.removed = True
    collected = [task for task in _end_leases(repository, node) if task.collected_at is not None]
    cool_down(repository, params, [(node, task) for task in collected], now)


def suspend(repository: Repository, node: NodeRow, why: str) -> None:
    """Suspend a node and end its leases."""
    _note_suspension(node, why)
    _end_leases(repository, node)


def suspend_all(repository: Repository, contributor: str, why: str, *, with_node: NodeRow | None = None) -> None:
    """Suspend all nodes of a contributor, including future ones, and end their leases.

    `with_node` is suspended as well. It may be a node that belonged to the contributor earlier.
    """
    _note_suspension(repository.require_contributor(contributor), why)
    for node in {*repository.list_nodes_of(contributor), *((with_node,) if with_node else ())}:
        suspend(repository, node, why)


def _list_standings(repository: Repository, contributor: str) -> list[NodeRow | ContributorRow]:
    """Return the rows of a contributor and of all its nodes."""
    return [repository.require_contributor(contributor), *repository.list_nodes_of(contributor)]


def _note_suspension(row: NodeRow | ContributorRow, why: str) -> None:
    """Set the reason of a suspension, unless the present one is graver.

    Pardonable reasons never replace another one, because a pardon must not reinstate a cheat. Nothing replaces
    EQUIVOCATION.
    """
    is_graver = not row.suspended or why not in PARDONABLE
    if row.suspended != EQUIVOCATION and is_graver:
        row.suspended = why


def _end_leases(repository: Repository, node: NodeRow) -> list[TaskRow]:
    """End all leases of a node, and return their tasks."""
    held = list(repository.list_leased([node.address]))
    for task in held:
        task.state = require_move(TASK_MOVES, task.state, TaskState.EXPIRED)
    return held


def reinstate(repository: Repository, params: PoolParams, contributor: str) -> None:
    """Revoke the suspensions that cases caused, once the arbiter has vetoed all hard rejections and cases.

    A contributor with too many strikes stays suspended for these.
    """
    cases = {case.receipt_hash: case for case in repository.list_cases() if case.contributor == contributor}
    accused = {*cases, *repository.list_rejected(contributor)}
    if any(receipt not in cases or cases[receipt].state is not CaseState.VETOED for receipt in accused):
        return
    after = STRIKES if is_struck_out(repository, params, contributor) else ""
    for row in _list_standings(repository, contributor):
        if row.suspended in VETOABLE:
            row.suspended = after


def condemn(repository: Repository, *, node: NodeRow, contributor: str, why: str) -> None:
    """Suspend a contributor whose node was caught cheating, and replay all its work that is not settled.

    The records of all its nodes restart, so that they are newcomers if they are reinstated. Submissions that are in no
    epoch and were not replayed are judged again with a replay. Those that are in a batch stay in it.
    """
    suspend_all(repository, contributor, why, with_node=node)
    for row in (node, *_list_standings(repository, contributor)):
        row.accepted, row.dropped = 0, 0
    _judge_again(repository, contributor)


def judge_released(repository: Repository) -> None:
    """Judge the unreplayed work of caught contributors again, as `condemn` does, after an epoch was disabled."""
    caught = {node.contributor for node in repository.list_nodes() if node.suspended == EQUIVOCATION}
    for contributor in sorted(caught.union(repository.list_rejected_contributors())):
        _judge_again(repository, contributor)


def _judge_again(repository: Repository, contributor: str) -> None:
    for row in repository.list_unreplayed(contributor):
        judge_again(repository, row)


def judge_again(repository: Repository, row: SubmissionRow) -> None:
    """Reset an undecided or accepted submission, so that a quorum judges it with a replay."""
    panel.require_replay(row)
    row.next_check_at = 0.0
    if row.state is SubmissionState.ACCEPTED:
        step = repository.get_step(row.policy_version)
        if step is not None:
            step.accepted_groups -= row.groups
        row.state = require_move(SUBMISSION_MOVES, row.state, SubmissionState.SUBMITTED)
        row.decision, row.decided_at = None, None
        row.units, row.reason, row.evidence_hash = row.receipt_units, Reason.NONE, ZERO_HASH
