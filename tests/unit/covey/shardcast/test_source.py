"""Weights, rest and recovery of sources, compared with values worked out by hand."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from covey.shardcast.source import Source, choose, is_source_url

pytestmark = pytest.mark.unit


def make(*urls):
    return [Source(f"http://{url}") for url in urls]


def test_delivery__bandwidth_is_a_moving_average_of_a_fifth():
    (source,) = make("a")
    source.record_delivery(1_048_575, 9.0)
    assert source.bandwidth is None, "what is small tells the latency"
    source.record_delivery(2_000_000, 0.5)
    assert source.bandwidth == 4_000_000
    source.record_delivery(2_000_000, 1.0)
    assert source.bandwidth == pytest.approx(3_600_000)
    assert (source.delivered, source.success) == (5_048_575, 1.0)


def test_failure__trust_sinks_by_a_fifth__delivery_gives_back_a_fifth_of_the_rest():
    (source,) = make("a")
    source.record_failure(0.0)
    source.record_failure(1.0)
    assert source.success == pytest.approx(0.64)
    source.record_delivery(1, 1)
    assert source.success == pytest.approx(0.64 + 0.2 * 0.36)


def test_rest__doubles_with_each_failure_up_to_ten_seconds__and_starts_again_after_a_delivery():
    (source,) = make("a")
    now, rests = 0.0, []
    for _ in range(8):
        source.record_failure(now)
        rests.append(source.rests_until - now)
        now = source.rests_until
    assert rests == pytest.approx([0.25, 0.5, 1, 2, 4, 8, 10, 10])
    source.record_delivery(1, 1)
    source.record_failure(now)
    assert source.rests_until == pytest.approx(now + 0.25)


def test_failures_of_requests_at_one_time__are_one_rest():
    (source,) = make("a")
    for _ in range(4):
        source.record_failure(0.1)
    assert source.rests_until == pytest.approx(0.35)
    source.record_failure(0.35)
    assert source.rests_until == pytest.approx(0.85)


def test_lie__costs_all_trust_and_a_longer_rest__which_a_delivery_does_not_shorten():
    (source,) = make("a")
    now, rests = 0.0, []
    for _ in range(5):
        source.record_lie(now)
        assert source.success == 0.0
        rests.append(source.rests_until - now)
        now = source.rests_until
        source.record_delivery(1, 1)
    assert rests == pytest.approx([3, 6, 12, 24, 30])


def test_choose__follows_success_times_bandwidth():
    first, second, third = sources = make("a", "b", "c")
    first.bandwidth, second.bandwidth = 30.0, 10.0
    third.success = 0.0  # An unknown bandwidth counts as that of the fastest source: 30 x 0.001.
    rng, counts = random.Random(1), dict.fromkeys(sources, 0)
    for _ in range(4000):
        for source in sources:
            source.success = 0.0 if source is third else 1.0
        counts[choose(sources, set(), 0.0, rng=rng)] += 1
    assert counts[first] / 4000 == pytest.approx(0.75, abs=0.03)
    assert counts[second] / 4000 == pytest.approx(0.25, abs=0.03)
    assert counts[third] < 20


def test_choose__a_source_that_is_not_used_heals__whatever_their_number():
    liar, honest = sources = make("liar", "honest")
    liar.record_lie(0.0)
    rng, drawn = random.Random(2), 0
    for _ in range(200):  # While one source rests, the other one is always drawn.
        assert choose(sources, set(), 1.0, rng=rng) is honest
    assert liar.success == pytest.approx(1 - 0.98**200)
    for _ in range(200):
        drawn += choose(sources, set(), 4.0, rng=rng) is liar
    assert 70 < drawn < 130


def test_choose__excluded_ones_never__all_resting_the_one_that_rests_shortest():
    first, second, third = sources = make("a", "b", "c")
    first.rests_until, second.rests_until, third.rests_until = 5.0, 3.0, 1.0
    rng = random.Random(3)
    assert choose(sources, {third}, 0.0, rng=rng) is second
    assert choose(sources, {second, third}, 0.0, rng=rng) is first
    assert choose(sources, set(sources), 0.0, rng=rng) is None
    assert {choose(sources, {third}, 4.0, rng=rng) for _ in range(50)} == {second}
    assert first.success == 1.0


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("delivery"), st.floats(1, 1e9), st.floats(0, 100)),
        st.tuples(st.sampled_from(["failure", "lie", "heal"]), st.just(0.0), st.floats(0, 10)),
    ),
    max_size=60,
)


@given(EVENTS)
def test_any_history__trust_stays_a_share__rests_are_bounded__and_the_source_can_still_be_drawn(events):
    source, now = Source("http://a"), 0.0
    for kind, size, seconds in events:
        now += seconds
        if kind == "delivery":
            source.record_delivery(int(size), seconds)
        elif kind == "heal":
            source.heal()
        else:
            (source.record_failure if kind == "failure" else source.record_lie)(now)
        assert 0 <= source.success <= 1
        assert source.rests_until <= now + 30
    assert choose([source], set(), now + 31, rng=random.Random(0)) is source


@pytest.mark.parametrize(
    ("url", "is_valid"),
    [
        ("http://a", True),
        ("https://a:1/prefix", True),
        ("http://[::1]:80", True),
        ("ftp://a", False),
        ("http://", False),
        ("http://a:0", True),  # `port or 1` accepts it. Only the connection attempt fails.
        ("http://a:70000", False),
        ("http://[::1", False),
        ("", False),
    ],
)
def test_is_source_url(url, is_valid):
    assert is_source_url(url) is is_valid
