"""Records heartbeats and claims of many nodes at once. A claim is a heartbeat that also asks for a task.

The number of queries does not depend on the number of nodes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from coordinator.db.models import NodeRow
from coordinator.db.repository import Repository
from coordinator.domain import nodes
from coordinator.domain.stakes import StakeRule, get_stake, require_stake
from covey.errors import CoveyError, ProtocolError
from covey.protocol.ids import Address
from covey.protocol.params import PoolParams

HEARD, LISTENING = "heard", "listening"
"""Names of facts: Unix time when any node was last heard, and Unix time since which nodes are heard without a gap."""
_NOTE_SECONDS = 5.0
"""Minimum time in seconds between two updates of the fact HEARD."""
GAP_SECONDS = 30.0
"""Time in seconds without a heartbeat of any node after which the coordinator itself counts as cut off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeBeat:
    """A heartbeat or claim. Example: NodeBeat(node=address, instance="0f...", free_slots=2, cached_version=3)."""

    node: Address
    instance: str
    free_slots: int
    cached_version: int | None
    is_claim: bool = False
    """Whether the node asks for a task."""
    waiting_until: float = 0.0
    """Unix time until which a claim waits for a task. A claim with a past time gets only a task that is pending now."""
    holding: tuple[int, ...] = ()
    """Leases that a claiming worker holds."""


def record_beats(
    repository: Repository, params: PoolParams, signs: Sequence[NodeBeat], *, rule: StakeRule, now: float
) -> list[CoveyError | None]:
    """Record heartbeats and claims, and return the error of each, or None.

    Errors are those of `nodes.require_node` and `nodes.require_instance`. For claims, they are also
    ProtocolError("suspended"), ProtocolError("stake_too_low") and TransientError("stake_unknown").
    """
    claiming = {sign.node for sign in signs if sign.is_claim}
    repository.load_nodes({sign.node for sign in signs})
    known = (repository.get_node(address) for address in claiming)
    owners = {row.contributor for row in known if row is not None}
    counts = repository.count_nodes_of(owners)
    results: list[CoveyError | None] = []
    changes: dict[str, dict[str, object]] = {}
    advanced = {sign.cached_version for sign in signs if _has_advanced(repository.get_node(sign.node), sign, now)}
    announced = repository.find_announced(advanced)
    instances: dict[str, str] = {}
    for sign in signs:
        try:
            row = nodes.require_node(repository, sign.node)
            if sign.is_claim:
                _require_served(repository, row, rule=rule, count=counts.get(row.contributor, 1))
            if instances.setdefault(sign.node, sign.instance) != sign.instance:
                raise nodes.build_another_instance(sign.node, silence=0.0)
            nodes.require_instance(row, sign.instance, now)
            nodes.take_over(repository, params, row, sign.instance, now)
            results.append(None)
        except CoveyError as error:
            results.append(error)
            continue
        change = changes.setdefault(
            sign.node,
            {
                "address": sign.node,
                "free_slots": row.free_slots,
                "waiting_until": row.waiting_until,
                "policy_seconds": row.policy_seconds,
            },
        )
        announced_at = announced.get(sign.cached_version)
        if announced_at is not None and _has_advanced(row, sign, now):
            change["policy_seconds"] = max(0.0, now - announced_at)
        change |= {"instance": sign.instance, "seen_at": now, "cached_version": sign.cached_version}
        if sign.is_claim:
            change |= {"free_slots": sign.free_slots, "waiting_until": max(now, sign.waiting_until)}
    repository.update_nodes(list(changes.values()))
    if changes:
        note_hearing(repository, now)
    return results


def withdraw_claim(repository: Repository, claim: NodeBeat) -> None:
    """End a claim whose client has left, so that its node gets no lease. A newer claim of the node is not affected."""
    row = repository.get_node(claim.node)
    if row is not None and row.waiting_until == claim.waiting_until:
        repository.update_nodes([{"address": claim.node, "waiting_until": 0.0}])


def note_hearing(repository: Repository, now: float) -> None:
    """Record that some node was heard.

    After a gap, in which the coordinator was down or cut off from all nodes, no node counts as dead for a while.
    """
    gap = now - repository.get_fact(HEARD)
    if gap > GAP_SECONDS:
        repository.set_fact(LISTENING, int(now))
    if gap > _NOTE_SECONDS:
        repository.set_fact(HEARD, int(now))


def find_silent_since(repository: Repository, now: float) -> float:
    """Return a Unix time such that nodes that were last heard before it are dead. 0 if no node counts as dead now.

    A node is dead only if other nodes were heard without a gap since then.
    """
    dead_before = now - nodes.INSTANCE_SECONDS
    is_hearing = now - repository.get_fact(HEARD) <= GAP_SECONDS and repository.get_fact(LISTENING) <= dead_before
    return dead_before if is_hearing else 0.0


def _has_advanced(row: NodeRow | None, sign: NodeBeat, now: float) -> bool:
    """Return whether a node that was not silent has a newer policy on disk. The first policy does not count."""
    if row is None or row.cached_version is None or sign.cached_version is None:
        return False
    return row.cached_version < sign.cached_version and row.seen_at > now - nodes.INSTANCE_SECONDS


def _require_served(repository: Repository, row: NodeRow, *, rule: StakeRule, count: int) -> None:
    if row.barred:
        raise ProtocolError("suspended", f"{row.address} is suspended: {row.barred}", status=403)
    contributor = Address(row.contributor)
    stake = get_stake(repository.get_contributor(contributor))
    require_stake(stake, rule=rule, contributor=contributor, nodes=count)
