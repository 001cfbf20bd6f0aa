"""Token buckets by client address: what a single client may request per second.

Clients of an origin or a relay have no identity other than their address. All addresses of an IPv6 /64 network count
as one client, because one host usually has the whole network.
"""

import ipaddress
from collections import OrderedDict
from dataclasses import dataclass

_CLIENTS = 1 << 16
"""Maximum number of clients that are remembered. The one that was idle longest is forgotten first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RateLimits:
    """Rates that one client may not exceed. Example: RateLimits(requests_per_s=50, burst=200).

    The defaults allow 4 GB/s of full pieces.
    """

    requests_per_s: float = 1000.0
    """Requests per second, on average. Costly requests count as several."""
    burst: float = 4000.0
    """Number of requests that a client can send at once after a pause."""
    bytes_per_s: float | None = None
    """Bytes per second, on average. None means unlimited. Ten seconds' worth can be sent at once after a pause."""


class TokenBuckets:
    """One bucket per client, refilled at a constant rate. Times are in seconds of any clock that does not go back."""

    def __init__(self, *, rate: float, burst: float, clients: int = _CLIENTS) -> None:
        self._rate, self._burst, self._clients = rate, burst, clients
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """Tokens of each client, and when they were counted. They can be negative after a costly request."""

    def __len__(self) -> int:
        return len(self._buckets)

    def has(self, client: str, *, now: float) -> bool:
        """Return whether a client's bucket has a token."""
        tokens, counted_at = self._buckets.get(client, (self._burst, now))
        return tokens + (now - counted_at) * self._rate >= 1.0

    def take(self, client: str, cost: float = 1.0, *, now: float) -> float:
        """Take `cost` tokens from a client's bucket. Returns 0 if it had one, else the seconds until it has one.

        A request that costs more than the bucket contains is admitted, and the client waits longer afterwards.
        """
        tokens, counted_at = self._buckets.get(client, (self._burst, now))
        tokens = min(self._burst, tokens + (now - counted_at) * self._rate)
        wait_s = 0.0
        if tokens < 1.0:
            wait_s = (1.0 - tokens) / self._rate
        else:
            tokens -= cost
        self._buckets[client] = (tokens, now)
        self._buckets.move_to_end(client)
        if len(self._buckets) > self._clients:
            self._buckets.popitem(last=False)
        return wait_s

    def charge(self, client: str, cost: float, *, now: float) -> None:
        """Take `cost` tokens for what a request turned out to cost. The bucket may contain fewer than 0 then."""
        tokens, counted_at = self._buckets.get(client, (self._burst, now))
        tokens = min(self._burst, tokens + (now - counted_at) * self._rate) - cost
        self._buckets[client] = (max(tokens, -self._burst), now)


class ClientLimiter:
    """Applies `RateLimits` to client addresses."""

    def __init__(self, limits: RateLimits) -> None:
        self._requests = TokenBuckets(rate=limits.requests_per_s, burst=limits.burst)
        rate = limits.bytes_per_s
        self._bytes = None if rate is None else TokenBuckets(rate=rate, burst=10 * rate)

    def take_request(self, address: str, cost: float = 1.0, *, now: float) -> float:
        """Count a request. Returns 0 if it is admitted, else the seconds to wait."""
        return self._requests.take(group_address(address), cost, now=now)

    def take_bytes(self, address: str, size: int, *, now: float) -> float:
        """Count bytes of a response. Returns 0 if they may be sent, else the seconds to wait."""
        return 0.0 if self._bytes is None else self._bytes.take(group_address(address), size, now=now)


def group_address(address: str, *, bits: int = 64) -> str:
    """Return what identifies a client: an IPv4 address, or the network of the first `bits` bits of an IPv6 address.

    Example: "2001:db8::1" -> "2001:db8::/64".
    """
    if ":" not in address:
        return address
    try:
        parsed = ipaddress.IPv6Address(address)
    except ValueError:
        return address
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(parsed) >> (128 - bits) << (128 - bits), bits)))
