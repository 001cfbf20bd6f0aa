"""Brings hard rejections to court: proposes a case with the quorum's signatures, and executes it after the veto window.

Every validator does this for every case, and finds most steps already done by others. The sender earns nothing.
"""

import asyncio

from covey.chain.contracts import CASE_GRACE
from covey.chain.structs import Accusation, BondKind, OnChainCaseState
from covey.errors import ProtocolError
from covey.protocol import eip712
from covey.protocol.api.validator import HardCase
from covey.protocol.ids import Address
from covey.protocol.messages import Verdict
from covey.runtime.cycle import CycleResult
from covey.runtime.log import get_logger
from validator.context import Context


async def cycle(ctx: Context) -> CycleResult:
    """Advance the cases of all hard rejections that are not closed."""
    cases = await ctx.network.coordinator.list_hard_cases()
    for case in cases:
        await asyncio.to_thread(enforce, ctx, case)
    await asyncio.to_thread(ctx.sender.pump)
    return CycleResult.IDLE


def enforce(ctx: Context, case: HardCase) -> None:
    """Advance one case: propose it if it is not on chain, execute it after its veto window, or let it lapse after
    CASE_GRACE.
    """
    court, receipt = ctx.network.contracts.court, case.receipt.to_message()
    accusation = Accusation(
        receipt_hash=eip712.compute_struct_hash(receipt),
        pool=receipt.pool,
        node=receipt.node,
        contributor=receipt.contributor,
    )
    on_chain = court.get_case(accusation)
    now = ctx.network.chain.get_block("latest").timestamp
    if on_chain.state is OnChainCaseState.NONE:
        _propose(ctx, case, now)
    elif on_chain.state is OnChainCaseState.LOCKED and now >= on_chain.veto_until + CASE_GRACE:
        ctx.send(f"lapse/{accusation.receipt_hash}", court.lapse(accusation))
    elif on_chain.state is OnChainCaseState.LOCKED and now >= on_chain.veto_until:
        ctx.send(f"execute/{accusation.receipt_hash}", court.execute(accusation))


def _propose(ctx: Context, case: HardCase, now: int) -> None:
    """Propose a case with one verdict of each validator that has voting power, if these validators are a quorum.

    The court takes at most `max_slashes` x `slash_amount` from a contributor within a span of `unbond_window`. A
    refused proposal is sent again in the next span. Verdicts are valid for longer than a span; see `app.build`.
    """
    if not _is_signed(ctx, case):
        return
    receipt, signed = case.receipt.to_message(), _choose_verdicts(ctx, case, now)
    if len(signed) < ctx.network.terms.quorum:
        return
    verdicts = [verdict for verdict, _ in signed.values()]
    call = ctx.network.contracts.court.propose(receipt, case.signature, verdicts, [s for _, s in signed.values()])
    span = now // ctx.network.terms.unbond_window
    ctx.send(f"propose/{eip712.compute_struct_hash(receipt)}/{span}", call)


def _is_signed(ctx: Context, case: HardCase) -> bool:
    """Return whether the receipt and the coordinator's copies of the verdicts are signed by the addresses that they
    contain.
    """
    domain, receipt = ctx.network.receipt_domain, case.receipt.to_message()
    try:
        eip712.require_signer(receipt, domain, case.signature, receipt.node)
        for verdict, signature in zip(case.verdicts, case.signatures, strict=True):
            message = verdict.to_message()
            eip712.require_signer(message, domain, signature, message.validator)
    except (ProtocolError, ValueError) as error:
        get_logger().warning("a case has an invalid signature", task=receipt.task, error=str(error))
        return False
    return True


def _choose_verdicts(ctx: Context, case: HardCase, now: int) -> dict[Address, tuple[Verdict, str]]:
    """Return the usable verdicts with their signatures, by validator.

    A single verdict that has expired, or whose signer is not a validator of the pool or has too small a bond, makes the
    court refuse the whole proposal. Such verdicts are skipped.
    """
    pool, terms = ctx.network.pool, ctx.network.terms
    pools, stakes = ctx.network.contracts.pools, ctx.network.contracts.stakes
    chosen: dict[Address, tuple[Verdict, str]] = {}
    for body, signature in zip(case.verdicts, case.signatures, strict=True):
        verdict = body.to_message()
        bond = stakes.stake_of(pool, BondKind.VALIDATOR, verdict.validator)
        has_power = bond >= terms.validator_bond and pools.is_validator(pool, verdict.validator)
        if has_power and verdict.deadline > now:
            chosen[verdict.validator] = (verdict, signature)
    return chosen
