"""Admits requests to the API. Cheap checks come first, and nothing is written to the database.

POST requests are signed. The declared size, the headers, the nonce, the signature, and the role and rate of the key are
checked in this order. Only then is the body read. The signed authority is taken from the settings, not from the Host
header.
"""

import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from coordinator.api.error_answers import describe_error
from coordinator.api.process.members import Members, Role
from coordinator.api.process.meters import Meters
from coordinator.api.process.nonces import Nonces
from coordinator.api.request_cost import compute_cost
from covey.errors import CoveyError, ProtocolError
from covey.protocol import http_signatures
from covey.protocol.http_signatures import RequestSignature, RequestTarget
from covey.runtime.rate_limit import TokenBuckets, group_address

SIGNER = "covey.signer"
"""Key of an ASGI scope under which the verified signer's address is stored."""
_ROLES: Mapping[str, Role] = {
    "nodes": Role.ANYBODY,
    "heartbeat": Role.NODE,
    "tasks": Role.NODE,
    "uploads": Role.NODE,
    "submissions": Role.NODE,
    "validations": Role.VALIDATOR,
    "cases": Role.VALIDATOR,
    "epochs": Role.VALIDATOR,
    "batches": Role.TRAINER,
    "learning": Role.TRAINER,
    "pause": Role.OPERATOR,
    "pardons": Role.OPERATOR,
}
"""Role that may POST to a path, by the first part after /v1/. Other paths do not accept POST."""
_CHARGED = {"unsigned", "bad_signature", "expired_request", "replayed_nonce"}
"""Error codes of refusals that count towards the rate of the sender's network address."""
_REGISTRATION_COST = 5.0
"""Number of requests as which a registration counts, because it calls the chain's node."""
_HEADERS = {b"signature-input", b"signature", b"content-digest"}


class Admission:
    """ASGI middleware that admits or refuses requests. It stores the signer of an admitted request in its scope."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        members: Members,
        nonces: Nonces,
        meters: Meters,
        authority: str,
        chain_id: int,
        max_body: int,
        max_upload: int,
        requests_per_s: float,
        clock: Callable[[], float],
    ) -> None:
        """Wrap an application. `max_body` and `max_upload` are maximum sizes of bodies in bytes.

        `requests_per_s` is the sustained rate allowed for one key, and for one network address without a known key.
        """
        self._app, self._members, self._nonces, self._clock = app, members, nonces, clock
        self._meters = meters
        self._authority, self._chain_id = authority, chain_id
        self._max_body, self._max_upload = max_body, max_upload
        self._keys = TokenBuckets(rate=requests_per_s, burst=4 * requests_per_s)
        self._addresses = TokenBuckets(rate=requests_per_s, burst=4 * requests_per_s)
        self._forgeries = TokenBuckets(rate=10 * requests_per_s, burst=40 * requests_per_s)
        """Rate of forged signatures by network address. Above it, signatures from that address are not verified."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            receive = await self._admit(scope, receive)
        except CoveyError as error:
            self._meters.refusals.labels(error.code).inc()
            await _refuse(send, error, self._clock())
            return
        await self._meters.measure(self._app, scope, receive, send)

    async def _admit(self, scope: Scope, receive: Receive) -> Receive:
        """Check a request, and return the function from which its body is received. Raises CoveyError if refused."""
        is_upload = scope["path"].startswith("/v1/objects/")
        limit = self._max_upload if is_upload else self._max_body
        headers = {name: value for name, value in scope["headers"] if name in _HEADERS or name == b"content-length"}
        declared = headers.get(b"content-length", b"0")
        if not declared.isdigit() or int(declared) > limit:
            raise _oversized(limit)
        role = _find_role(scope)
        if role is None:
            self._take(self._addresses, group_address(_get_address(scope)), compute_cost(scope, usual=0))
            return _count(receive, limit)
        signature = await self._require_signature(scope, role, headers)
        body = await _read(receive, limit)
        http_signatures.require_body(signature, body)
        await self._nonces.use(signature, self._clock())
        scope[SIGNER] = signature.signer
        return _replay(body, receive)

    async def _require_signature(self, scope: Scope, role: Role, headers: Mapping[bytes, bytes]) -> RequestSignature:
        """Verify the signature of a request from its headers alone.

        Only verified requests count towards the rate of a key. All others count towards the rate of the network
        address, so that nobody can use up the rate of another key.
        """
        now, address = self._clock(), group_address(_get_address(scope))
        texts = {name.decode(): value.decode("latin-1") for name, value in headers.items()}
        try:
            signature = http_signatures.read_signature(texts, chain_id=self._chain_id, now=int(now))
            self._nonces.require_new(signature, now)
            if not self._forgeries.has(address, now=time.monotonic()):
                self._take(self._forgeries, address)
            target = RequestTarget("POST", self._authority, scope["path"], scope["query_string"].decode("latin-1"))
            signer = http_signatures.require_signer(signature, target)
            is_known = role is not Role.ANYBODY and self._members.is_known(role, signer)
            if not is_known:
                self._take(self._addresses, address, _REGISTRATION_COST if role is Role.ANYBODY else 1.0)
                await self._members.require(role, signer)
                return signature._replace(signer=signer)
        except ProtocolError as error:
            if error.code == "bad_signature":
                self._forgeries.take(address, now=time.monotonic())
            if error.code in _CHARGED:
                self._take(self._addresses, address)
            raise
        self._take(self._keys, signer)
        return signature._replace(signer=signer)

    def _take(self, buckets: TokenBuckets, sender: str, cost: float = 1.0) -> None:
        wait_s = buckets.take(sender, cost, now=time.monotonic())
        if wait_s:
            message = f"{sender} sends too many requests. Wait {wait_s:.1f} seconds"
            raise ProtocolError("rate_limited", message, status=429)


def _find_role(scope: Scope) -> Role | None:
    """Return the role that may send a request. None if the request needs no signature."""
    if scope["method"] != "POST" or not scope["path"].startswith("/v1/"):
        return None
    return _ROLES.get(scope["path"][4:].partition("/")[0])


def _get_address(scope: Scope) -> str:
    return str((scope.get("client") or ("", 0))[0])


async def _read(receive: Receive, limit: int) -> bytes:
    """Read a body of at most `limit` bytes. Raises ProtocolError("oversized") or ProtocolError("bad_body")."""
    parts: list[bytes] = []
    size, is_complete = 0, False
    while not is_complete:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ProtocolError("bad_body", "the client disconnected before the end of the body", status=400)
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > limit:
            raise _oversized(limit)
        is_complete = not message.get("more_body", False)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _replay(body: bytes, receive: Receive) -> Receive:
    """Return a receive function that returns a body that was already read, and then further messages of the client."""
    first: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return first.pop() if first else await receive()

    return replay


def _count(receive: Receive, limit: int) -> Callable[[], Awaitable[Message]]:
    seen = 0

    async def counted() -> Message:
        nonlocal seen
        message = await receive()
        seen += len(message.get("body", b""))
        if seen > limit:
            raise HTTPException(413, f"a body is at most {limit} bytes")
        return message

    return counted


def _oversized(limit: int) -> ProtocolError:
    return ProtocolError("oversized", f"a body is at most {limit} bytes", status=413)


async def _refuse(send: Send, error: CoveyError, now: float) -> None:
    status, answer = describe_error(error, now)
    body = answer.model_dump_json().encode()
    headers: list[tuple[bytes, Any]] = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
