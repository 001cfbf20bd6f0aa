"""Nonces of signed requests that were used, kept in memory for as long as their signatures are valid.

A process refuses whatever was signed before it started, because it does not know those nonces.
"""

from covey.errors import ProtocolError
from covey.protocol.http_signatures import SKEW_SECONDS, WINDOW_SECONDS, RequestSignature


class Nonces:
    """Example: `nonces.use(signature, now)` raises if the nonce of a signature was used before."""

    def __init__(self, started_at: float) -> None:
        """`started_at` is the Unix time at which this process started."""
        self._started_at = int(started_at)
        self._recent: set[tuple[str, str]] = set()
        self._older: set[tuple[str, str]] = set()
        self._turned_at = started_at

    def __len__(self) -> int:
        return len(self._recent) + len(self._older)

    def require_new(self, signature: RequestSignature, now: float) -> None:
        """Raise ProtocolError "replayed_nonce", or "expired_request" for what was signed before the start."""
        if signature.created < self._started_at:
            message = f"the request was signed at {signature.created}, before this service started. Sign it again"
            raise ProtocolError("expired_request", message, status=401)
        self._forget(now)
        key = _build_key(signature)
        if key in self._recent or key in self._older:
            raise ProtocolError("replayed_nonce", "the nonce was used before", status=401)

    def use(self, signature: RequestSignature, now: float) -> None:
        """Remember a nonce. Raises the errors of `require_new`."""
        self.require_new(signature, now)
        self._recent.add(_build_key(signature))

    def _forget(self, now: float) -> None:
        """Drop the older half once no signature in it can be valid any more."""
        if now - self._turned_at > WINDOW_SECONDS + 2 * SKEW_SECONDS or now < self._turned_at:
            self._older, self._recent, self._turned_at = self._recent, set(), now


def _build_key(signature: RequestSignature) -> tuple[str, str]:
    return signature.signer.lower(), signature.nonce
