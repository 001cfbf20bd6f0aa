"""Heads of one pool at the upstreams of a relay, and the head that the relay serves.

Heads are not signed, and a relay cannot tell a true head from a false one. So it serves the union of all heads, in
which each upstream has an equal share of the space. One honest upstream is enough, because no other can displace what
it says.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

from covey.protocol import canonical
from covey.protocol.head import MAX_HEAD_BYTES, MAX_POLICIES, Head, ServedPolicy, Way, build_head

RESTORED = -1
"""Number of the head that a relay has restored from its disk. Other heads have the number of their upstream."""
_FORGOTTEN_AFTER_SECONDS = 3600.0
"""Age in seconds at which a head is dropped if its upstream does not answer but another one does."""
_MAX_WAYS = 64
"""Maximum number of ways of a policy, as in `ServedPolicy`."""


@dataclass(frozen=True, slots=True)
class FetchedHead:
    """The head of a pool as an upstream sent it. Example: FetchedHead(b"{...}", '"5f..."', mirrored)."""

    data: bytes
    etag: str | None
    mirrored: Head
    """Part of the head that the relay mirrors."""


@dataclass(slots=True)
class PoolHeads:
    """Heads of one pool by the number of their upstream, counted from 0. Times are those of the relay's clock."""

    pool: int
    heads: dict[int, FetchedHead] = field(default_factory=dict)
    mirrored: set[int] = field(default_factory=set)
    """Upstreams that are completely mirrored for this pool."""
    data: bytes | None = None
    """Head that the relay serves. None before the first one."""
    checked_at: float = float("-inf")
    """Time at which an upstream last confirmed its head."""
    is_changed: bool = False
    """Whether a head has changed since the served head was merged."""
    _confirmed_at: dict[int, float] = field(default_factory=dict)

    @property
    def newest_step(self) -> int | None:
        """Newest step in any head. None if there is none."""
        return max((policy.step for head in self.heads.values() for policy in head.mirrored.policies), default=None)

    @property
    def is_mirrored(self) -> bool:
        """Whether all upstreams are completely mirrored for this pool."""
        numbers = self.heads.keys() - {RESTORED}
        return bool(numbers) and numbers <= self.mirrored

    def put(self, number: int, head: FetchedHead, now: float) -> bool:
        """Record the current head of an upstream. Returns whether it has changed."""
        known = self.heads.get(number)
        self.heads[number], self._confirmed_at[number] = head, now
        if known is not None and known.data == head.data:
            return False
        self.mirrored.discard(number)
        self.is_changed = True
        return True

    def forget_old(self, upstreams: int, now: float) -> None:
        """Drop heads that were not confirmed for a long time, and the restored one once all upstreams have answered."""
        old = [number for number, at in self._confirmed_at.items() if now - at > _FORGOTTEN_AFTER_SECONDS]
        if RESTORED in self.heads and len(self.heads) > upstreams:
            old.append(RESTORED)
        for number in set(old):
            del self.heads[number], self._confirmed_at[number]
            self.is_changed = True


def merge_heads(pool: int, heads: Sequence[bytes]) -> bytes:
    """Return the union of valid heads, or the head itself if all are equal.

    If the union would exceed the maximum size of a head, each head contributes its first policies, up to an equal
    share.
    """
    distinct = list(dict.fromkeys(heads))
    if len(distinct) == 1:
        return distinct[0]
    claims = [claim for data in distinct for claim in _measure(Head.from_bytes(data))]
    claims.sort(key=lambda claim: claim[0])
    included, size = dict[bytes, ServedPolicy](), len(Head(pool=pool, policies=()).to_bytes())
    for _, encoded, policy in claims:
        if encoded in included:
            continue
        size += len(encoded) + len(b",")
        if size > MAX_HEAD_BYTES or len(included) >= MAX_POLICIES:
            break
        included[encoded] = policy
    return build_head(pool, _join(list(included.values()))).to_bytes()


def _measure(head: Head) -> Iterator[tuple[int, bytes, ServedPolicy]]:
    """Yield each policy of a head with its encoding and the total size of all encodings so far."""
    size = 0
    for policy in head.policies:
        encoded = canonical.to_bytes(policy.model_dump(mode="json"))
        size += len(encoded)
        yield size, encoded, policy


def _join(policies: Sequence[ServedPolicy]) -> list[ServedPolicy]:
    """Return the policies with one entry per record and step. Each entry has the first ways of all entries that it
    merges.
    """
    entries: dict[tuple[int, str], list[ServedPolicy]] = {}
    for policy in policies:
        entries.setdefault((policy.step, policy.record), []).append(policy)
    joined = []
    for same in entries.values():
        ranks = zip_longest(*(policy.ways for policy in same))
        ways: dict[Way, None] = dict.fromkeys(way for rank in ranks for way in rank if way is not None)
        joined.append(same[0].model_copy(update={"ways": tuple(ways)[:_MAX_WAYS]}))
    return joined
