"""Brings hard rejections to court: proposes a case with the quorum's signatures, and executes it after the veto window.

Every validator does this for every case, and finds most steps already done by others. The sender earns nothing.
"""

import asyncio

from eth_utils.crypto import keccak

from covey.chain.contracts import CASE_GRACE
from covey.chain.structs import Accusation, BondKind, OnChainCaseState
from covey.errors import OperatorError, ProtocolError
from covey.network.entry import Network
from covey.protocol import eip712
from covey.protocol.api.validator import HardCase
from covey.protocol.ids import Address
from covey.protocol.messages import Verdict
from covey.runtime.cycle import CycleResult, wait_or_stop
from covey.runtime.log import get_logger
from validator.context import Context

RETRY_SECONDS = 600
"""Time after which a call that was refused for good is sent again, as another intent."""
DOUBT_SECONDS, LOOKS = 120.0, 12
"""Time for which the chain must say that a validator has no power before it stops, and the number of looks meanwhile.
One answer may come from a node that lags."""


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

    A refused execution is sent again every RETRY_SECONDS until the grace ends: a node may lag for longer than the
    outbox waits, and a paused token may be unpaused. In the second half of the grace each try is an error in the log.
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
        ctx.send(f"lapse/{accusation.receipt_hash}/{now // RETRY_SECONDS}", court.lapse(accusation))
    elif on_chain.state is OnChainCaseState.LOCKED and now >= on_chain.veto_until:
        ctx.send(f"execute/{accusation.receipt_hash}/{now // RETRY_SECONDS}", court.execute(accusation))
        if now >= on_chain.veto_until + CASE_GRACE / 2:
            get_logger().error(
                "a case is about to lapse: run covey case execute with another node of the chain",
                receipt_hash=accusation.receipt_hash,
                seconds_left=on_chain.veto_until + CASE_GRACE - now,
            )


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
    signers = keccak(text=" ".join(sorted(signed)))[:4].hex()  # others may have signed since an earlier proposal
    call = ctx.network.contracts.court.propose(receipt, case.signature, verdicts, [s for _, s in signed.values()])
    span = now // ctx.network.terms.unbond_window
    ctx.send(f"propose/{eip712.compute_struct_hash(receipt)}/{span}/{signers}", call)


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

    A single verdict that has expired, or whose signer is not a validator of the pool or has too little stake to lose,
    makes the court refuse the whole proposal. Such verdicts are skipped.
    """
    pool, terms = ctx.network.pool, ctx.network.terms
    pools, stakes = ctx.network.contracts.pools, ctx.network.contracts.stakes
    chosen: dict[Address, tuple[Verdict, str]] = {}
    for body, signature in zip(case.verdicts, case.signatures, strict=True):
        verdict = body.to_message()
        at_stake = stakes.lasting_bond_of(pool, verdict.validator)
        has_power = at_stake >= terms.validator_bond and pools.is_validator(pool, verdict.validator)
        if has_power and verdict.deadline > now:
            chosen[verdict.validator] = (verdict, signature)
    return chosen


async def watch_power(ctx: Context) -> CycleResult:
    """Raise the errors of `require_power` once they have lasted for DOUBT_SECONDS.

    A validator that has lost its bond or its seat gets no more turns.
    """
    for look in range(LOOKS + 1):
        try:
            await asyncio.to_thread(require_power, ctx.network)
            break
        except OperatorError as error:
            if look == LOOKS:
                raise
            get_logger().warning("the chain counts no verdicts of this validator", code=error.code)
        if await wait_or_stop(ctx.stop, DOUBT_SECONDS / LOOKS):
            break
    return CycleResult.IDLE


def require_power(network: Network) -> None:
    """Raise OperatorError unless this validator is the pool's on chain and its bond is large enough for the court.

    The codes are "not_a_validator" and "bond_too_small".
    """
    pool, address = network.pool, network.wallet.address
    if not network.contracts.pools.is_validator(pool, address):
        raise OperatorError(
            "not_a_validator",
            f"{address} is not an active validator of pool {pool}",
            fix="Set key_file to the key of a validator that covey pool show lists, or ask the operator to run"
            f" covey pool replace-validator OLD {address}",
        )
    missing = network.terms.validator_bond - network.contracts.stakes.stake_of(pool, BondKind.VALIDATOR, address)
    if missing > 0:
        raise OperatorError(
            "bond_too_small",
            f"the bond of {address} is too small: pool {pool} requires "
            f"{network.terms.validator_bond}, so {missing} is missing",
            fix=f"Run covey stake add {missing} --raw --kind validator",
        )
