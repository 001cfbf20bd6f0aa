"""Routes and retention on heads small enough to work out by hand."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from covey.protocol.head import Head, ServedPolicy, Way
from covey.protocol.ids import ZERO_HASH, Hash
from covey.shardcast.reachability import PolicyRetention, find_route, retain, select_kept

pytestmark = pytest.mark.unit


def name(number):
    return Hash(f"0x{number:064x}")


def build(ways):
    """Return a head from (step, base step or None, size) for each way, newest first. Manifests count from 1000."""
    steps = sorted({step for step, _, _ in ways}, reverse=True)
    policies = []
    for step in steps:
        mine = tuple(
            Way(manifest=name(1000 + index), base=ZERO_HASH if base is None else name(base), size=size)
            for index, (target, base, size) in enumerate(ways)
            if target == step
        )
        policies.append(ServedPolicy(step=step, record=name(step), ways=mine))
    return Head(pool=1, policies=tuple(policies))


def sizes(route):
    return None if route is None else [way.size for way in route]


CHAIN = [(1, None, 100), (2, 1, 10), (3, 2, 10), (3, 1, 15), (4, 3, 10), (4, None, 120)]
"""Head with an anchor at step 1, deltas to 2, 3 and 4, a jump from 1 to 3, and an anchor at 4."""


@pytest.mark.parametrize(
    ("target", "held", "expected"),
    [
        (1, [], [100]),
        (3, [], [100, 15]),
        (3, [2], [10]),
        (4, [], [120]),
        (4, [1], [15, 10]),
        (4, [4], []),
        (4, [2, 1], [10, 10]),
        (5, [], None),
    ],
)
def test_find_route__takes_the_fewest_bytes(target, held, expected):
    assert sizes(find_route(build(CHAIN), name(target), {name(each) for each in held})) == expected


def test_find_route__equal_sizes__takes_fewer_ways():
    head = build([(1, None, 5), (2, 1, 5), (3, 2, 5), (3, 1, 10)])
    assert sizes(find_route(head, name(3))) == [5, 10]


def test_find_route__circle_without_anchor__is_unreachable():
    assert find_route(build([(1, 2, 5), (2, 1, 5)]), name(2)) is None


def _list_all_routes(ways, target, held):
    """Return the sizes of all routes that visit no record twice."""
    for count in range(len(ways) + 1):
        for route in itertools.permutations(ways, count):
            at = [*(step for step, _, _ in route)]
            bases = [base for _, base, _ in route]
            is_joined = all(base == step for base, step in zip(bases[1:], at, strict=False))
            starts = not route or bases[0] is None or bases[0] in held
            if is_joined and starts and (at[-1] == target if route else target in held):
                yield sum(size for _, _, size in route)


@given(
    ways=st.lists(
        st.tuples(st.integers(1, 4), st.none() | st.integers(1, 4), st.integers(0, 9)), min_size=1, max_size=5
    ),
    target=st.integers(1, 4),
    held=st.sets(st.integers(1, 4), max_size=2),
)
def test_find_route__costs_as_little_as_the_best_of_all_routes(ways, target, held):
    best = min(_list_all_routes(ways, target, held), default=None)
    route = find_route(build(ways), name(target), {name(each) for each in held})
    assert (None if route is None else sum(sizes(route))) == best


@pytest.mark.parametrize(
    ("retention", "expected"),
    [
        (PolicyRetention(keep=2), {4, 5}),
        (PolicyRetention(keep=9), {1, 2, 3, 4, 5}),
        # Policy 3 was last used when 4 was stored, at 40: 20 seconds ago. 2 at 30, and 1 at 20.
        (PolicyRetention(keep=1, seconds=25, lifetime=1), {3, 4, 5}),
        (PolicyRetention(keep=1, seconds=20, lifetime=1), {4, 5}),
        # Policy 3 was last used when 5 was stored, at 50, and 4 is still used.
        (PolicyRetention(keep=1, seconds=20, lifetime=2), {3, 4, 5}),
    ],
)
def test_select_kept__newest_and_those_used_lately(retention, expected):
    head = build([(step, None, 1) for step in range(1, 6)])
    stored_at = {name(step): 10.0 * step for step in range(1, 6)}
    kept = select_kept(head, retention, stored_at=stored_at, now=60.0)
    assert kept == {name(step) for step in expected}


def test_select_kept__two_policies_of_one_step__count_once():
    policies = [ServedPolicy(step=s, record=name(r), ways=()) for s, r in [(2, 3), (1, 2), (1, 1)]]
    head = Head(pool=1, policies=tuple(policies))
    assert select_kept(head, PolicyRetention(keep=2), stored_at={}, now=0.0) == {name(1), name(2), name(3)}


def list_ways(head):
    return {policy.step: [way.size for way in policy.ways] for policy in head.policies}


def test_retain__old_anchor_that_a_kept_policy_needs__stays():
    head = build([(1, None, 100), (2, 1, 10), (3, 2, 11), (4, 3, 12)])
    assert list_ways(retain(head, {name(4)})) == {4: [12], 3: [11], 2: [10], 1: [100]}


def test_retain__ways_off_the_cheapest_route__go():
    assert list_ways(retain(build(CHAIN), {name(3)})) == {3: [15], 1: [100]}


def test_retain__delta_between_kept_policies__stays_although_an_anchor_is_cheaper():
    assert list_ways(retain(build(CHAIN), {name(3), name(4)})) == {4: [10, 120], 3: [15], 1: [100]}


@given(
    ways=st.lists(
        st.tuples(st.integers(1, 6), st.none() | st.integers(1, 6), st.integers(0, 9)), min_size=1, max_size=12
    ),
    kept=st.sets(st.integers(1, 6), min_size=1),
)
def test_retain__kept_policies_cost_the_same_and_a_second_time_changes_nothing(ways, kept):
    head, records = build(ways), {name(each) for each in kept}
    smaller = retain(head, records)
    for record in records:
        before, after = find_route(head, record), find_route(smaller, record)
        assert (before is None) == (after is None)
        assert before is None or sum(sizes(before)) == sum(sizes(after))
    assert retain(smaller, records) == smaller
