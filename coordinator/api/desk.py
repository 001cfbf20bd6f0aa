"""What happens behind each route of `api`: checks against chain and store, one transaction, then the kicks.

Everything here is synchronous but `wait_for`; a kick is sent after the transaction has committed.
"""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from starlette.concurrency import run_in_threadpool

from coordinator.api import intake, stake
from coordinator.api.auth import Office
from coordinator.context import Context
from coordinator.db.models import Node
from coordinator.db.repository import Repository
from coordinator.domain import judging, nodes, steps, submissions, tasks
from covey.errors import ProtocolError
from covey.protocol import canonical, eip712, messages
from covey.protocol.api.common import MAX_EVIDENCE_BYTES, ReceiptBody
from covey.protocol.api.trainer import BatchItem, BatchOrder
from covey.protocol.api.validator import (
    CommitRequest,
    JudgeOrder,
    RevealOrder,
    RevealRequest,
    TurnRequest,
    ValidationOrder,
)
from covey.protocol.api.worker import ClaimRequest, Heartbeat, RegistrationAnswer, ReturnRequest, TaskOrder
from covey.protocol.evidence import get_key, get_live_groups, require_object
from covey.protocol.ids import Address, Hash, LeaseId, PoolId, Step, TaskId
from covey.protocol.status import StepState

SEEN_SECONDS = 10.0
"""A validator's sign of life is written at most this often."""
LOOK_SECONDS = 1.0
"""A waiting request looks as often although nothing was committed: some answers depend on the time."""
Answer = TypeVar("Answer")


class Polls:
    """The newest long poll of each validator in this process.  Opening another one ends it."""

    def __init__(self) -> None:
        self._newest: dict[Address, object] = {}

    def open(self, holder: Address) -> tuple[Address, object]:
        """Begin a poll; whatever `holder` had open before ends."""
        token = object()
        self._newest[holder] = token
        return holder, token

    def is_open(self, poll: tuple[Address, object]) -> bool:
        holder, token = poll
        return self._newest.get(holder) is token


async def wait_for(
    ctx: Context, seconds: float, look: Callable[[], Answer | None], *, is_open: Callable[[], bool] = lambda: True
) -> Answer | None:
    """Look again and again for at most `seconds`, while `is_open`; None when nothing came or the process is to end.

    Between two looks something has been committed, or LOOK_SECONDS have passed.
    """
    loop = asyncio.get_running_loop()
    deadline, look_at, seen = loop.time() + seconds, 0.0, None
    while True:
        if not is_open():
            return None
        is_last = loop.time() >= deadline or ctx.stop.is_set()
        newest = ctx.database.changes.read()  # before the look: what is committed meanwhile is looked at next time
        if is_last or newest is None or newest != seen or loop.time() >= look_at:
            seen, look_at = newest, loop.time() + LOOK_SECONDS
            found = await run_in_threadpool(look)
            if found is not None or is_last:
                return found
        await asyncio.sleep(ctx.config.poll_seconds)


# -- workers


def register_node(ctx: Context, node: Address) -> RegistrationAnswer:
    """Check a node against the chain and record it; raise ProtocolError "unknown_node" or "stake_too_low"."""
    contributor = ctx.contracts.nodes.contributor_of(PoolId(ctx.config.pool), node)
    if contributor is None:
        raise ProtocolError("unknown_node", f"no contributor vouches for {node} on chain", status=403)
    stake.require_stake(ctx, node, contributor)
    with ctx.database.write() as repository:
        nodes.register_node(repository, ctx.params, node=node, contributor=contributor)
    return RegistrationAnswer(node=node, contributor=contributor)


def record_heartbeat(ctx: Context, node: Address, body: Heartbeat) -> None:
    """Note a sign of life; raises as `standing.record_heartbeat`."""
    with ctx.database.write() as repository:
        _record_heartbeat(ctx, repository, node, body)


def _record_heartbeat(
    ctx: Context, repository: Repository, node: Address, body: Heartbeat, *, wait: float = 0.0
) -> Node:
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


def ask_for_task(ctx: Context, node: Address, body: ClaimRequest) -> None:
    """Note that a node waits; raise ProtocolError "suspended", "stake_too_low" or "another_instance" when it is not
    served.

    Stake is looked up at every claim: it may have been unbonded since the node registered.
    """
    with ctx.database.read() as repository:
        contributor = Address(nodes.require_node(repository, node).contributor)
    stake.require_stake(ctx, node, contributor)
    with ctx.database.write() as repository:
        row = _record_heartbeat(ctx, repository, node, body, wait=body.wait_seconds)
        if row.barred:
            raise ProtocolError("suspended", f"{node} is suspended: {row.barred}", status=403)
    ctx.kicker.kick("assign_tasks")


def collect_task(ctx: Context, node: Address, body: ClaimRequest) -> TaskOrder | None:
    """The lease that `assign_tasks` has made for a waiting node, if any; raises as `service.collect_task`."""
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
            manifest_hash=Hash(step.manifest_hash),
            groups=task.groups,
            deadline=task.deadline,
        )


