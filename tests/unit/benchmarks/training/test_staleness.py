"""The benchmark of staleness: which policy samples, what is lost of the reward."""

from dataclasses import replace

import pytest
import torch

from benchmarks.harness import Measurement
from benchmarks.training.staleness import CASE, PastPolicies, build_claims, compute_loss, find_failures, learn

pytestmark = pytest.mark.unit

REWARDS = {
    ("synchronous", 0): [0.9, 1.0],
    ("naive", 4): [0.2, 0.37],
    ("decoupled", 4): [0.93, 0.95],
}


@pytest.mark.parametrize(("staleness", "versions"), [(0, [0, 1, 2, 3, 4]), (1, [0, 0, 1, 2, 3]), (4, [0, 0, 0, 0, 0])])
def test_past_policies__each_step__samples_with_the_policy_of_so_many_steps_ago(
    staleness: int, versions: list[int]
) -> None:
    past, weights, seen = PastPolicies(staleness), {"w": torch.zeros(2)}, []
    for step in range(5):
        weights["w"].fill_(step)  # what is kept is a copy
        past.add(step, weights)
        version, kept = past.get_oldest()
        assert kept["w"].tolist() == [version, version]
        seen.append(version)
    assert seen == versions


def test_compute_loss__means_of_seeds__in_percent_of_the_synchronous_one() -> None:
    assert compute_loss(REWARDS, "decoupled", 4) == pytest.approx(100 * 0.01 / 0.95)
    assert compute_loss(REWARDS, "naive", 4) == pytest.approx(70.0)


def test_build_claims__rewards__with_their_deviation_and_what_is_lost() -> None:
    claims = {claim.name: claim for claim in build_claims(REWARDS)}
    assert claims["reward.synchronous_at_0"].value == pytest.approx(0.95)
    assert claims["reward.decoupled_at_4"].peer == "deviation 0.014"
    assert claims["decoupled_loss_at_4"].value == pytest.approx(1.0526, abs=1e-4)
    assert len(claims) == 5
    assert {claim.n for claim in claims.values()} == {2}
    assert build_claims({("synchronous", 0): [0.5]})[0].peer == ""


@pytest.mark.parametrize(
    ("name", "value", "count"),
    [
        ("decoupled_loss_at_4", 1.99, 0),
        ("decoupled_loss_at_4", 2.0, 1),
        ("decoupled_loss_at_4", float("nan"), 1),
        ("decoupled_loss_at_8", 50.0, 0),
        ("naive_loss_at_4", 50.0, 0),
    ],
)
def test_find_failures__a_loss__has_its_bar(name: str, value: float, count: int) -> None:
    assert len(find_failures([Measurement(name=name, value=value, unit="%", n=5)])) == count


def test_learn__two_steps__gives_the_reward_of_the_last_policy_and_the_same_one_again() -> None:
    case = replace(CASE, steps=2, groups=4, siblings=2)
    rewards = [learn(case, "decoupled", 1, 0) for _ in range(2)]
    assert rewards[0] == rewards[1]
    assert 0.05 < rewards[0] < 0.2  # chance gives 0.125
