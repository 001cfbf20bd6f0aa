"""Brings hard rejections to the court: proposes a case with the quorum's signatures, executes it after the veto window.

Every validator does this for every case; whoever comes second finds it done.  The caller of the court earns nothing.
"""

import asyncio

from covey.chain.structs import CaseState
from covey.errors import ProtocolError
from covey.log import get_logger
from covey.protocol import messages
from covey.protocol.wire import HardCase
from covey.runtime import Outcome
from validator.app import Context


async def cycle(ctx: Context) -> Outcome:
    """Look at every hard rejection whose case is not closed, and move it on."""
    cases = await ctx.network.coordinator.list_hard_cases()
    for case in cases:
        await asyncio.to_thread(enforce, ctx, case)
    await asyncio.to_thread(ctx.sender.pump)
    return Outcome.IDLE


def enforce(ctx: Context, case: HardCase) -> None:
    """Propose a case that the court does not know, execute one whose veto window is over."""
    court, receipt = ctx.network.contracts.court, case.receipt.to_message()
    receipt_hash = messages.compute_struct_hash(receipt)
    case_id = court.case_of(receipt_hash)
    if case_id == 0:
        verdicts = [verdict.to_message() for verdict in case.verdicts]
        if not _is_convincing(ctx, case):
            return
        call = court.propose(receipt, case.signature, verdicts, case.signatures)
        ctx.send(f"propose/{receipt_hash}", call)
        return
    found = court.get_case(case_id)
    now = ctx.network.chain.get_block("latest").timestamp
    if found.state is CaseState.LOCKED and found.veto_until < now:
        ctx.send(f"execute/{case_id}", court.execute(case_id))


def _is_convincing(ctx: Context, case: HardCase) -> bool:
    """Whether the signatures that the coordinator showed are a quorum of the pool's validators."""
    network, receipt = ctx.network, case.receipt.to_message()
    try:
        messages.require_signer(receipt, network.receipt_domain, case.signature, receipt.node)
        for verdict, signature in zip(case.verdicts, case.signatures, strict=True):
            message = verdict.to_message()
            messages.require_signer(message, network.receipt_domain, signature, message.validator)
    except (ProtocolError, ValueError) as error:
        get_logger().warning("a case does not hold", task=receipt.task, error=str(error))
        return False
    signers = {verdict.validator for verdict in case.verdicts}
    validators = set(network.contracts.pools.get_validators(network.pool))
    return len(signers & validators) >= network.terms.quorum
