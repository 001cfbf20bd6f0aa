"""Used nonces of signed requests, which are kept for as long as their signatures are valid.

A single API process keeps them in memory. Several processes share them in Redis. Requests that were signed before the
record began are refused, because their nonces may have been used.
"""

from collections.abc import Sequence
from typing import Protocol

from coordinator.api.process.request_batches import RequestBatches
from covey.errors import CoveyError, OperatorError, ProtocolError, TransientError
from covey.protocol.http_signatures import SKEW_SECONDS, WINDOW_SECONDS, RequestSignature

REDIS_SECONDS = 2.0
"""Timeout in seconds of a request to Redis."""
_KEPT_SECONDS = WINDOW_SECONDS + 2 * SKEW_SECONDS

_USE = """
local run = string.match(redis.call('INFO', 'server'), 'run_id:(%w+)')
local since = KEYS[1] .. '/' .. run
redis.call('SET', since, ARGV[1], 'NX')
if tonumber(redis.call('GET', since)) > tonumber(ARGV[1]) then redis.call('SET', since, ARGV[1]) end
redis.call('EXPIRE', since, 86400)
local found = {redis.call('GET', since)}
for i = 2, #KEYS do
    found[i] = redis.call('SET', KEYS[i], 1, 'NX', 'EX', ARGV[2]) and 1 or 0
end
return found
"""
"""Redis script that returns the Unix time since which the nonces are complete, and for each nonce whether it is new.
Each start of a Redis server begins a new record, because a server that loads a snapshot lacks the newest nonces. A
beginning in the future was written by a clock that was wrong."""


class Nonces(Protocol):
    """A record of used nonces. Example: `await nonces.use(signature, now)` raises if the nonce was used before."""

    def require_new(self, signature: RequestSignature, now: float) -> None:
        """Raise the errors of `use` if the nonce is known in memory to be used. Never waits, and records nothing."""

    async def use(self, signature: RequestSignature, now: float) -> None:
        """Record a nonce as used.

        Raises ProtocolError("replayed_nonce") if it was used before, and ProtocolError("expired_request") if the
        request was signed before the record began.
        """

    async def close(self) -> None:
        """Free connections."""


class MemoryNonces:
    """Used nonces of one process, in memory. Example: `MemoryNonces(time.time())`."""

    def __init__(self, started_at: float) -> None:
        """Create an empty record. `started_at` is the Unix time at which this process started."""
        self._started_at = int(started_at)
        self._recent: set[tuple[str, str]] = set()
        self._older: set[tuple[str, str]] = set()
        self._turned_at = started_at

    def __len__(self) -> int:
        return len(self._recent) + len(self._older)

    def require_new(self, signature: RequestSignature, now: float) -> None:
        """Raise the errors of `use` without recording the nonce."""
        self._started_at = min(self._started_at, int(now))  # Its clock was wrong if it is in the future.
        if signature.created < self._started_at:
            raise _build_error(signature, is_early=True)
        self._forget(now)
        key = _build_key(signature)
        if key in self._recent or key in self._older:
            raise _build_error(signature, is_early=False)

    async def use(self, signature: RequestSignature, now: float) -> None:
        """Record a nonce as used. Raises ProtocolError("replayed_nonce") or ProtocolError("expired_request")."""
        self.require_new(signature, now)
        self._recent.add(_build_key(signature))

    async def close(self) -> None:
        """Do nothing, because there are no connections."""

    def _forget(self, now: float) -> None:
        """Drop the older half of the nonces once none of their signatures can be valid any more."""
        if now - self._turned_at > _KEPT_SECONDS or now < self._turned_at:
            self._older, self._recent, self._turned_at = self._recent, set(), now


class RedisNonces:
    """Used nonces of several processes, in Redis. Example: `RedisNonces(url, "pool 1")`.

    One round trip serves all waiting requests. The Redis server must not evict keys. After a restart or a failover,
    requests that were signed before are refused, because the newest nonces may be lost.
    """

    def __init__(self, url: str, name: str) -> None:
        """Open a record. `name` distinguishes the nonces of one pool from those of others.

        Raises OperatorError("no_redis") if the Python package is missing, and OperatorError("bad_nonces_url") if `url`
        is not a Redis URL.
        """
        try:
            from redis import asyncio as redis
            from redis.exceptions import RedisError
        except ImportError as error:
            message = "the Python package redis is not installed"
            raise OperatorError("no_redis", message, fix="Run pip install 'covey[redis]'") from error
        try:
            self._redis = redis.from_url(url, socket_timeout=REDIS_SECONDS, socket_connect_timeout=REDIS_SECONDS)
        except ValueError as error:
            message = f"nonces_url is not the URL of a Redis server: {error}"
            raise OperatorError("bad_nonces_url", message, fix="Set it to a URL such as redis://host:6379/1") from error
        self._error, self.name = RedisError, name
        self._use_script = self._redis.register_script(_USE)
        self._own = MemoryNonces(0.0)
        """Nonces that this process has used. A repeated request to this process is refused without a round trip."""
        self._uses = RequestBatches[tuple[RequestSignature, float], None](self._use_all)

    def require_new(self, signature: RequestSignature, now: float) -> None:
        """Raise ProtocolError("replayed_nonce") if this process has used the nonce. Does not ask Redis."""
        self._own.require_new(signature, now)

    async def use(self, signature: RequestSignature, now: float) -> None:
        """Record a nonce as used.

        Raises the errors of `MemoryNonces.use`, and TransientError("nonces_unavailable") if Redis does not answer.
        """
        await self._uses.add((signature, now))
        await self._own.use(signature, now)

    async def close(self) -> None:
        """Close the connections."""
        await self._redis.aclose()

    async def _use_all(self, items: Sequence[tuple[RequestSignature, float]]) -> list[CoveyError | None]:
        names = [f"covey/{self.name}/since", *("/".join(("covey", self.name, *_build_key(each))) for each, _ in items)]
        try:
            began, *are_new = await self._use_script(names, [int(max(now for _, now in items)), _KEPT_SECONDS])
        except (self._error, OSError) as error:
            raise TransientError("nonces_unavailable", f"Redis does not answer: {error}") from error
        results: list[CoveyError | None] = []
        for (signature, _), is_new in zip(items, are_new, strict=True):
            is_early = signature.created < int(began)
            results.append(None if is_new and not is_early else _build_error(signature, is_early=is_early))
        return results


def _build_error(signature: RequestSignature, *, is_early: bool) -> ProtocolError:
    if is_early:
        message = f"the request was signed at {signature.created}, before this service started. Sign it again"
        return ProtocolError("expired_request", message, status=401)
    return ProtocolError("replayed_nonce", "the nonce was used before", status=401)


def _build_key(signature: RequestSignature) -> tuple[str, str]:
    return signature.signer.lower(), signature.nonce
