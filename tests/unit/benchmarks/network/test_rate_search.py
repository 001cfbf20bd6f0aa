"""The search for a rate, and the share of idle time, worked out by hand."""

import pytest

from benchmarks.network.rate_search import CpuSample, RateSearch, RateStep, parse_cpu

pytestmark = pytest.mark.unit


def test_note__enough_is_idle__asks_for_a_tenth_more() -> None:
    search = RateSearch(50.0, least_idle=0.2)
    assert search.note(achieved=50.0, idle=0.5) == pytest.approx(55.0)
    assert search.note(achieved=54.0, idle=0.2) == pytest.approx(60.5)
    assert search.find_best() == RateStep(pytest.approx(55.0), 54.0, 0.2)


def test_note__too_little_is_idle_or_reached__goes_back_and_then_in_small_steps() -> None:
    search = RateSearch(110.0, least_idle=0.2)
    assert search.note(achieved=110.0, idle=0.19) == pytest.approx(100.0)
    assert search.note(achieved=95.0, idle=0.25) == pytest.approx(104.0)
    assert search.note(achieved=93.0, idle=0.25) == pytest.approx(104.0 / 1.1)
    assert search.find_best() == RateStep(pytest.approx(100.0), 95.0, 0.25)


def test_find_best__no_rate_was_kept__is_none() -> None:
    search = RateSearch(50.0, least_idle=0.2)
    search.note(achieved=50.0, idle=0.1)
    assert search.find_best() is None


def test_search__machine_with_a_known_limit__ends_near_it() -> None:
    search = RateSearch(50.0, least_idle=0.2)
    for _ in range(40):
        search.note(achieved=search.rate, idle=1 - search.rate / 150)
    best = search.find_best()
    assert best is not None
    assert 112 < best.achieved <= 120


def test_parse_cpu__line_of_all_cores__sums_without_the_time_of_guests() -> None:
    before = parse_cpu("cpu  100 0 50 800 50 0 0 0 30 0\ncpu0 1 1 1 1 1 1 1 1 1 1\n")
    assert before == CpuSample(idle=850, total=1000)
    assert before.compute_idle_share(CpuSample(idle=890, total=1200)) == pytest.approx(0.2)
    assert before.compute_idle_share(before) == 0.0
