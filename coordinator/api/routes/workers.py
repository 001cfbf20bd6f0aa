"""Routes of workers: registration, heartbeats and leases."""

import asyncio

from fastapi import APIRouter, Request

from coordinator.api.auth import Ctx, Node, State
from coordinator.api.documented_answers import SIGNED, name_refusals
from coordinator.api.process.long_poll import call_when_gone
from coordinator.context import Context
from coordinator.db.repository import Repository
from coordinator.domain import exact_lane, nodes, pausing, presence, stakes, tasks
from coordinator.domain.presence import NodeBeat
from coordinator.domain.stakes import Stake
from coordinator.domain.tasks import LeaseRequest
from covey.errors import ProtocolError
from covey.protocol.api.worker import (
    ClaimRequest,
    Heartbeat,
    RegistrationRequest,
    RegistrationResponse,
    ReturnRequest,
    TaskOrder,
)
from covey.protocol.ids import Address, LeaseId, PoolId, TaskId
from covey.runtime.log import get_logger

router = APIRouter(prefix="/v1", tags=["worker"], responses=SIGNED)


@router.post("/nodes")
async def register(state: State, node: Node, body: RegistrationRequest | None = None) -> RegistrationResponse:
    """Register a node that is registered on chain and whose contributor has enough stake.

    Raises ProtocolError("unknown_node") or ProtocolError("stake_too_low"), and the errors of
    `exact_lane.require_served`.
    """
    ctx, contract = state.ctx, body.contract if body else ""
    contributor, stake, looked_up, block = await ctx.chain_executor.run(lambda: _look_up(ctx, node))

    def record(repository: Repository) -> None:
        stakes.record_stake(repository, contributor, stake, block=looked_up)
        count = repository.count_others(contributor, node) + 1
        stakes.require_stake(stake, rule=ctx.stake_rule, contributor=contributor, nodes=count)
        exact_lane.require_served(repository, ctx.params, contract, now=ctx.clock())
        nodes.register_node(repository, node=node, contributor=contributor, block=block, contract=contract)

    await ctx.database.run(record, name="register_node")
    state.members.add_node(node)
    get_logger().info("node has registered", node=node, contributor=contributor)
    return RegistrationResponse(node=node, contributor=contributor)


@router.post("/heartbeat", status_code=204, responses=name_refusals(409))
async def heartbeat(state: State, node: Node, body: Heartbeat) -> None:
    """Record a heartbeat. Raises the errors of `presence.record_beats`."""
    await state.heartbeat_buffer.add(
        NodeBeat(node=node, instance=body.instance, free_slots=body.free_slots, cached_version=body.cached_version)
    )


@router.post("/tasks/claim", responses=name_refusals(409))
async def claim_task(request: Request, state: State, node: Node, body: ClaimRequest) -> TaskOrder | None:
    """Claim a lease, and wait for one if there is no task now. The response is null if there is none in time.

    Raises ProtocolError with the code "suspended", "stake_too_low" or "another_instance" if the node gets no tasks, and
    with the code "pool_paused" at the end of the poll while new tasks are paused.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + body.wait_seconds
    sign = NodeBeat(
        node=node,
        instance=body.instance,
        free_slots=body.free_slots,
        cached_version=body.cached_version,
        is_claim=True,
        waiting_until=state.ctx.clock() + body.wait_seconds,
        holding=body.holding,
    )
    with state.offers.open(node) as offer, call_when_gone(request.receive, offer.leave):
        order = await state.heartbeat_buffer.add(sign)
        while order is None and await offer.wait(max(0.0, deadline - loop.time())):
            order = await state.collections.add(LeaseRequest(node=node, instance=body.instance, holding=body.holding))
    if order is not None:
        get_logger().debug("lease was collected", task=order.task, lease=order.lease, node=node)
        return order
    if offer.has_left:
        await state.ctx.database.run(lambda rows: presence.withdraw_claim(rows, sign), name="withdraw_claim")
        return None
    await state.ctx.database.query(pausing.require_running)
    return None


@router.post("/tasks/return", status_code=204, responses=name_refusals(404, 409))
async def return_task(ctx: Ctx, node: Node, body: ReturnRequest) -> None:
    """Return a lease before its end. Raises the errors of `tasks.require_lease`."""
    task, lease = TaskId(body.task), LeaseId(body.lease)
    await ctx.database.run(
        lambda rows: tasks.return_task(rows, ctx.params, node=node, task=task, lease=lease, now=ctx.clock()),
        name="return_task",
    )
    get_logger().info("lease was given back", task=task, lease=lease, node=node)
    ctx.jobs.trigger("assign_tasks")


def _look_up(ctx: Context, node: Address) -> tuple[Address, Stake, int, int]:
    """Return the contributor of a node, its stake, and the newest block's number before and after reading them."""
    before = ctx.client.block_number()
    contributor = ctx.contracts.nodes.contributor_of(PoolId(ctx.config.pool), node)
    if contributor is None:
        raise ProtocolError("unknown_node", f"no contributor vouches for {node} on chain", status=403)
    return contributor, ctx.chain.read_stake(contributor), before, ctx.client.block_number()
