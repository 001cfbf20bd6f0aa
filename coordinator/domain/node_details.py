"""Everything public about one node: its standing, why it gets no task, and its running sums with their limits."""

from collections.abc import Sequence

from coordinator.db.repository import Repository
from coordinator.db.sum_queries import RunningSumsRow
from coordinator.domain import idleness, nodes, sum_limits
from coordinator.domain.stakes import StakeRule
from covey.errors import ProtocolError
from covey.protocol.api.public import NodeDetail, SumView
from covey.protocol.ids import Address
from covey.protocol.params import PoolParams
from covey.protocol.running_sums import REPLAY_ALLOWANCE, SUSPENSION_ALLOWANCE, StatisticName


def describe(
    repository: Repository,
    params: PoolParams,
    node: Address,
    *,
    rule: StakeRule,
    validators: Sequence[Address],
    now: float,
) -> NodeDetail:
    """Describe a node at a time in Unix seconds. `validators` are those that the chain names.

    Raises ProtocolError("no_node") if it is not registered.
    """
    row = repository.get_node(node)
    if row is None:
        raise ProtocolError("no_node", f"{node} is not registered at this coordinator", status=404)
    sums = repository.get_running_sums(node)
    why = idleness.explain(repository, params, row, rule=rule, now=now)
    return NodeDetail(
        node=node,
        contributor=Address(row.contributor),
        suspended=row.barred,
        accepted=row.accepted,
        health=idleness.compute_health(row, now),
        why=why.code,
        sentence=why.sentence,
        silent_seconds=max(0.0, now - row.seen_at) if row.seen_at else None,
        leases=len(repository.list_leased([node])),
        max_leases=nodes.get_most_leases(row),
        cooldown_seconds=max(0.0, row.cooldown_until - now),
        dropped=row.dropped,
        strikes=nodes.count_strikes(repository, row.contributor),
        pardons=nodes.count_pardons(repository, row.contributor),
        sum_above_limit=sums.above if sums else "",
        summed_submissions=sums.submissions if sums else 0,
        sums=_describe_sums(params, sums, validators) if sums else {},
    )


def _describe_sums(
    params: PoolParams, sums: RunningSumsRow, validators: Sequence[Address]
) -> dict[StatisticName, SumView]:
    stated = sums.by_validator
    replayed = sum_limits.list_standings(params, stated, validators, allowance=REPLAY_ALLOWANCE)
    suspended = sum_limits.list_standings(params, stated, validators, allowance=SUSPENSION_ALLOWANCE)
    return {
        each.statistic: SumView(total=each.total, items=each.items, limit=each.limit, suspension_limit=far.limit)
        for each, far in zip(replayed, suspended, strict=True)
    }
