"""The benchmark of staleness: which policy samples, and the loss of reward."""

from dataclasses import replace

import pytest
import torch

from benchmarks.measurement import Measurement, find_misses, set_bars
from benchmarks.training import staleness
from benchmarks.training.staleness import BARS, CONFIG, PastPolicies, build_measurements, compute_loss, learn

pytestmark = pytest.mark.unit

REWARDS = {
    ("synchronous", 0): [0.9, 1.0],
    ("naive", 4): [0.2, 0.37],
    ("decoupled", 4): [0.93, 0.95],
}


@pytest.mark.parametrize(("staleness", "versions"), [(0, [0, 1, 2, 3, 4]), (1, [0, 0, 1, 2, 3]), (4, [0, 0, 0, 0, 0])])
def test_past_policies__each_step__samples_with_the_policy_of_that_many_steps_ago(
    staleness: int, versions: list[int]
) -> None:
    past, weights, seen = PastPolicies(staleness), {"w": torch.zeros(2)}, []
    for step in range(5):
        weights["w"].fill_(step)  # the kept weights are a copy
        past.add(step, weights)
        version, kept = past.get_oldest()
        assert kept["w"].tolist() == [version, version]
        seen.append(version)
    assert seen == versions


def test_compute_loss__means_of_seeds__are_in_percent_of_the_synchronous_mean() -> None:
    assert compute_loss(REWARDS, "decoupled", 4) == pytest.approx(100 * 0.01 / 0.95)
    assert compute_loss(REWARDS, "naive", 4) == pytest.approx(70.0)


def test_build_measurements__rewards__have_a_deviation_and_a_loss() -> None:
    measurements = {each.name: each for each in build_measurements(REWARDS)}
    assert measurements["reward.synchronous_at_0"].value == pytest.approx(0.95)
    assert measurements["reward.decoupled_at_4"].peer == "deviation 0.014"
    assert measurements["decoupled_loss_at_4"].value == pytest.approx(1.0526, abs=1e-4)
    assert len(measurements) == 5
    assert {each.n for each in measurements.values()} == {2}
    assert build_measurements({("synchronous", 0): [0.5]})[0].peer == ""


@pytest.mark.parametrize(
    ("name", "value", "count"),
    [
        ("decoupled_loss_at_4", 2.0, 0),
        ("decoupled_loss_at_4", 2.01, 1),
        ("decoupled_loss_at_4", float("nan"), 1),
        ("decoupled_loss_at_8", 50.0, 0),
        ("naive_loss_at_4", 50.0, 0),
    ],
)
def test_bars__loss_of_the_decoupled_objective_at_4__has_the_only_one(name: str, value: float, count: int) -> None:
    measurements = set_bars([Measurement(name=name, value=value, unit="%", n=5)], BARS)
    assert len(find_misses(measurements)) == count


def test_learn__two_steps__gives_a_reward_of_chance_and_the_same_one_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staleness, "EVALUATED", 16)
    config = replace(CONFIG, steps=2, groups=4, siblings=2)
    rewards = [learn(config, "token_truncate", 1, 0) for _ in range(2)]
    assert rewards[0] == rewards[1]
    assert 0.05 < rewards[0] < 0.2  # chance gives 0.125
