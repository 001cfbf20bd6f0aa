"""Routes of workers: registration, signs of life, and leases.  Each is one transaction, then the kicks."""

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool

from coordinator.api import stake_check
from coordinator.api.auth import Ctx, Node
from coordinator.api.long_poll import wait_for
from coordinator.context import Context
from coordinator.db import models
from coordinator.db.repository import Repository
from coordinator.domain import nodes, tasks
from covey.errors import ProtocolError
from covey.protocol.api.worker import ClaimRequest, Heartbeat, RegistrationResponse, ReturnRequest, TaskOrder
from covey.protocol.ids import Address, Hash, LeaseId, PoolId, Step, TaskId

router = APIRouter(prefix="/v1", tags=["worker"])


@router.post("/nodes")
def register(ctx: Ctx, node: Node) -> RegistrationResponse:
    """Register a node that the chain knows and whose contributor has staked enough.

    Raises ProtocolError "unknown_node" or "stake_too_low".
    """
    contributor = ctx.contracts.nodes.contributor_of(PoolId(ctx.config.pool), node)
    if contributor is None:
        raise ProtocolError("unknown_node", f"no contributor vouches for {node} on chain", status=403)
    stake_check.require_stake(ctx, node, contributor)
    with ctx.database.write() as repository:
        nodes.register_node(repository, ctx.params, node=node, contributor=contributor)
    return RegistrationResponse(node=node, contributor=contributor)


@router.post("/heartbeat", status_code=204)
def heartbeat(ctx: Ctx, node: Node, body: Heartbeat) -> None:
    """A sign of life; raises as `nodes.record_heartbeat`."""
    with ctx.database.write() as repository:
        _record_heartbeat(ctx, repository, node, body)


@router.post("/tasks/claim")
async def claim_task(ctx: Ctx, node: Node, body: ClaimRequest) -> TaskOrder | None:
    """Long-poll for a lease; null when there is none yet."""
    await run_in_threadpool(ask_for_task, ctx, node, body)
    return await wait_for(ctx, body.wait_seconds, lambda: collect_task(ctx, node, body))


@router.post("/tasks/return", status_code=204)
def return_task(ctx: Ctx, node: Node, body: ReturnRequest) -> None:
    """Give a lease back before its end; raises as `tasks.require_lease`."""
    with ctx.database.write() as repository:
        tasks.return_task(
            repository, ctx.params, node=node, task=TaskId(body.task), lease=LeaseId(body.lease), now=ctx.clock()
        )
    ctx.kicker.kick("assign_tasks")


def ask_for_task(ctx: Context, node: Address, body: ClaimRequest) -> None:
    """Note that a node waits; raise ProtocolError "suspended", "stake_too_low" or "another_instance" when it is not
    served.

    Stake is looked up at every claim: it may have been unbonded since the node registered.
    """
    with ctx.database.read() as repository:
        contributor = Address(nodes.require_node(repository, node).contributor)
    stake_check.require_stake(ctx, node, contributor)
    with ctx.database.write() as repository:
        row = _record_heartbeat(ctx, repository, node, body, wait=body.wait_seconds)
        if row.barred:
            raise ProtocolError("suspended", f"{node} is suspended: {row.barred}", status=403)
    ctx.kicker.kick("assign_tasks")


def collect_task(ctx: Context, node: Address, body: ClaimRequest) -> TaskOrder | None:
    """The lease that `assign_tasks` has made for a waiting node, if any; raises as `tasks.collect_task`."""
    with ctx.database.read() as repository:
        if repository.get_assigned_task(node, body.holding) is None:
            return None
    with ctx.database.write() as repository:
        task = tasks.collect_task(
            repository, ctx.params, node=node, instance=body.instance, now=ctx.clock(), holding=body.holding
        )
        step = repository.get_step(task.policy_version) if task else None
        if task is None or step is None or task.lease is None:
            return None
        return TaskOrder(
            task=TaskId(task.id),
            lease=LeaseId(task.lease),
            policy_version=Step(task.policy_version),
            record_hash=Hash(step.record_hash),
            groups=task.groups,
            deadline=task.expires_at,
        )


def _record_heartbeat(
    ctx: Context, repository: Repository, node: Address, body: Heartbeat, *, wait: float = 0.0
) -> models.NodeRow:
    return nodes.record_heartbeat(
        repository,
        ctx.params,
        node=node,
        instance=body.instance,
        free_slots=body.free_slots,
        cached_version=body.cached_version,
        now=ctx.clock(),
        wait=wait,
    )
