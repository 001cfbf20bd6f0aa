"""The standing of nodes and contributors: who is served, on which record, and what a cheat loses.

A suspension belongs to the node, whoever vouches for it; strikes belong to the contributor, whichever of its nodes
earned them.  Accepted work takes strikes back one by one, and a pardon of the operator takes back all of them.  Removal
is neither: it ends when the node registers again.
"""

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

REJECTED, CASE, STRIKES, EQUIVOCATION = "rejected", "case", "strikes", "equivocation"
"""Reasons of a suspension."""
VETOABLE = (REJECTED, CASE)
"""Reasons that a veto of the arbiter takes back.  A pardon of the operator takes back STRIKES alone.  Nothing replaces
EQUIVOCATION, which stays for good.
"""
INSTANCE_SECONDS = 120.0
"""Seconds without a sign of life after which another instance of a node may take its place."""


def register_node(repository: Repository, params: PoolParams, *, node: str, contributor: str) -> NodeRow:
    """Record a node that the chain knows, or take a removed one back; a suspended node stays suspended.

    Under another contributor its record begins again: a reputation cannot be sold.
    """
    row = repository.get_node(node)
    if row is None:
        row = NodeRow(address=node, contributor=contributor, accepted=0, suspended="", removed=False)
        repository.add(row)
    if row.contributor != contributor:
        row.contributor, row.accepted = contributor, 0
    row.removed = False
    if not row.suspended and is_struck_out(repository, params, contributor):
        row.suspended = STRIKES
    return row


def require_node(repository: Repository, node: str) -> NodeRow:
    """The row of a registered node; raise ProtocolError("unknown_node")."""
    row = repository.get_node(node)
    if row is None:
        raise ProtocolError("unknown_node", f"{node} is not registered here; register it first", status=403)
    return row


def take_over(repository: Repository, params: PoolParams, node: NodeRow, instance: str, now: float) -> None:
    """Let an instance take a node over from a silent one, whose leases end as dropped.

    The silent one may have signed a receipt for them, and a second one would be equivocation.
    """
    if node.instance not in ("", instance):
        for task in _end_leases(repository, node):
            cool_down(repository, params, node, now, is_dropped=task.collected_at is not None)


def require_instance(node: NodeRow, instance: str, now: float) -> None:
    """Return unless another worker with the node's key was heard in the last INSTANCE_SECONDS.

    Raises ProtocolError("another_instance").
    """
    silence = now - node.seen_at
    if node.instance not in ("", instance) and silence < INSTANCE_SECONDS:
        raise build_another_instance(node.address, silence=silence)


def build_another_instance(node: str, *, silence: float) -> ProtocolError:
    """Return the error of a worker whose key another one uses, which was heard `silence` seconds ago."""
    message = (
        f"another worker with the key of {node} was heard {silence:.0f} s ago, and two receipts for one lease"
        f" cost stake. Stop one of them; this one is served after {INSTANCE_SECONDS:.0f} s of silence"
    )
    return ProtocolError("another_instance", message, status=409)


def get_most_leases(node: NodeRow) -> int:
    """Leases that a node may hold at once: what it may hoard grows with what it has delivered."""
    return 1 + node.accepted // 2


def compute_free_slots(node: NodeRow, held: int) -> int:
    """Return the number of leases that may be given to a node now, which has `held` ones."""
    return max(0, min(node.free_slots, get_most_leases(node)) - held)


def count_strikes(repository: Repository, contributor: str) -> int:
    """Strikes of all nodes that a contributor has or had."""
    row = repository.get_contributor(contributor)
    return row.strikes if row else 0


def count_pardons(repository: Repository, contributor: str) -> int:
    """Times that the operator took back a contributor's strikes."""
    row = repository.get_contributor(contributor)
    return row.pardons if row else 0


def is_struck_out(repository: Repository, params: PoolParams, contributor: str) -> bool:
    """Whether a contributor has as many strikes as suspend its nodes, future ones too."""
    return count_strikes(repository, contributor) >= params.strikes_to_suspend


def add_strike(repository: Repository, params: PoolParams, contributor: str) -> None:
    """Strikes add up to the suspension of all nodes of a contributor; they never touch stake."""
    row = repository.get_contributor(contributor)
    if row is None:
        row = ContributorRow(address=contributor, strikes=0)
        repository.add(row)
    row.strikes += 1
    if is_struck_out(repository, params, contributor):
        for node in repository.list_nodes_of(contributor):
            node.suspended = node.suspended or STRIKES


def take_back_strike(repository: Repository, params: PoolParams, contributor: str) -> None:
    """Count an accepted submission: every `accepted_per_strike` of them take back one strike.

    Nothing is counted without strikes, so that nobody works ahead for later ones.  Strikes that suspend stay, as the
    suspension does.
    """
    row = repository.get_contributor(contributor)
    if row is None or not 0 < row.strikes < params.strikes_to_suspend:
        return
    row.accepted_since += 1
    if row.accepted_since >= params.accepted_per_strike:
        row.strikes, row.accepted_since = row.strikes - 1, 0


