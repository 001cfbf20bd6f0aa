"""Nonces of signed requests that were used, kept for as long as their signatures are valid: in memory by a process that
serves alone, or else in Redis.

Whatever was signed before the keeping began is refused, because those nonces are not known.
"""

from collections.abc import Sequence
from typing import Protocol

from coordinator.api.request_batches import RequestBatches
from covey.errors import CoveyError, OperatorError, ProtocolError, TransientError
from covey.protocol.http_signatures import SKEW_SECONDS, WINDOW_SECONDS, RequestSignature

REDIS_S = 2.0
"""Maximum time in seconds that Redis may take for an answer."""
_KEPT_S = WINDOW_SECONDS + 2 * SKEW_SECONDS


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
        if now - self._turned_at > _KEPT_S or now < self._turned_at:
            self._older, self._recent, self._turned_at = self._recent, set(), now


class RedisNonces:
    """Nonces of several processes. One round trip serves all requests that wait. Example: `RedisNonces(url, "pool 1")`.

    The Redis must not evict keys. If it loses them, whatever was signed before is refused.
    """

    def __init__(self, url: str, name: str) -> None:
        """`name` tells the nonces of one pool from those of another. Raises OperatorError "no_redis"."""
        try:
            from redis import asyncio as redis
            from redis.exceptions import RedisError
        except ImportError as error:
            message = "the Python package redis is not installed"
            raise OperatorError("no_redis", message, fix="Install it: pip install 'covey[redis]'") from error
        self._redis = redis.from_url(url, socket_timeout=REDIS_S, socket_connect_timeout=REDIS_S)
        self._error, self.name = RedisError, name
        self._uses = RequestBatches[tuple[RequestSignature, float], None](self._use_all)

    def require_new(self, signature: RequestSignature, now: float) -> None:
        """Pass. Only Redis knows, and a round trip for a request that may be forged costs too much."""

    async def use(self, signature: RequestSignature, now: float) -> None:
        """Remember a nonce. Raises as `MemoryNonces.use`, and TransientError "nonces_unavailable"."""
        await self._uses.add((signature, now))

    async def close(self) -> None:
        """Close the connections."""
        await self._redis.aclose()

    async def _use_all(self, items: Sequence[tuple[RequestSignature, float]]) -> list[CoveyError | None]:
        since = f"covey/{self.name}/since"
        pipeline = self._redis.pipeline(transaction=False)
        pipeline.set(since, int(max(now for _, now in items)), nx=True)
        pipeline.get(since)
        for signature, _ in items:
            pipeline.set("/".join(("covey", self.name, *_build_key(signature))), 1, nx=True, ex=_KEPT_S)
        try:
            _, began, *are_new = await pipeline.execute()
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
