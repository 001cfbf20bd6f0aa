"""What follows from the running sums of a node: its work is replayed whole, or it is suspended.

Sums come from the evidence of accepting verdicts (`covey.protocol.running_sums`), and are kept by node and validator.
They belong to the node and not to its contributor, because they depend on the hardware. A contributor whose second
node is suspended for its sums is suspended with all nodes, or a new key would begin at 0.
"""

from collections.abc import Mapping

from coordinator.db.models import JudgementRow, NodeRow, SubmissionRow
from coordinator.db.repository import Repository
from coordinator.domain import nodes
from coordinator.domain.turn_order import list_current
from covey.protocol.params import PoolParams
from covey.protocol.running_sums import (
    REPLAY_ALLOWANCE,
    SUSPENSION_ALLOWANCE,
    WINDOW,
    Sums,
    SumStanding,
    add,
    compare,
    find_possible,
    get_highest,
    list_differing,
)
from covey.protocol.verdict import Decision
from covey.runtime.log import get_logger


def find_countable(params: PoolParams, row: SubmissionRow, turn: JudgementRow, sums: Sums | None) -> Sums | None:
    """Return those of a verdict's sums that count for the node. None in the exact lane, and if they are impossible."""
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


def add_accepted(repository: Repository, params: PoolParams, row: SubmissionRow, *, node: NodeRow) -> None:
    """Add the sums of the verdicts that accepted a submission to those of its node, and compare them with the limits.

    A node that is below its limits after `WINDOW` submissions begins again at 0.
    """
    stated = {
        turn.validator: turn.sums
        for turn in list_current(row)
        if turn.validator and turn.sums and not turn.lapsed and turn.verdict and turn.verdict.outcome == Decision.ACCEPT
    }
    if not stated:
        return
    _report_differing(params, row, stated)
    sums = repository.require_running_sums(node.address)
    sums.submissions += 1
    changed = {validator: add(sums.by_validator.get(validator, {}), each) for validator, each in stated.items()}
    sums.by_validator = {**sums.by_validator, **changed}
    above = get_highest(list_standings(params, sums.by_validator, allowance=REPLAY_ALLOWANCE))
    log = get_logger().bind(node=node.address, submissions=sums.submissions)
    if above is not None and not sums.above:
        log.warning("a node is replayed whole because of its running sums", **above._asdict())
    elif above is None and sums.above:
        log.info("the running sums of a node are below their limits again")
    sums.above = above.statistic if above else ""
    if above is None and sums.submissions >= WINDOW:
        sums.submissions, sums.by_validator = 0, {}
    far = get_highest(list_standings(params, sums.by_validator, allowance=SUSPENSION_ALLOWANCE))
    if far is not None and not node.suspended:
        log.error("a node is suspended because of its running sums", **far._asdict())
        _suspend(repository, node, row.contributor)


def list_standings(params: PoolParams, by_validator: Mapping[str, Sums], *, allowance: float) -> list[SumStanding]:
    """Return the standing of a node in each statistic that has a limit, from the sums that validators stated."""
    return compare(by_validator, params.verification.thresholds, quorum=params.quorum, allowance=allowance)


def _suspend(repository: Repository, node: NodeRow, contributor: str) -> None:
    others = [each for each in repository.list_nodes_of(contributor) if each.address != node.address]
    if any(each.suspended == nodes.SUMS for each in others):
        nodes.suspend_all(repository, contributor, nodes.SUMS, with_node=node)
    else:
        nodes.suspend(repository, node, nodes.SUMS)


def _report_differing(params: PoolParams, row: SubmissionRow, stated: Mapping[str, Sums]) -> None:
    """Log validators whose sums of one submission differ by more than those of honest ones on other hardware."""
    limits, (first, *others) = params.verification.thresholds, stated.values()
    differing = {name for each in others for name in list_differing(first, each, limits, is_same_engine=False)}
    if differing:
        get_logger().warning(
            "validators differ about sums", task=row.task, statistics=sorted(differing), validators=sorted(stated)
        )
