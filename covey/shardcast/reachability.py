"""Routes through the transport manifests of a head: which policies can be reached, and which an origin keeps.

Records are nodes. Every way of a head is an edge from its base to its policy's record, weighted with its size in bytes.
Anchors start at ZERO_HASH. All functions are pure.
"""

import heapq
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass

from covey.protocol.head import Head, Way
from covey.protocol.ids import ZERO_HASH, Hash

KEPT_POLICIES = 5
"""Default number of newest policies that an origin or a relay keeps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRetention:
    """Rule for the policies of a pool that are kept. Example: PolicyRetention(keep=5, seconds=93_600, lifetime=3)."""

    keep: int = KEPT_POLICIES
    """Number of newest steps whose policies are kept, regardless of their age."""
    seconds: float = 0.0
    """Time in seconds for which an older policy is kept after its last use. 0 means that no older policy is kept."""
    lifetime: int = 0
    """Number of later steps for which a policy is used. The last use of a policy is the time at which the policy
    `lifetime` steps later was stored.
    """


def find_route(head: Head, target: Hash, held: Set[Hash] = frozenset()) -> tuple[Way, ...] | None:
    """Return the ways that lead to the record `target` with the fewest bytes, in the order of their use.

    The first way is an anchor, or its base is a record in `held`. Returns an empty tuple if the target is held, and
    None if it cannot be reached.
    """
    if target in held:
        return ()
    last_ways = _search(head, held)
    if target not in last_ways:
        return None
    return tuple(way for _, way in _walk_back(last_ways, target))[::-1]


def select_kept(
    head: Head, retention: PolicyRetention, *, stored_at: Mapping[Hash, float], now: float
) -> frozenset[Hash]:
    """Return the records of the policies that clients may still use.

    `stored_at` has the Unix time at which each record was stored. A missing record counts as stored at `now`.
    """
    steps = sorted({policy.step for policy in head.policies})
    times: dict[int, float] = {}
    for policy in head.policies:
        times[policy.step] = max(times.get(policy.step, 0.0), stored_at.get(policy.record, now))
    older = steps[: max(0, len(steps) - retention.keep)]
    dropped = {
        step
        for step, newer in zip(older, steps[retention.lifetime :], strict=False)
        if not retention.seconds or now - times[newer] >= retention.seconds
    }
    return frozenset(policy.record for policy in head.policies if policy.step not in dropped)


def retain(head: Head, kept: Set[Hash]) -> Head:
    """Return the head reduced to what the policies in `kept` need.

    These are the cheapest routes from an anchor to each of them. All ways between two of them are included, too,
    because clients may hold the base.
    """
    last_ways = _search(head, frozenset())
    needed = {way.manifest for record in kept for _, way in _walk_back(last_ways, record)}
    reached = {record for target in kept for record, _ in _walk_back(last_ways, target)} | kept
    policies = []
    for policy in head.policies:
        if policy.record not in reached:
            continue
        is_kept = policy.record in kept
        ways = tuple(way for way in policy.ways if way.manifest in needed or (is_kept and way.base in kept))
        policies.append(policy.model_copy(update={"ways": ways}))
    return Head(pool=head.pool, policies=tuple(policies))


def _search(head: Head, held: Set[Hash]) -> dict[Hash, tuple[Hash, Way]]:
    """Return the base and the last way of the cheapest route to every record that can be reached (Dijkstra)."""
    edges: dict[Hash, list[tuple[Hash, Way]]] = {}
    for policy in head.policies:
        for way in policy.ways:
            edges.setdefault(way.base, []).append((policy.record, way))
    starts = {ZERO_HASH, *held}
    costs: dict[Hash, tuple[int, int]] = dict.fromkeys(starts, (0, 0))
    last_ways: dict[Hash, tuple[Hash, Way]] = {}
    queue = [(0, 0, start) for start in starts]
    while queue:
        size, count, base = heapq.heappop(queue)
        if costs[base] < (size, count):
            continue
        for record, way in edges.get(base, ()):
            cost = (size + way.size, count + 1)
            if record not in costs or cost < costs[record]:
                costs[record] = cost
                last_ways[record] = (base, way)
                heapq.heappush(queue, (*cost, record))
    return last_ways


def _walk_back(last_ways: Mapping[Hash, tuple[Hash, Way]], target: Hash) -> Iterator[tuple[Hash, Way]]:
    """Yield each record of a route and the way that leads to it, from the target back to the start."""
    while target in last_ways:
        base, way = last_ways[target]
        yield target, way
        target = base
