"""Admits viewers: they can only read, and have a rate limit by what a request costs."""

import time

from starlette.types import ASGIApp, Receive, Scope, Send

from coordinator.api.error_answers import describe_error
from coordinator.api.request_cost import compute_cost
from covey.errors import ProtocolError
from covey.runtime.rate_limit import TokenBuckets, group_address

USUAL_ROWS = 100
"""Number of rows of a page that names none."""
ASSET_COST = 0.1
"""Number of requests that a request for an asset counts as."""
_METHODS = ("GET", "HEAD")


class Guard:
    """ASGI middleware of the pages."""

    def __init__(self, app: ASGIApp, *, requests_per_s: float) -> None:
        """`requests_per_s` is the rate that one address may keep up. Four seconds' worth can come at once."""
        self._app = app
        self._addresses = TokenBuckets(rate=requests_per_s, burst=4 * requests_per_s)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            self._admit(scope)
        except ProtocolError as error:
            await _refuse(send, error)
            return
        await self._app(scope, receive, send)

    def _admit(self, scope: Scope) -> None:
        if scope["method"] not in _METHODS:
            raise ProtocolError("method_not_allowed", "pages can only be read", status=405)
        address = group_address(str((scope.get("client") or ("", 0))[0]))
        is_asset = scope["path"].startswith("/assets/")
        cost = ASSET_COST if is_asset else compute_cost(scope, usual=USUAL_ROWS)
        wait_s = self._addresses.take(address, cost, now=time.monotonic())
        if wait_s:
            message = f"{address} sends too many requests. Wait {wait_s:.1f} seconds"
            raise ProtocolError("rate_limited", message, status=429)


async def _refuse(send: Send, error: ProtocolError) -> None:
    status, answer = describe_error(error, time.time())
    body = answer.model_dump_json().encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
