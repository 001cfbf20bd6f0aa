"""Admits viewers: they can only read, and have a rate limit by what a request costs.

A request counts by its rows before it is answered, and by the CPU time of its answer afterwards (`charge`).
"""

import time

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from coordinator.api.error_answers import describe_error
from coordinator.api.process.meters import Meters
from coordinator.api.request_cost import ROWS_PER_REQUEST, compute_cost
from covey.errors import ProtocolError
from covey.runtime.rate_limit import TokenBuckets, group_address

USUAL_ROWS = 100
"""Number of rows of a page that names none."""
ASSET_COST = 0.1
"""Number of requests that a request for an asset counts as."""
CPU_SHARE = 0.25
"""Share of a processor that the answers to one address may take, on average."""
_METHODS = ("GET", "HEAD")
_SPENT = "covey.cpu_seconds"
"""Name in the scope of a request for the CPU seconds that its answer has taken."""


class Guard:
    """ASGI middleware of the pages."""

    def __init__(self, app: ASGIApp, *, requests_per_s: float, meters: Meters) -> None:
        """`requests_per_s` is the rate that one address may keep up. Four seconds' worth can come at once."""
        self._app, self._meters = app, meters
        self._addresses = TokenBuckets(rate=requests_per_s, burst=4 * requests_per_s)
        self._requests_per_cpu_s = requests_per_s / CPU_SHARE

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            self._admit(scope)
        except ProtocolError as error:
            self._meters.refusals.labels(error.code).inc()
            await _refuse(send, error)
            return
        try:
            await self._meters.measure(self._app, scope, receive, send)
        finally:
            if spent_s := scope.get(_SPENT):
                self._addresses.charge(_get_client(scope), spent_s * self._requests_per_cpu_s, now=time.monotonic())

    def _admit(self, scope: Scope) -> None:
        if scope["method"] not in _METHODS:
            raise ProtocolError("method_not_allowed", "pages can only be read", status=405)
        address, path = _get_client(scope), scope["path"]
        cost = ASSET_COST if path.startswith("/assets/") else USUAL_ROWS / ROWS_PER_REQUEST
        if path.startswith("/v1/"):  # Other pages do not read the number of rows.
            cost = compute_cost(scope, usual=USUAL_ROWS)
        wait_s = self._addresses.take(address, cost, now=time.monotonic())
        if wait_s:
            message = f"{address} sends too many requests. Wait {wait_s:.1f} seconds"
            raise ProtocolError("rate_limited", message, status=429)


def charge(request: Request, cpu_seconds: float) -> None:
    """Count CPU seconds that the answer to a request has taken."""
    request.scope[_SPENT] = request.scope.get(_SPENT, 0.0) + cpu_seconds


def _get_client(scope: Scope) -> str:
    return group_address(str((scope.get("client") or ("", 0))[0]))


async def _refuse(send: Send, error: ProtocolError) -> None:
    status, answer = describe_error(error, time.time())
    body = answer.model_dump_json().encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
