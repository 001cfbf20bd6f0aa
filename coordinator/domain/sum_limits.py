"""Applies limits to the running sums of nodes. A node above them is replayed whole, or suspended.

Sums come from the evidence of accepting verdicts (`covey.protocol.running_sums`), and are kept by node and validator.
They belong to the node and not to its contributor, because they depend on the hardware. A new node starts with the sums
of an earlier node of its contributor. Otherwise a new key would start far below the limits again. When a second node of
a contributor is suspended for its sums, all nodes of the contributor are suspended.

A changed mean does not prove that a node cheats, because a new driver or policy may change it for all nodes. A node is
therefore suspended only if it is also far above the other nodes of the pool.
"""

from collections.abc import Container, Mapping, Sequence
from functools import cached_property
from statistics import median

from coordinator.db.models import NodeRow, SubmissionRow, TurnRow
from coordinator.db.repository import Repository
from coordinator.db.sum_queries import RunningSumsRow
from coordinator.domain import nodes
from coordinator.domain.turn_order import list_current
from covey.protocol.params import PoolParams
from covey.protocol.running_sums import (
    REPLAY_ALLOWANCE,
    SUSPENSION_ALLOWANCE,
    WINDOW,
    StatisticName,
    Sums,
    SumStanding,
    add,
    compare,
    compute_room,
    find_possible,
    get_highest,
    list_differing,
)
from covey.protocol.status import SubmissionState
from covey.protocol.verdict import Decision
from covey.runtime.log import get_logger

PEERS = 3
"""Minimum number of other contributors' nodes whose median a node must exceed to be suspended."""
PEER_SUBMISSIONS = 20
"""Minimum number of summed submissions of a node whose mean counts for that median."""
UNFIT = "calibration_unfit"
"""Name of the fact that a node was far above a limit and not suspended. It is 0 again once no node is above one."""


def find_countable(params: PoolParams, row: SubmissionRow, turn: TurnRow, sums: Sums | None) -> Sums | None:
    """Return the sums of a verdict that count for the node. None in the exact lane, or if the sums are not possible."""
    rules = params.verification
    if sums is None or row.contract or rules.mode == "exact":
        return None
    rows = params.rollouts_per_task if turn.full else min(rules.audit_rows, params.rollouts_per_task)
    possible = find_possible(
        sums,
        rules.thresholds,
        rows=rows,
        proof_window=rules.proof_window,
        units=row.receipt_units,
        is_whole=turn.full,
    )
    return possible or None


def add_accepted(
    repository: Repository, params: PoolParams, decided: Sequence[SubmissionRow], *, validators: Container[str]
) -> None:
    """Add the sums of accepting verdicts to those of their nodes, and compare these with the limits.

    Submissions in `decided` that are not accepted add nothing. `validators` are all validators of the pool. The sums of
    a node that is below its limits after `WINDOW` submissions restart at 0.
    """
    stated = {row.receipt_hash: _list_stated(row) for row in decided if row.state is SubmissionState.ACCEPTED}
    rows = [row for row in decided if stated.get(row.receipt_hash)]
    known = repository.load_running_sums({row.node for row in rows})
    means = PoolMeans(repository, params, validators)
    for row in rows:
        _report_differing(params, row, stated[row.receipt_hash])
        node = nodes.require_node(repository, row.node)
        if node.address not in known:
            known[node.address] = _begin(repository, params, node, validators)
        sums = known[node.address]
        _add(sums, stated[row.receipt_hash])
        _compare_for_replay(params, sums, validators)
        far = get_highest(list_standings(params, sums.by_validator, validators, allowance=SUSPENSION_ALLOWANCE))
        if far is not None and not node.suspended:
            _judge_far(repository, far, means=means, node=node)
    if rows and repository.get_fact(UNFIT):
        repository.flush()
        if not repository.list_active_above():
            repository.set_fact(UNFIT, 0)
            get_logger().info("the calibration fits again: no node is above the limits of its running sums")


def find_highest_sum(
    repository: Repository, params: PoolParams, validators: Container[str]
) -> tuple[str, SumStanding] | None:
    """Return the node and the sum that is farthest above its limit, or None unless the calibration may not fit."""
    if not repository.get_fact(UNFIT):
        return None
    far = {
        row.node: get_highest(list_standings(params, row.by_validator, validators, allowance=REPLAY_ALLOWANCE))
        for row in repository.list_active_above()
    }
    above = [(node, standing) for node, standing in far.items() if standing is not None]
    return max(above, key=lambda pair: pair[1].total / (pair[1].limit or 1e-300), default=None)


def _list_stated(row: SubmissionRow) -> dict[str, Sums]:
    return {
        turn.validator: turn.sums
        for turn in list_current(row)
        if turn.validator and turn.sums and not turn.lapsed and turn.verdict and turn.verdict.outcome == Decision.ACCEPT
    }


