"""The signs that a run cannot learn on hand-written steps: each alone, at its bound, and not before."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from covey.protocol.learning_signs import LearningSign
from trainer.config import AlarmSettings
from trainer.monitoring.alarms import Alarm
from trainer.monitoring.learning import count_dead, find_new_signs, find_signs, is_dead

pytestmark = pytest.mark.unit

RULES = AlarmSettings(steps=3)
HEALTHY = {
    "batch/truncated_share": 0.25,
    "batch/unanswered_share": 0.125,
    "reward/task_std": 0.4,
    "batch/live_share": 0.5,
    "optim/grad_norm": 0.1,
}


def build(count: int, **changes: float) -> list[dict[str, Any]]:
    """Build equal steps. Names of changes have underscores in place of slashes."""
    names = {name.replace("/", "_"): name for name in HEALTHY}
    return [HEALTHY | {names[name]: value for name, value in changes.items()} for _ in range(count)]


ONE_SIGN = [
    ({"batch_truncated_share": 0.75}, LearningSign.TRUNCATED, 0.75, 0.5),
    ({"batch_unanswered_share": 1.0}, LearningSign.NO_ANSWER, 1.0, 0.5),
    ({"reward_task_std": 0.0}, LearningSign.CONSTANT_REWARD, 0.0, 0.0),
    ({"batch_live_share": 0.0}, LearningSign.NO_LIVE_GROUP, 0.0, 0.0),
    ({"optim_grad_norm": 0.0}, LearningSign.ZERO_GRADIENT, 0.0, 0.0),
]


def test_find_signs__healthy_steps__none() -> None:
    assert find_signs(build(50), RULES) == []


@pytest.mark.parametrize(("changes", "sign", "value", "limit"), ONE_SIGN)
def test_find_signs__one_thing_wrong__is_found_alone_once_the_steps_are_full(
    changes: dict[str, float], sign: LearningSign, value: float, limit: float
) -> None:
    assert find_signs(build(2, **changes), RULES) == []
    assert find_signs(build(3, **changes), RULES) == [Alarm(sign=sign, value=value, limit=limit)]


def test_find_signs__shares__are_means_that_exceed_the_limit() -> None:
    """(0.9 + 0.9 + 0) / 3 is 0.6, which is more than a half, and (1 + 0.5 + 0) / 3 is exactly a half."""
    updates = [update for cut in (0.9, 0.9, 0.0) for update in build(1, batch_truncated_share=cut)]
    assert [(alarm.sign, alarm.value) for alarm in find_signs(updates, RULES)] == [("truncated", pytest.approx(0.6))]
    updates = [update for cut in (1.0, 0.5, 0.0) for update in build(1, batch_truncated_share=cut)]
    assert find_signs(updates, RULES) == []


@pytest.mark.parametrize(("changes", "sign", "value", "limit"), ONE_SIGN[2:])
def test_find_signs__one_step_of_three_is_not_zero__none(
    changes: dict[str, float], sign: LearningSign, value: float, limit: float
) -> None:
    assert find_signs(build(1) + build(2, **changes), RULES) == []
    assert find_signs(build(2, **changes) + build(1), RULES) == []


def test_find_signs__as_in_a_run_on_random_weights__causes_come_before_effects() -> None:
    """The first steps of a pool whose completions are limited to 8 tokens: reward 0, live 0, gradient 0, cut 0.97."""
    dead = build(5, batch_truncated_share=0.97, reward_task_std=0.0, batch_live_share=0.0, optim_grad_norm=0.0)
    found = [alarm.sign for alarm in find_signs(dead, AlarmSettings())]
    assert found == ["truncated", "constant_reward", "no_live_group", "zero_gradient"]
    assert find_signs(dead[:4], AlarmSettings()) == []


def test_find_signs__steps_of_an_older_release__lack_a_metric_and_raise_nothing() -> None:
    assert find_signs([{"batch/truncated_share": 1.0}, {}, {"batch/truncated_share": 1.0}], RULES) == []


def test_find_new_signs__sign_that_stays__is_new_once_and_again_after_it_was_absent() -> None:
    updates = build(5, optim_grad_norm=0.0) + build(1) + build(4, optim_grad_norm=0.0)
    new = [step for step in range(len(updates)) if find_new_signs(updates[: step + 1], RULES)]
    assert new == [2, 8]


def test_is_dead__no_live_group_or_no_gradient() -> None:
    assert not is_dead(HEALTHY)
    assert is_dead(HEALTHY | {"batch/live_share": 0.0})  # a KL term alone may still have a gradient
    assert is_dead(HEALTHY | {"optim/grad_norm": 0.0})  # the live groups may be masked
    assert not is_dead(HEALTHY | {"batch/truncated_share": 1.0, "batch/unanswered_share": 1.0})
    assert not is_dead({})


@given(st.lists(st.booleans(), max_size=30))
def test_count_dead__any_steps__counts_those_since_the_last_that_is_not_dead(dead: list[bool]) -> None:
    updates = [update for each in dead for update in build(1, batch_live_share=0.0 if each else 0.5)]
    expected = len("".join("x" if each else " " for each in dead).rpartition(" ")[2])
    assert count_dead(updates) == expected
