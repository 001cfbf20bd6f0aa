"""Nonces of signed requests that were used, kept for as long as their signatures are valid: in memory by a process that
serves alone, or else in Redis.

Whatever was signed before the keeping began is refused, because those nonces are not known.
"""

from collections.abc import Sequence
from typing import Protocol

from coordinator.api.process.request_batches import RequestBatches
from covey.errors import CoveyError, OperatorError, ProtocolError, TransientError
from covey.protocol.http_signatures import SKEW_SECONDS, WINDOW_SECONDS, RequestSignature

REDIS_SECONDS = 2.0
"""Maximum time in seconds that Redis may take for an answer."""
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
"""Script of Redis: since when the nonces are complete, in Unix seconds, and for each nonce whether it is new. Each run
of a Redis has its own beginning, because a run that starts from a snapshot lacks the newest nonces. A beginning that is
in the future was written by a clock that was wrong."""


class Nonces(Protocol):
    """Example: `await nonces.use(signature, now)` raises if the nonce of a signature was used before."""

    def require_new(self, signature: RequestSignature, now: float) -> None:
        """Refuse what is known to be used without waiting for anything. Raises the errors of `use`."""

    async def use(self, signature: RequestSignature, now: float) -> None:
        """Remember a nonce. Raises ProtocolError "replayed_nonce", or "expired_request" for what was signed before the
        keeping began.
        """

    async def close(self) -> None:
        """Free what is held."""


class MemoryNonces:
    """Nonces of one process. Example: `MemoryNonces(time.time())`."""

    def __init__(self, started_at: float) -> None:
        """`started_at` is the Unix time at which this process started."""
        self._started_at = int(started_at)
        self._recent: set[tuple[str, str]] = set()
        self._older: set[tuple[str, str]] = set()
        self._turned_at = started_at

    def __len__(self) -> int:
        return len(self._recent) + len(self._older)

    def require_new(self, signature: RequestSignature, now: float) -> None:
        """Raise the errors of `use` without remembering the nonce."""
        self._started_at = min(self._started_at, int(now))  # Its clock was wrong if it is in the future.
        if signature.created < self._started_at:
            raise _build_error(signature, is_early=True)
        self._forget(now)
        key = _build_key(signature)
        if key in self._recent or key in self._older:
            raise _build_error(signature, is_early=False)

    async def use(self, signature: RequestSignature, now: float) -> None:
        """Remember a nonce. Raises ProtocolError "replayed_nonce" or "expired_request"."""
        self.require_new(signature, now)
        self._recent.add(_build_key(signature))

    async def close(self) -> None:
        """There is nothing to free."""

    def _forget(self, now: float) -> None:
        """Drop the older half once no signature in it can be valid any more."""
        if now - self._turned_at > _KEPT_SECONDS or now < self._turned_at:
            self._older, self._recent, self._turned_at = self._recent, set(), now


class RedisNonces:
    """Nonces of several processes. One round trip serves all requests that wait. Example: `RedisNonces(url, "pool 1")`.

    The Redis must not evict keys. After it was started again, or another one has taken over, whatever was signed before
    is refused, because the newest nonces may be lost.
    """

    def __init__(self, url: str, name: str) -> None:
        """`name` tells the nonces of one pool from those of another.

        Raises OperatorError "no_redis" or "bad_nonces_url".
        """
        try:
            from redis import asyncio as redis
            from redis.exceptions import RedisError
        except ImportError as error:
            message = "the Python package redis is not installed"
            raise OperatorError("no_redis", message, fix="Install it: pip install 'covey[redis]'") from error
        try:
            self._redis = redis.from_url(url, socket_timeout=REDIS_SECONDS, socket_connect_timeout=REDIS_SECONDS)
        except ValueError as error:
            message = f"nonces_url is not the URL of a Redis: {error}"
            raise OperatorError("bad_nonces_url", message, fix="Set it to, say, redis://host:6379/1") from error
        self._error, self.name = RedisError, name
        self._use_script = self._redis.register_script(_USE)
        self._own = MemoryNonces(0.0)
        """What this process has used. A request that is sent to it again costs no round trip, and its key no rate."""
        self._uses = RequestBatches[tuple[RequestSignature, float], None](self._use_all)

    def require_new(self, signature: RequestSignature, now: float) -> None:
        """Refuse what this process has used. Only Redis knows the rest."""
        self._own.require_new(signature, now)

    async def use(self, signature: RequestSignature, now: float) -> None:
        """Remember a nonce. Raises as `MemoryNonces.use`, and TransientError "nonces_unavailable"."""
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