class Pardon(NamedTuple):
    """What a pardon took back."""

    contributor: Address
    strikes: int
    nodes: list[Address]
    """Nodes that were suspended for strikes."""


def pardon(repository: Repository, address: str) -> Pardon:
    """Take back all strikes of a contributor, named by its own address or that of a node, and what they suspend.

    Raises ProtocolError("no_contributor").
    """
    node = repository.get_node(address)
    row = repository.get_contributor(address if node is None else node.contributor)
    if row is None:
        raise ProtocolError(
            "no_contributor",
            f"{address} is neither a node nor a contributor of this pool. covey submissions list shows who worked",
            status=404,
        )
    strikes, row.strikes, row.accepted_since, row.pardons = row.strikes, 0, 0, row.pardons + 1
    barred = [node for node in repository.list_nodes_of(row.address) if node.suspended == STRIKES]
    for node in barred:
        node.suspended = ""
    return Pardon(Address(row.address), strikes, [Address(node.address) for node in barred])


def cool_down(repository: Repository, params: PoolParams, node: NodeRow, now: float, *, is_dropped: bool) -> None:
    """Dropping is a way of choosing prompts: it costs a pause, and a strike where it is repeated often.

    A node that asks for a task and does not collect it pauses too, or it could hold the task for ever; nothing was
    dropped then.
    """
    if not is_dropped:
        node.cooldown_until = now + params.cooldown_seconds
        return
    # Pauses add up: else many leases could be looked at and given back in one.
    node.cooldown_until = max(now, node.cooldown_until) + params.cooldown_seconds
    node.dropped += 1
    if node.dropped >= 4 and scheduling.compute_drop_rate(node.accepted, node.dropped) > 0.5:
        add_strike(repository, params, node.contributor)


def remove(repository: Repository, node: NodeRow) -> None:
    """Its contributor vouches for the node no more: assign nothing to it until it registers again."""
    node.removed = True
    _end_leases(repository, node)


def suspend(repository: Repository, node: NodeRow, why: str) -> None:
    """Assign nothing more to a node and take back what it holds.

    A pardon must not reinstate a node that was caught, so STRIKES give way to any other reason.
    """
    if node.suspended != EQUIVOCATION:
        node.suspended = why
    _end_leases(repository, node)


def _end_leases(repository: Repository, node: NodeRow) -> list[TaskRow]:
    """Take back what a node holds; returns it."""
    held = list(repository.list_leased([node.address]))
    for task in held:
        task.state = require_move(TASK_MOVES, task.state, TaskState.EXPIRED)
    return held


def reinstate(repository: Repository, params: PoolParams, node: NodeRow) -> None:
    """The arbiter overruled the validators: a node without another open case is served again, unless it has too many
    strikes."""
    cases = [case for case in repository.list_cases() if case.contributor == node.contributor]
    is_accused = any(case.state in (CaseState.LOCKED, CaseState.SLASHED) for case in cases)
    if node.suspended in VETOABLE and not is_accused:
        node.suspended = STRIKES if is_struck_out(repository, params, node.contributor) else ""


def condemn(repository: Repository, *, node: NodeRow, contributor: str, why: str) -> None:
    """A node of `contributor` was caught cheating: suspend it, and trust nothing of the contributor unseen any more.

    The records of all its nodes begin again, so that they are newcomers.  All work of its that nobody has replayed and
    no epoch holds is judged again, with a replay; what is in a batch already stays there.
    """
    suspend(repository, node, why)
    for each in {node, *repository.list_nodes_of(contributor)}:
        each.accepted = 0
    _judge_again(repository, contributor)


def judge_released(repository: Repository) -> None:
    """An epoch was disabled: judge again what it held of contributors that were caught, as `condemn` does."""
    caught = {node.contributor for node in repository.list_nodes() if node.suspended == EQUIVOCATION}
    for contributor in sorted(caught.union(repository.list_rejected_contributors())):
        _judge_again(repository, contributor)


def _judge_again(repository: Repository, contributor: str) -> None:
    for row in repository.list_unreplayed(contributor):
        _reopen(repository, row)


def _reopen(repository: Repository, row: SubmissionRow) -> None:
    panel.order_replay(row)
    row.look_at = 0.0
    if row.state is SubmissionState.ACCEPTED:
        step = repository.get_step(row.policy_version)
        if step is not None:
            step.accepted_groups -= row.groups
        row.state = require_move(SUBMISSION_MOVES, row.state, SubmissionState.SUBMITTED)
        row.decision, row.decided_at = None, None
        row.units, row.reason, row.evidence_hash = row.receipt_units, Reason.NONE, ZERO_HASH