def return_task(ctx: Context, node: Address, body: ReturnRequest) -> None:
    """End a lease that `node` cannot serve; raises as `service.require_lease`."""
    with ctx.database.write() as repository:
        tasks.return_task(
            repository, ctx.params, node=node, task=TaskId(body.task), lease=LeaseId(body.lease), now=ctx.clock()
        )
    ctx.kicker.kick("assign_tasks")


# -- validators and the trainer


def note_validator(ctx: Context, validator: Address) -> None:
    """Record that a validator asks for work, unless that was recorded in the last seconds."""
    now = ctx.clock()
    with ctx.database.read() as repository:
        row = repository.get_validator(validator)
        if row is not None and row.seen_at > now - SEEN_SECONDS:
            return
    with ctx.database.write() as repository:
        repository.require_validator(validator).seen_at = now


def claim_validation(ctx: Context, office: Office, body: TurnRequest) -> ValidationOrder | None:
    """The next turn or reveal for a validator."""
    with ctx.database.read() as repository:
        if not repository.list_open_judgements():
            return None
    with ctx.database.write() as repository:
        found = judging.claim_turn(
            repository,
            ctx.params,
            validator=office.holder,
            validators=office.validators,
            holding=body.holding,
            free_turns=body.free_turns,
            now=ctx.clock(),
        )
        if found is None:
            return None
        kind, judgement = found
        if kind == "reveal":
            return ValidationOrder(order=RevealOrder(judgement=judgement.id))
        row = repository.get_submission(judgement.receipt_hash)
        step = repository.get_step(row.policy_version) if row else None
        if row is None or step is None:
            return None
        return ValidationOrder(
            order=JudgeOrder(
                judgement=judgement.id,
                receipt=ReceiptBody.of(submissions.to_receipt(row, ctx.config.pool)),
                signature=row.signature,
                url=intake.sign_download(ctx, row),
                manifest_hash=Hash(step.manifest_hash),
                full=judgement.full,
                seconds_left=max(0.0, judgement.deadline - ctx.clock()),
            )
        )


def record_commit(ctx: Context, validator: Address, body: CommitRequest) -> None:
    with ctx.database.write() as repository:
        judging.record_commit(
            repository,
            ctx.params,
            validator=validator,
            judgement=body.judgement,
            commitment=body.commitment,
            now=ctx.clock(),
        )


def record_reveal(ctx: Context, validator: Address, body: RevealRequest) -> None:
    """Verify a revealed verdict and its signature, keep its evidence, record it."""
    verdict = body.verdict.to_message()
    if verdict.validator != validator or verdict.pool != ctx.config.pool:
        raise ProtocolError("bad_verdict", "the verdict names another validator or pool")
    eip712.require_signer(verdict, ctx.receipt_domain, body.signature, validator)
    digest = eip712.compute_digest(verdict, ctx.receipt_domain)
    evidence, live_groups = _require_evidence(ctx, verdict, body)
    with ctx.database.write() as repository:
        judging.record_reveal(
            repository,
            ctx.params,
            judgement=body.judgement,
            verdict=verdict,
            digest=digest,
            salt=body.salt,
            signature=body.signature,
            live_groups=live_groups,
            now=ctx.clock(),
        )
        ctx.store.put_named_by_content(get_key(ctx.config.pool, verdict.evidence_hash), evidence)
    ctx.kicker.kick("tally")


def _require_evidence(ctx: Context, verdict: messages.Verdict, body: RevealRequest) -> tuple[bytes, int | None]:
    """The bytes to keep, and the one thing in them that is acted upon.  All that they say is the validator's word."""
    evidence = body.evidence.encode()
    if len(evidence) > MAX_EVIDENCE_BYTES:
        raise ProtocolError("bad_verdict", f"evidence has at most {MAX_EVIDENCE_BYTES} bytes")
    if canonical.sha256(evidence) != verdict.evidence_hash:
        raise ProtocolError("bad_verdict", "the evidence does not have the hash that the verdict names")
    return evidence, get_live_groups(require_object(evidence), groups=ctx.params.groups_per_task)


def find_batch(ctx: Context, step: int) -> BatchOrder | None:
    """The batch of a step, once it is ready."""
    with ctx.database.read() as repository:
        is_next = steps.is_next(repository, step)
    if is_next:
        with ctx.database.write() as repository:
            steps.open_ahead(repository, ctx.params, number=step)
    with ctx.database.read() as repository:
        row = repository.get_step(step)
        if row is None or row.state is StepState.OPEN:
            return None
        manifests = {s.number: Hash(s.manifest_hash) for s in repository.list_steps() if s.manifest_hash}
        items = tuple(
            BatchItem(
                receipt_hash=Hash(s.receipt_hash),
                task=TaskId(s.task),
                node=Address(s.node),
                policy_version=Step(s.policy_version),
                manifest_hash=manifests[s.policy_version],
                work_key=Hash(s.work_key),
                url=intake.sign_download(ctx, s),
                replayed=s.is_replayed,
            )
            for s in repository.list_batch(step)
        )
    return BatchOrder(step=Step(step), items=items)
