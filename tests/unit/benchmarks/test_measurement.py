"""Bars of measurements: which one applies, and which values pass it."""

import math

import pytest

from benchmarks.measurement import Bar, Measurement, find_misses, format_value, set_bars

pytestmark = pytest.mark.unit


def make_measurement(name: str, value: float) -> Measurement:
    return Measurement(name=name, value=value, unit="ratio", n=1)


def test_find_misses__values_at_and_beyond_their_bars__names_those_beyond() -> None:
    values = {"speed": 2.0, "speed.large": 1.9, "speed_by_cpu": 0.1, "size.large": 1.1, "size": 1.0, "other": 9.0}
    measurements = [make_measurement(name, value) for name, value in values.items()]
    assert find_misses(set_bars(measurements, {"speed": Bar(least=2), "size": Bar(most=1)})) == [
        "speed.large is 1.9, below 2",
        "size.large is 1.1, above 1",
    ]
    assert find_misses(measurements) == []


def test_set_bars__bar_of_the_whole_name__replaces_that_of_the_first_part() -> None:
    measurements = [make_measurement(name, 1.9) for name in ("speed.small", "speed.large")]
    bars = [each.bar for each in set_bars(measurements, {"speed": Bar(least=2), "speed.small": Bar(least=1.8)})]
    assert bars == [Bar(least=1.8), Bar(least=2)]


def test_set_bars__names_without_a_bar__keep_what_they_have() -> None:
    (measurement,) = set_bars([make_measurement("speed", 1.0)], {"speed": Bar(least=2)})
    assert set_bars([measurement], {"size": Bar(most=1)}) == [measurement]


@pytest.mark.parametrize(
    ("bar", "value", "miss"),
    [
        (Bar(least=0.9), 0.9, None),
        (Bar(least=0.9), 0.899, "below 0.9"),
        (Bar(most=0), 1, "above 0"),
        (Bar(least=-0.1, most=0.1), 0.1, None),
        (Bar(least=-0.1, most=0.1), -0.11, "below -0.1"),
        (Bar(least=-0.1, most=0.1), 0.11, "above 0.1"),
        (Bar(least=0), math.nan, "below 0"),
        (Bar(most=1), math.nan, "above 1"),
        (Bar(most=1), math.inf, "above 1"),
    ],
)
def test_describe_miss__both_limits__are_inclusive_and_nan_passes_none(
    bar: Bar, value: float, miss: str | None
) -> None:
    assert bar.describe_miss(value) == miss


def test_bar__as_text__names_its_limits() -> None:
    bars = (Bar(least=0.9), Bar(most=60_000), Bar(least=-0.1, most=0.1))
    assert [str(bar) for bar in bars] == ["at least 0.9", "at most 60,000", "-0.1 to 0.1"]


@pytest.mark.parametrize(
    ("value", "text"), [(0.03834, "0.03834"), (12.3456, "12.35"), (999.96, "1000"), (1344.4, "1,344"), (0, "0")]
)
def test_format_value__four_significant_digits__or_all_before_the_point(value: float, text: str) -> None:
    assert format_value(value) == text
