"""The standing of nodes and contributors: who is served, on which record, and what a cheat loses.

A contributor is one person: strikes, drops and suspensions count for it, whichever of its nodes earned them, and bar
all its nodes, future ones too.  A suspended node stays so under another contributor.  Accepted work takes strikes back
one by one, and a pardon of the operator for them takes back all.  Removal is none of this: it ends when the node
registers again.
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
"""Reasons of a suspension. SUMS is for running sums (`coordinator.domain.sum_limits`)."""
PARDONABLE = (STRIKES, FAULTS, SUMS)
"""Reasons that a pardon of the operator takes back."""
WINDOWS_PER_FAULT = 100_000
"""Replayed proof windows of a contributor per single fault that is void. More frequent ones suspend all its nodes
(decision 064)."""
VETOABLE = (REJECTED, CASE)
"""Reasons that a veto of the arbiter takes back.  Nothing replaces EQUIVOCATION, which stays for good."""
INSTANCE_SECONDS = 120.0
"""Seconds without a sign of life after which another instance of a node may take its place."""


def register_node(
    repository: Repository, *, node: str, contributor: str, block: int = 0, contract: str = ""
) -> NodeRow:
    """Record a node that the chain knows, or take a removed one back; a suspended node stays suspended.

    `block` is the number of the newest block. Policies up to it were public when the node's key could still be chosen.
    `contract` is the digest of its execution contract. Empty: it works in the calibrated lane.

    Under another contributor its record begins again: a reputation cannot be sold.
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
        cool_down(repository, params, [(node, task) for task in _end_leases(repository, node)], now)


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
    row = repository.require_contributor(contributor)
    row.strikes += 1
    if row.strikes >= params.strikes_to_suspend:
        for each in _list_standings(repository, contributor):
            each.suspended = each.suspended or STRIKES


def note_fault(repository: Repository, params: PoolParams, *, node: NodeRow, contributor: str) -> None:
    """Count a single fault in the exact lane, which is void and costs a strike.

    All nodes of a contributor count together, or each new node would have a free one. From the second fault on, more
    than one in WINDOWS_PER_FAULT replayed windows suspend all of them, future ones too. The operator can pardon them.
    """
    add_strike(repository, params, contributor)
    replayed = repository.sum_replayed(contributor)
    windows = replayed.units // params.verification.proof_window
    if replayed.faults > 1 and replayed.faults * WINDOWS_PER_FAULT > windows:
        suspend_all(repository, contributor, FAULTS, with_node=node)


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
    """Nodes that were suspended for strikes, faults or running sums."""


def pardon(repository: Repository, address: str) -> Pardon:
    """Take back what suspends a contributor, or one of its nodes, named by its address.

    Nodes of the contributor that are suspended for the same reasons are served again. Sums of nodes that were suspended
    for them begin at 0. All strikes are taken back, unless running sums are the only reason.

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
    """Let nodes pause whose leases ended. Dropping is a way of choosing prompts: often repeated, it costs a strike.

    All nodes of a contributor count together, removed ones too, because a new key would be a new choice. Four drops
    for each node that it has are free. A node that asks for a task and does not collect it drops nothing, but pauses
    too: else it could hold the task for ever.
    """
    counts = repository.count_nodes_of({node.contributor for node, _ in ended})
    for node, task in ended:
        if task.collected_at is None:
            node.cooldown_until = max(node.cooldown_until, now + params.cooldown_seconds)
            continue
        # Pauses add up: else many leases could be looked at and given back in one.
        node.cooldown_until = max(now, node.cooldown_until) + params.cooldown_seconds
        owner = repository.require_contributor(node.contributor)
        node.dropped, owner.dropped = node.dropped + 1, owner.dropped + 1
        live = max(1, counts.get(owner.address, 0))
        if owner.dropped >= 4 * live and scheduling.compute_drop_rate(owner.accepted, owner.dropped) > 0.5:
            add_strike(repository, params, owner.address)


def remove(repository: Repository, params: PoolParams, node: NodeRow, now: float) -> None:
    """Its contributor vouches for the node no more: assign nothing to it until it registers again.

    The leases that it has collected count as dropped.
    """
    node.removed = True
    collected = [task for task in _end_leases(repository, node) if task.collected_at is not None]
    cool_down(repository, params, [(node, task) for task in collected], now)


def suspend(repository: Repository, node: NodeRow, why: str) -> None:
    """Assign nothing more to a node and take back what it holds."""
    _note_suspension(node, why)
    _end_leases(repository, node)


def suspend_all(repository: Repository, contributor: str, why: str, *, with_node: NodeRow | None = None) -> None:
    """Assign nothing more to any node of a contributor, future ones included, and take back what they hold.

    `with_node` is another node that is suspended as well: it was the contributor's once.
    """
    _note_suspension(repository.require_contributor(contributor), why)
    for node in {*repository.list_nodes_of(contributor), *((with_node,) if with_node else ())}:
        suspend(repository, node, why)


def _list_standings(repository: Repository, contributor: str) -> list[NodeRow | ContributorRow]:
    """The rows of a contributor and of all its nodes."""
    return [repository.require_contributor(contributor), *repository.list_nodes_of(contributor)]


def _note_suspension(row: NodeRow | ContributorRow, why: str) -> None:
    """A pardon must not reinstate who was caught, so its reasons give way to any other one, and never replace it."""
    is_graver = not row.suspended or why not in PARDONABLE
    if row.suspended != EQUIVOCATION and is_graver:
        row.suspended = why


def _end_leases(repository: Repository, node: NodeRow) -> list[TaskRow]:
    """Take back what a node holds; returns it."""
    held = list(repository.list_leased([node.address]))
    for task in held:
        task.state = require_move(TASK_MOVES, task.state, TaskState.EXPIRED)
    return held


def reinstate(repository: Repository, params: PoolParams, contributor: str) -> None:
    """The arbiter overruled the validators: serve the nodes of a contributor again, unless it has too many strikes.

    Each of its hard rejections and cases needs a veto.
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
    """A node of `contributor` was caught cheating: suspend all its nodes, and trust no work of its without a replay.

    The records of all its nodes begin again, so that they are newcomers if they are reinstated.  All work of its that
    nobody has replayed and no epoch holds is judged again, with a replay; what is in a batch already stays there.
    """
    suspend_all(repository, contributor, why, with_node=node)
    for row in (node, *_list_standings(repository, contributor)):
        row.accepted, row.dropped = 0, 0
    _judge_again(repository, contributor)


def judge_released(repository: Repository) -> None:
    """An epoch was disabled: judge again what it held of contributors that were caught, as `condemn` does."""
    caught = {node.contributor for node in repository.list_nodes() if node.suspended == EQUIVOCATION}
    for contributor in sorted(caught.union(repository.list_rejected_contributors())):
        _judge_again(repository, contributor)


def _judge_again(repository: Repository, contributor: str) -> None:
    for row in repository.list_unreplayed(contributor):
        judge_again(repository, row)


def judge_again(repository: Repository, row: SubmissionRow) -> None:
    """Have a quorum judge a submission that is undecided or accepted, with a replay."""
    panel.require_replay(row)
    row.next_check_at = 0.0
    if row.state is SubmissionState.ACCEPTED:
        step = repository.get_step(row.policy_version)
        if step is not None:
            step.accepted_groups -= row.groups
        row.state = require_move(SUBMISSION_MOVES, row.state, SubmissionState.SUBMITTED)
        row.decision, row.decided_at = None, None
        row.units, row.reason, row.evidence_hash = row.receipt_units, Reason.NONE, ZERO_HASH
