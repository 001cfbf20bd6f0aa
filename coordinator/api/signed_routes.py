"""Responds to signed requests by calling their endpoints directly.

FastAPI's routing and dependency injection take longer than most endpoints. A signed request is a POST to a fixed path
with a JSON body, so it needs neither. Routes are still declared only in the routers, from which the OpenAPI document is
generated. All other requests go to the application.
"""

import inspect
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from fastapi import APIRouter, Request
from fastapi.params import Depends
from fastapi.routing import APIRoute
from pydantic import TypeAdapter, ValidationError
from starlette.types import ASGIApp, Receive, Scope, Send

from coordinator.api.admission import SIGNER
from coordinator.api.auth import get_context, get_signer, get_state
from coordinator.api.error_answers import describe_bad_body, describe_error
from coordinator.api.state import ApiState
from covey.errors import CoveyError
from covey.protocol.api.common import ErrorBody

_EMPTY = 204


class _Call(NamedTuple):
    """The parts of a request that endpoints use."""

    state: ApiState
    scope: Scope
    receive: Receive
    body: bytes


Parameter = Callable[[_Call], object]
"""Function that returns a parameter of an endpoint. Raises ValidationError if the body is not valid."""
_DEPENDENCIES: Mapping[object, Parameter] = {
    get_state: lambda call: call.state,
    get_context: lambda call: call.state.ctx,
    get_signer: lambda call: call.scope[SIGNER],
}


class SignedRoute:
    """A route of signed requests. Example: `status, body = await SignedRoute(route).answer(state, scope, receive)`."""

    def __init__(self, route: APIRoute) -> None:
        self.route = route
        signature = inspect.signature(route.endpoint, eval_str=True)
        self._endpoint: Callable[..., Awaitable[object]] = route.endpoint
        self._parameters = {name: _read_parameter(each) for name, each in signature.parameters.items()}
        self._status = route.status_code or 200
        self._result: TypeAdapter[Any] = TypeAdapter(signature.return_annotation)

    async def answer(self, state: ApiState, scope: Scope, receive: Receive) -> tuple[int, bytes]:
        """Return the status and the body of the response. The first message of `receive` has the whole body."""
        call = _Call(state, scope, receive, (await receive())["body"])
        try:
            parameters = {name: read(call) for name, read in self._parameters.items()}
        except ValidationError as error:
            return 422, _dump(describe_bad_body(error.errors(include_url=False), state.ctx.clock()))
        try:
            result = await self._endpoint(**parameters)
        except CoveyError as error:
            status, described = describe_error(error, state.ctx.clock())
            return status, _dump(described)
        return self._status, b"" if self._status == _EMPTY else self._result.dump_json(result, by_alias=True)


class SignedRoutes:
    """ASGI middleware for signed requests. `Admission`, which wraps it, has verified their signatures."""

    def __init__(self, app: ASGIApp, *, state: ApiState, routers: Iterable[APIRouter]) -> None:
        self._app, self._state = app, state
        self._routes = dict(_find_routes(routers))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        route = self._routes.get(scope["path"]) if SIGNER in scope else None
        if route is None:
            await self._app(scope, receive, send)
            return
        scope["route"] = route.route
        status, body = await route.answer(self._state, scope, receive)
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers if body else []})
        await send({"type": "http.response.body", "body": body})


def _find_routes(routers: Iterable[APIRouter]) -> Iterator[tuple[str, SignedRoute]]:
    """Yield the paths and routes of all POST endpoints, which have fixed paths."""
    for router in routers:
        for route in router.routes:
            if isinstance(route, APIRoute) and route.methods == {"POST"}:
                yield route.path, SignedRoute(route)


def _read_parameter(parameter: inspect.Parameter) -> Parameter:
    for each in getattr(parameter.annotation, "__metadata__", ()):
        if isinstance(each, Depends):
            return _DEPENDENCIES[each.dependency]
    if parameter.annotation is Request:
        return lambda call: Request(call.scope, call.receive)
    body: TypeAdapter[object] = TypeAdapter(parameter.annotation)
    if parameter.default is inspect.Parameter.empty:
        return lambda call: body.validate_json(call.body)
    return lambda call: body.validate_json(call.body) if call.body else parameter.default


def _dump(body: ErrorBody) -> bytes:
    return body.model_dump_json().encode()
