"""Builds what pages and their JSON show of an account: its standing, its pay, and why no work comes to its nodes."""

from collections import Counter

from coordinator.db.repository import Repository
from coordinator.domain import idleness
from coordinator.pages.case_views import describe_case
from coordinator.pages.context import PagesContext
from coordinator.pages.pool_views import DAY_SECONDS, HOUR_SECONDS, describe_node
from covey.chain.contracts import OMISSION_BOND
from covey.errors import ProtocolError
from covey.protocol.api.pages import AddressView
from covey.protocol.ids import Address
from covey.protocol.prices import compute_reward

MAX_LISTED = 100
"""Maximum number of nodes, and of cases, that the view of a contributor lists."""
MAX_EXPLAINED = 20
"""Maximum number of nodes for which it is looked up why no work comes."""

_NO_NODE = "It is a validator and has never had a node, so no work comes."


def build_address(ctx: PagesContext, rows: Repository, address: Address, *, now: float) -> AddressView:
    """Return a contributor or a validator.

    Raises ProtocolError("unknown_address") if it never had a node, is not a validator and was not paid as one.
    """
    standing = rows.find_contributor_item(address)
    found = rows.list_node_items(contributor=address, limit=MAX_LISTED)
    paid = rows.sum_paid_verdicts(account=address)[address]
    is_contributor = standing is not None or bool(found)
    if not (is_contributor or paid or address in ctx.chain.bonds):
        raise ProtocolError("unknown_address", f"no node of {address} was ever registered here", status=404)
    sums, prices = rows.sum_submissions(address), ctx.read_prices(rows)
    price = prices.present
    count = rows.count_nodes_of([address]).get(address, 0)
    staked, locked, claimed = (standing.staked, standing.locked, standing.claimed) if standing else (None, None, None)
    hour = rows.sum_units_since(address, since=now - HOUR_SECONDS)
    challenges = rows.count_open_challenges(address)
    return AddressView(
        address=address,
        suspended=standing.suspended if standing else "",
        strikes=standing.strikes if standing else 0,
        pardons=standing.pardons if standing else 0,
        dropped=standing.dropped if standing else 0,
        staked=None if staked is None else int(staked),
        locked=None if locked is None else int(locked),
        claimed=None if claimed is None else int(claimed),
        validator_bond=ctx.chain.bonds.get(address),
        open_challenges=challenges,
        omission_bonds_wei=challenges * OMISSION_BOND,
        required=ctx.terms.min_stake * count,
        submissions=sums.submissions,
        undecided=sums.undecided,
        accepted=sums.accepted,
        settled=sum(
            compute_reward(units, prices.find(epoch)) for epoch, units in rows.sum_units_by_epoch(address).items()
        )
        + ctx.terms.verdict_fees.compute_total(paid),
        waiting=compute_reward(sums.units_waiting, price),
        day=compute_reward(rows.sum_units_since(address, since=now - DAY_SECONDS), price),
        expected_day=compute_reward(hour * (DAY_SECONDS // HOUR_SECONDS), price),
        sentence=explain_work(ctx, rows, address, now=now) if is_contributor else _NO_NODE,
        nodes=tuple(describe_node(item, now) for item in found),
        cases=tuple(map(describe_case, rows.list_case_items(contributor=address, limit=MAX_LISTED))),
    )


def explain_work(ctx: PagesContext, rows: Repository, contributor: Address, *, now: float) -> str:
    """Return in one sentence whether work comes to a contributor's nodes, and otherwise the most common reason."""
    present = [node for node in rows.list_nodes_of(contributor) if not node.removed]
    if not present:
        return "None of its nodes is registered, so no work comes. Register one with covey worker register."
    asked = present[:MAX_EXPLAINED]
    busy = {task.node for task in rows.list_leased([node.address for node in asked])}
    if busy:
        return f"Work comes: {len(busy)} of {len(asked)} nodes hold a lease."
    reasons = [idleness.explain(rows, ctx.params, node, rule=ctx.stake_rule, now=now) for node in asked]
    code, count = Counter(reason.code for reason in reasons).most_common(1)[0]
    sentence = next(reason.sentence for reason in reasons if reason.code == code)
    return sentence if len(asked) == 1 else f"{count} of {len(asked)} nodes: {sentence}"
