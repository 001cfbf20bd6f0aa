"""Dependencies of routes: the context, the state of the process, and the verified signer (see `admission`)."""

from typing import Annotated, cast

from fastapi import Depends, Request

from coordinator.api.admission import SIGNER
from coordinator.api.state import ApiState
from coordinator.context import Context
from covey.protocol.ids import Address


async def get_state(request: Request) -> ApiState:
    """Return the state of this API process."""
    return cast(ApiState, request.app.state.api)


async def get_context(request: Request) -> Context:
    """Return the coordinator's context."""
    return cast(ApiState, request.app.state.api).ctx


async def get_signer(request: Request) -> Address:
    """Return the address that signed the request. `admission` has verified that it has the role of the route."""
    return cast(Address, request.scope[SIGNER])


Ctx = Annotated[Context, Depends(get_context)]
State = Annotated[ApiState, Depends(get_state)]
Node = Annotated[Address, Depends(get_signer)]
Validator = Annotated[Address, Depends(get_signer)]
Trainer = Annotated[Address, Depends(get_signer)]
Operator = Annotated[Address, Depends(get_signer)]
