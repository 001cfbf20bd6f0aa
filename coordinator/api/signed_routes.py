"""Answers signed requests by calling their endpoints directly.

FastAPI's own way to an endpoint takes longer than most endpoints do. A signed request is a POST to a fixed path with a
JSON body, so none of it is needed. The routers remain the one place where routes are declared, and the OpenAPI document
is made from them. Requests of any other kind go to the application.
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
    """A request, as far as endpoints ask for it."""

    state: ApiState
    scope: Scope
    receive: Receive
    body: bytes


Parameter = Callable[[_Call], object]
"""Returns an endpoint's parameter. Raises ValidationError for a body that does not have the required form."""
_DEPENDENCIES: Mapping[object, Parameter] = {
    get_state: lambda call: call.state,
    get_context: lambda call: call.state.ctx,
    get_signer: lambda call: call.scope[SIGNER],
}


class SignedRoute:
    """One route. Example: `status, body = await SignedRoute(route).answer(state, scope, receive)`."""

    def __init__(self, route: APIRoute) -> None:
        self.route = route
        signature = inspect.signature(route.endpoint, eval_str=True)
        self._endpoint: Callable[..., Awaitable[object]] = route.endpoint
        self._parameters = {name: _read_parameter(each) for name, each in signature.parameters.items()}
        self._status = route.status_code or 200
        self._result: TypeAdapter[Any] = TypeAdapter(signature.return_annotation)

    async def answer(self, state: ApiState, scope: Scope, receive: Receive) -> tuple[int, bytes]:
        """Return the status and the body of the answer. `receive` yields the whole body first."""
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
    """ASGI middleware within `admission`, which has verified the signatures."""

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
    """Yield the routes for POST with their paths. All have fixed paths."""
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
