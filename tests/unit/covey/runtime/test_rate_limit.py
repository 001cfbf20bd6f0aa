"""Token buckets on a clock that the test moves."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from covey.runtime.rate_limit import ClientLimiter, RateLimits, TokenBuckets, group_address

pytestmark = pytest.mark.unit


def test_take__burst_then_rate():
    buckets = TokenBuckets(rate=2.0, burst=3.0)
    assert [buckets.take("a", now=0.0) for _ in range(4)] == [0, 0, 0, 0.5]
    assert buckets.take("a", now=0.25) == 0.25
    assert [buckets.take("a", now=0.5) for _ in range(2)] == [0, 0.5]


def test_take__other_client__has_its_own_bucket():
    buckets = TokenBuckets(rate=1.0, burst=1.0)
    assert buckets.take("a", now=0.0) == 0
    assert buckets.take("b", now=0.0) == 0
    assert buckets.take("a", now=0.0) == 1.0


def test_take__cost_above_the_bucket__is_admitted_and_paid_later():
    buckets = TokenBuckets(rate=1.0, burst=2.0)
    assert buckets.take("a", 20.0, now=0.0) == 0
    assert buckets.take("a", now=0.0) == 19.0
    assert buckets.take("a", now=19.0) == 0


def test_take__many_clients__memory_is_bounded():
    buckets = TokenBuckets(rate=1.0, burst=1.0, clients=3)
    for number in range(10):
        buckets.take(str(number), now=0.0)
    assert len(buckets) == 3
    assert buckets.take("9", now=0.0) == 1.0
    assert buckets.take("0", now=0.0) == 0


@given(pauses=st.lists(st.floats(0, 2), min_size=1, max_size=60), rate=st.floats(0.5, 5), burst=st.floats(1, 10))
def test_take__never_admits_more_than_burst_and_rate_allow(pauses, rate, burst):
    buckets, now, admitted = TokenBuckets(rate=rate, burst=burst), 0.0, 0
    for pause in pauses:
        now += pause
        admitted += buckets.take("a", now=now) == 0
    assert admitted <= burst + rate * now + 1e-6


def test_defaults__worker_at_two_gigabytes_per_second__is_never_limited():
    limiter = ClientLimiter(RateLimits())
    waits = [limiter.take_request("10.0.0.1", now=index * (4 << 20) / 2e9) for index in range(20_000)]
    assert set(waits) == {0}


def test_take_bytes__ten_seconds_at_once():
    limiter = ClientLimiter(RateLimits(bytes_per_s=100.0))
    assert limiter.take_bytes("a", 1000, now=0.0) == 0
    assert limiter.take_bytes("a", 100, now=0.0) == 0.01
    assert ClientLimiter(RateLimits()).take_bytes("a", 1 << 40, now=0.0) == 0


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::ffff", "2001:db8:1:2::/64"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("fe80::1%eth0", "fe80::/64"),
        ("not:an:address", "not:an:address"),
    ],
)
def test_group_address(address, expected):
    assert group_address(address) == expected


def test_group_address__48_bits__is_the_network_of_a_site():
    assert group_address("2001:db8:1:2:3:4:5:6", bits=48) == "2001:db8:1::/48"
    assert group_address("10.0.0.1", bits=48) == "10.0.0.1"


def test_charge__more_than_the_bucket_has__makes_the_client_wait_for_one_burst_at_most():
    buckets = TokenBuckets(rate=2.0, burst=10.0)
    buckets.charge("a", 1000.0, now=0.0)
    assert buckets.take("a", now=0.0) == 5.5
    assert buckets.take("a", now=5.5) == 0
