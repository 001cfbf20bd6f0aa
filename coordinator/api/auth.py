"""Who is asking: verifies signed requests and the role of the signer, as dependencies of the routes.

The authority comes from settings, never from the Host header; a nonce is used once and kept until it could not pass.
"""

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request
from starlette.concurrency import run_in_threadpool

from coordinator.context import Context
from covey.errors import ProtocolError
from covey.protocol import http_signatures
from covey.protocol.ids import Address, PoolId


async def require_signer(ctx: Context, request: Request) -> Address:
    """The address that signed the request; raise ProtocolError "unsigned", "bad_signature", "replayed_nonce" ..."""
    signed = http_signatures.SignedRequest(
        method=request.method,
        authority=ctx.config.signed_authority,
        path=request.url.path,
        query=request.url.query,
        body=await request.body(),
    )
    now = ctx.clock()
    signature = http_signatures.verify_request(signed, request.headers, chain_id=ctx.ledger.chain_id, now=int(now))
    await run_in_threadpool(_use_nonce, ctx, signature, now)  # it waits for the one writer: others are served meanwhile
    return signature.signer


def _use_nonce(ctx: Context, signature: http_signatures.RequestSignature, now: float) -> None:
    expires = signature.expires + http_signatures.SKEW_SECONDS
    with ctx.database.write() as repository:
        if not repository.is_nonce_new(signature.signer, signature.nonce, expires=expires, now=now):
            raise ProtocolError("replayed_nonce", "the nonce was used before", status=401)


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidatorCaller:
    """A validator that asks, and all validators that the chain names."""

    validator: Address
    validators: tuple[Address, ...]


def find_caller(ctx: Context, address: Address) -> ValidatorCaller:
    """Return when the chain names `address` a validator of the pool; raise ProtocolError("not_a_validator")."""
    pool = PoolId(ctx.config.pool)
    validators = tuple(ctx.contracts.pools.get_validators(pool))
    if address in validators and ctx.contracts.pools.is_validator(pool, address):
        return ValidatorCaller(validator=address, validators=validators)
    raise ProtocolError("not_a_validator", f"{address} is not a validator of pool {ctx.config.pool}", status=403)


def require_trainer_address(ctx: Context, address: Address) -> None:
    """Return when `address` is the pool's trainer; raise ProtocolError("not_the_trainer")."""
    if address != ctx.terms.trainer:
        raise ProtocolError("not_the_trainer", f"{address} is not the trainer of pool {ctx.config.pool}", status=403)


def get_context(request: Request) -> Context:
    ctx: Context = request.app.state.ctx
    return ctx


Ctx = Annotated[Context, Depends(get_context)]


async def require_node(ctx: Ctx, request: Request) -> Address:
    return await require_signer(ctx, request)


async def require_validator_caller(ctx: Ctx, request: Request) -> ValidatorCaller:
    signer = await require_signer(ctx, request)
    return await run_in_threadpool(find_caller, ctx, signer)


async def require_validator(ctx: Ctx, request: Request) -> Address:
    return (await require_validator_caller(ctx, request)).validator


async def require_trainer(ctx: Ctx, request: Request) -> Address:
    signer = await require_signer(ctx, request)
    require_trainer_address(ctx, signer)
    return signer


Node = Annotated[Address, Depends(require_node)]
Validator = Annotated[Address, Depends(require_validator)]
CallingValidator = Annotated[ValidatorCaller, Depends(require_validator_caller)]
Trainer = Annotated[Address, Depends(require_trainer)]
