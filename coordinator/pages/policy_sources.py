"""Looks up which origins and relays serve which policy, whole or as a delta, and how large it is."""

from collections.abc import Sequence
from threading import Timer
from typing import NamedTuple

from covey.errors import ProtocolError
from covey.protocol.head import MAX_HEAD_BYTES, Head, get_head_path
from covey.protocol.ids import ZERO_HASH, PoolId
from covey.shardcast.source_connection import Connection, DeliveryError

CONNECT_SECONDS, SILENCE_SECONDS = 2.0, 5.0
"""Maximum time in seconds to wait for a source to connect, and for its next byte."""
ANSWER_SECONDS = 5.0
"""Maximum time in seconds for the whole answer of a source."""
MAX_SOURCES = 16
"""Maximum number of sources that are asked."""
MAX_WAYS = 8
"""Maximum number of ways to one policy that are read from one source."""


class PolicyWay(NamedTuple):
    """A way to fetch a policy. Example: PolicyWay(is_delta=True, size=4096, sources=("https://relay.example",))."""

    is_delta: bool
    """Whether it needs an earlier policy."""
    size: int
    """Size in bytes, as the sources say."""
    sources: tuple[str, ...]
    """Base URLs of the sources that serve it."""


class PolicySources:
    """Example: `sources.refresh(); sources.find(record_hash)`."""

    def __init__(self, pool: PoolId, urls: Sequence[str]) -> None:
        self._pool, self._urls = pool, tuple(urls)[:MAX_SOURCES]
        self._ways: dict[str, tuple[PolicyWay, ...]] = {}

    def find(self, record_hash: str) -> tuple[PolicyWay, ...]:
        """Return the ways to a policy, whole ones first. Empty if no source has answered that it serves the policy."""
        return self._ways.get(record_hash, ())

    def refresh(self) -> None:
        """Ask all sources. One that does not answer, or answers with an invalid head, counts as serving nothing."""
        heads: dict[str, Head] = {}
        for url in self._urls:
            try:
                heads[url] = Head.from_bytes(_fetch(url, get_head_path(self._pool)))
            except (DeliveryError, ProtocolError):
                continue
        self._ways = merge(heads)


def merge(heads: dict[str, Head]) -> dict[str, tuple[PolicyWay, ...]]:
    """Return the ways to each policy by its record hash, from the heads of sources by their URLs."""
    found: dict[str, dict[tuple[bool, int], dict[str, None]]] = {}
    for url, head in heads.items():
        for policy in head.policies:
            for way in policy.ways[:MAX_WAYS]:
                sources = found.setdefault(policy.record, {}).setdefault((way.base != ZERO_HASH, way.size), {})
                sources[url] = None
    return {
        record: tuple(PolicyWay(is_delta, size, tuple(ways[is_delta, size])) for is_delta, size in sorted(ways))
        for record, ways in found.items()
    }


def _fetch(url: str, path: str) -> bytes:
    connection = Connection(url, connect_s=CONNECT_SECONDS, silence_s=SILENCE_SECONDS)
    deadline = Timer(ANSWER_SECONDS, connection.abort)  # A source that sends a byte now and then is never silent.
    deadline.start()
    try:
        return bytes(connection.get(path, MAX_HEAD_BYTES))
    finally:
        deadline.cancel()
        connection.close()