def _begin(repository: Repository, params: PoolParams, node: NodeRow, validators: Container[str]) -> RunningSumsRow:
    """Return a new row for a node, with the sums of the contributor's node that is closest to its limits.

    The new row starts at 0 if no node of the contributor is closer to its limits than a node without sums.
    """

    def get_room(row: RunningSumsRow) -> float:
        return compute_room(_select(row.by_validator, validators), params.verification.thresholds, quorum=params.quorum)

    earlier = repository.list_sums_of(node.contributor, without=nodes.SUMS)
    least = min(earlier, key=get_room, default=None)
    sums = repository.require_running_sums(node.address)
    if least is not None and get_room(least) < 1:
        sums.submissions, sums.by_validator = least.submissions, least.by_validator
    return sums


def _add(sums: RunningSumsRow, stated: Mapping[str, Sums]) -> None:
    changed = {validator: add(sums.by_validator.get(validator, {}), each) for validator, each in stated.items()}
    sums.submissions, sums.by_validator = sums.submissions + 1, {**sums.by_validator, **changed}


def _compare_for_replay(params: PoolParams, sums: RunningSumsRow, validators: Container[str]) -> None:
    above = get_highest(list_standings(params, sums.by_validator, validators, allowance=REPLAY_ALLOWANCE))
    log = get_logger().bind(node=sums.node, submissions=sums.submissions)
    if above is not None and not sums.above:
        log.warning("all work of a node is replayed because of its running sums", **above._asdict())
    elif above is None and sums.above:
        log.info("the running sums of a node are below their limits again")
    sums.above = above.statistic if above else ""
    if above is None and sums.submissions >= WINDOW:
        sums.submissions, sums.by_validator = 0, {}


def list_standings(
    params: PoolParams, by_validator: Mapping[str, Sums], validators: Container[str], *, allowance: float
) -> list[SumStanding]:
    """Return the standing of a node in each limited statistic, from the sums that validators reported.

    `validators` are all validators of the pool. Sums reported by anybody else do not count.
    """
    present = _select(by_validator, validators)
    return compare(present, params.verification.thresholds, quorum=params.quorum, allowance=allowance)


def _select(by_validator: Mapping[str, Sums], validators: Container[str]) -> Mapping[str, Sums]:
    return {validator: sums for validator, sums in by_validator.items() if validator in validators}


class PoolMeans:
    """The means of a pool's nodes. They are loaded once, and only if a node is far above a limit."""

    def __init__(self, repository: Repository, params: PoolParams, validators: Container[str]) -> None:
        self._repository, self._params, self._validators = repository, params, validators

    @cached_property
    def _by_contributor(self) -> dict[str, list[dict[StatisticName, float]]]:
        rows = self._repository.list_sums_by_contributor(submissions=PEER_SUBMISSIONS)
        return {owner: [self._list_means(each) for each in group] for owner, group in rows.items()}

    def _list_means(self, row: RunningSumsRow) -> dict[StatisticName, float]:
        standings = list_standings(self._params, row.by_validator, self._validators, allowance=REPLAY_ALLOWANCE)
        return {each.statistic: each.total / each.items for each in standings}

    def list_others(self, statistic: StatisticName, *, contributor: str) -> list[float]:
        """Return the means of other contributors' active nodes that have enough submissions."""
        groups = (group for owner, group in self._by_contributor.items() if owner != contributor)
        return [means[statistic] for group in groups for means in group if statistic in means]


def _judge_far(repository: Repository, far: SumStanding, *, means: PoolMeans, node: NodeRow) -> None:
    """Suspend a node far above a limit if it is also far above other nodes. Otherwise log once that this happened."""
    log, others = get_logger().bind(node=node.address), means.list_others(far.statistic, contributor=node.contributor)
    is_apart = len(others) >= PEERS and far.total / far.items > (1 + SUSPENSION_ALLOWANCE) * median(others)
    if is_apart:
        log.error("a node is suspended because of its running sums", **far._asdict())
        _suspend(repository, node, node.contributor)
    elif not repository.get_fact(UNFIT):
        repository.set_fact(UNFIT, 1)
        log.error(
            "the running sums of a node are far above their limits, but not far above those of enough other nodes, so"
            " the calibration may no longer fit. Measure the thresholds again",
            nodes=len(others),
            **far._asdict(),
        )


def _suspend(repository: Repository, node: NodeRow, contributor: str) -> None:
    others = [each for each in repository.list_nodes_of(contributor) if each.address != node.address]
    if any(each.suspended == nodes.SUMS for each in others):
        nodes.suspend_all(repository, contributor, nodes.SUMS, with_node=node)
    else:
        nodes.suspend(repository, node, nodes.SUMS)


def _report_differing(params: PoolParams, row: SubmissionRow, stated: Mapping[str, Sums]) -> None:
    """Log validators whose sums for one submission differ more than those of honest validators on other hardware."""
    limits, (first, *others) = params.verification.thresholds, stated.values()
    differing = {name for each in others for name in list_differing(first, each, limits, is_same_engine=False)}
    if differing:
        get_logger().warning(
            "validators disagree about sums", task=row.task, statistics=sorted(differing), validators=sorted(stated)
        )
