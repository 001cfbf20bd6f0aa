"""The signs of collapse on hand-written series: each is found, reported once, cleared and reported again."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from trainer.config import AlarmSettings
from trainer.monitoring.alarms import (
    ENTROPY,
    GRADIENT_NORM,
    MISMATCH_KL,
    OUTSIDE_CLIP,
    Alarm,
    compute_climb_limit,
    compute_medians,
    compute_rise_limit,
    find_alarms,
    find_new_alarms,
)

pytestmark = pytest.mark.unit

RULES = AlarmSettings(window=3)


def build_series(
    norm: Sequence[float] = (),
    outside: Sequence[float] = (),
    mismatch: Sequence[float] = (),
    entropy: Sequence[float] = (),
) -> dict[str, list[float]]:
    """Build a series per sign. Signs that are not given are constant."""
    steps = max(map(len, (norm, outside, mismatch, entropy)))
    flat = {GRADIENT_NORM: 1.0, OUTSIDE_CLIP: 0.0, MISMATCH_KL: 0.0, ENTROPY: 2.0}
    values = {GRADIENT_NORM: norm, OUTSIDE_CLIP: outside, MISMATCH_KL: mismatch, ENTROPY: entropy}
    return {name: list(values[name]) or [value] * steps for name, value in flat.items()}


def list_new(series: dict[str, list[float]], settings: AlarmSettings = RULES) -> list[tuple[int, str]]:
    """Return (step, sign) of every alarm as the series grows."""
    steps = len(series[GRADIENT_NORM])
    grown = ({name: values[: step + 1] for name, values in series.items()} for step in range(steps))
    return [(step, alarm.sign) for step, prefix in enumerate(grown) for alarm in find_new_alarms(prefix, settings)]


def test_compute_medians__windows_end_with_the_newest__by_hand() -> None:
    assert compute_medians([9, 1, 2, 3, 6, 5, 4], 3) == [2, 5]
    assert compute_medians([1, 2], 3) == []
    assert compute_medians([5, 1, 9], 1) == [5, 1, 9]


def test_compute_climb_limit__lowest_before_times_the_climb_or_the_least() -> None:
    assert compute_climb_limit([3.0, 2.0, 5.0, 1.0], climb=2.0, least=0.0) == 4.0
    assert compute_climb_limit([0.001, 0.9], climb=2.0, least=0.01) == 0.01
    assert compute_climb_limit([3.0], climb=2.0, least=0.0) is None


@pytest.mark.parametrize(
    ("medians", "limit"),
    [
        ([2.0, 1.0, 1.0], 1.2),
        ([2.0, 1.0, 0.5], 1.2),  # the newest is not compared with itself
        ([2.0, 1.7, 1.9], None),  # has lost only 15 %
        ([1.0, 2.0, 3.0], None),  # never fell
        ([1.0, 2.0], None),
        ([1.0, 3.0, 1.5, 2.0], None),  # a peak, but its lowest came before
    ],
)
def test_compute_rise_limit__after_a_fall_only(medians: list[float], limit: float | None) -> None:
    found = compute_rise_limit(medians, fall=0.2, rise=0.2)
    assert found is None if limit is None else found == pytest.approx(limit)


@pytest.mark.parametrize(
    ("outside", "limit"),
    [([0.3] * 3 + [0.49] * 3, None), ([0.3] * 3 + [0.5] * 3, 0.5), ([0.69] * 6, 0.5), ([0.02] * 3 + [0.6] * 3, 0.05)],
)
def test_find_alarms__half_of_the_tokens_outside__is_found_however_little_it_climbed(
    outside: list[float], limit: float | None
) -> None:
    found = find_alarms(build_series(outside=outside), RULES)
    assert found == ([] if limit is None else [Alarm(sign=OUTSIDE_CLIP, value=outside[-1], limit=limit)])


def test_find_alarms__gradient_norm_doubles_slowly__is_found_once_its_median_has_doubled() -> None:
    norm = [1.0, 1.0, 1.0, 1.2, 1.3, 1.4, 1.9, 2.0, 2.1]
    assert find_alarms(build_series(norm=norm[:-1]), RULES) == []
    assert find_alarms(build_series(norm=norm), RULES) == [Alarm(sign=GRADIENT_NORM, value=2.0, limit=2.0)]


def test_find_alarms__one_spike__raises_no_alarm() -> None:
    assert list_new(build_series(norm=[1.0] * 6 + [100.0] + [1.0] * 6)) == []


@pytest.mark.parametrize(("name", "sign", "least"), [("outside", OUTSIDE_CLIP, 0.05), ("mismatch", MISMATCH_KL, 0.01)])
def test_find_alarms__distance_from_the_sampling_policy__counts_only_above_the_minimum(
    name: str, sign: str, least: float
) -> None:
    low, high = ([0.0] * 3 + [value] * 3 for value in (0.9 * least, 1.5 * least))
    assert find_alarms(build_series(**{name: low}), RULES) == []
    assert find_alarms(build_series(**{name: high}), RULES) == [Alarm(sign=sign, value=1.5 * least, limit=least)]
    steep = [3 * least] * 3 + [6 * least] * 3
    assert find_alarms(build_series(**{name: steep}), RULES) == [Alarm(sign=sign, value=6 * least, limit=6 * least)]


def test_find_alarms__entropy__falls_without_and_rises_with_an_alarm() -> None:
    falling = [2.0] * 3 + [1.5] * 3 + [1.0] * 3
    assert list_new(build_series(entropy=falling)) == []
    assert list_new(build_series(entropy=[*falling, 1.3, 1.3])) == [(10, ENTROPY)]


def test_find_new_alarms__a_sign_that_stays__is_reported_once() -> None:
    assert list_new(build_series(norm=[1.0] * 6 + [3.0] * 30)) == [(7, GRADIENT_NORM)]


def test_find_new_alarms__cleared_for_a_window_and_back__is_reported_again() -> None:
    norm = [1.0] * 6 + [3.0] * 6 + [1.0] * 9 + [3.0] * 6
    assert list_new(build_series(norm=norm)) == [(7, GRADIENT_NORM), (22, GRADIENT_NORM)]


def test_find_new_alarms__flickers_within_a_window__is_reported_once() -> None:
    norm = [1.0] * 6 + [3.0, 3.0, 1.0, 1.0, 3.0, 3.0, 1.0, 1.0]
    assert list_new(build_series(norm=norm)) == [(7, GRADIENT_NORM)]


def test_find_new_alarms__two_signs_at_once__are_two() -> None:
    series = build_series(norm=[1.0] * 4 + [3.0] * 2, outside=[0.0] * 4 + [0.3] * 2)
    assert list_new(series) == [(5, GRADIENT_NORM), (5, OUTSIDE_CLIP)]


@given(st.lists(st.floats(0.001, 1000), max_size=40), st.integers(1, 5))
def test_find_alarms__any_series__does_not_depend_on_its_unit(norm: list[float], window: int) -> None:
    settings = AlarmSettings(window=window)
    signs = [
        {alarm.sign for alarm in find_alarms(build_series(norm=[unit * value for value in norm]), settings)}
        for unit in (1.0, 1024.0)
    ]
    assert signs[0] == signs[1]


@pytest.mark.parametrize(
    "wrong", [{"window": 0}, {"gradient_norm_climb": 1.0}, {"entropy_fall": 1.0}, {"entropy_rise": 0.0}, {"norm": 2}]
)
def test_alarm_settings__meaningless_values__are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValidationError):
        AlarmSettings.model_validate(wrong)
