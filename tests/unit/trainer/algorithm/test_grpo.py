"""The objective against values worked out by hand and against autograd's own derivatives."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trainer.algorithm.grpo import (
    compute_advantages,
    compute_kl,
    compute_objective,
    compute_weights,
    is_clipped,
)
from trainer.algorithm.loss_settings import LossSettings

pytestmark = pytest.mark.unit

PLAIN = LossSettings(importance_sampling_mode="none")


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_compute_advantages__one_of_four__is_the_population_z_score() -> None:
    # mean 1/4, variance 3/16, std sqrt(3)/4: (3/4) / std = sqrt(3), (-1/4) / std = -1/sqrt(3)
    found = compute_advantages(tensor(1, 0, 0, 0)[None], "group")[0].tolist()
    assert found == pytest.approx([math.sqrt(3), *[-1 / math.sqrt(3)] * 3], rel=1e-5)
    exact = 0.75 / (math.sqrt(3) / 4 + 1e-6)
    assert found[0] == pytest.approx(exact, rel=1e-12)


def test_compute_advantages__maxrl__divides_by_the_mean_of_the_group() -> None:
    found = compute_advantages(torch.stack([tensor(1, 0, 0, 0), tensor(1, 1, 0, 0), tensor(0, 0, -1, 1)]), "mean")
    assert found.tolist() == [[3, -1, -1, -1], [1, 1, -1, -1], [0, 0, 0, 0]]


def test_compute_advantages__sample_deviation__divides_by_one_less() -> None:
    found = compute_advantages(tensor(1, 0, 0, 0)[None], "group", ddof=1, epsilon=1e-4)[0].tolist()
    assert found == pytest.approx([0.75 / (0.5 + 1e-4), *[-0.25 / (0.5 + 1e-4)] * 3], rel=1e-12)


def test_compute_advantages__dr_grpo__only_centres() -> None:
    found = compute_advantages(torch.stack([tensor(1, 0, 0, 0), tensor(2, 4, 6, 0)]), "none")
    assert found.tolist() == [[0.75, -0.25, -0.25, -0.25], [-1, 1, 3, -3]]


@pytest.mark.parametrize("kind", ["group", "none"])
@pytest.mark.parametrize("reward", [0.0, 1.0, 0.1, -1 / 3])
def test_compute_advantages__equal_rewards__are_exactly_zero(kind: str, reward: float) -> None:
    assert compute_advantages(torch.full((2, 7), reward, dtype=torch.float64), kind).abs().max() == 0  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["group", "none"])
@pytest.mark.parametrize("reward", [math.nan, math.inf])
def test_compute_advantages__nan_or_inf_reward__is_not_a_dead_group(kind: str, reward: float) -> None:
    assert compute_advantages(tensor(1, reward, 0)[None], kind).isnan().any()  # type: ignore[arg-type]


def test_compute_advantages__one_sibling__is_zero() -> None:
    assert compute_advantages(tensor(3)[None], "group").tolist() == [[0]]


@given(st.lists(st.sampled_from([0.0, 1.0]), min_size=8, max_size=8), st.floats(-3, 3), st.floats(0.5, 4))
def test_compute_advantages__shifted_and_scaled_rewards__do_not_matter(
    rewards: list[float], shift: float, scale: float
) -> None:
    plain = compute_advantages(tensor(*rewards)[None], "group")
    moved = compute_advantages(tensor(*(shift + scale * r for r in rewards))[None], "group")
    torch.testing.assert_close(plain, moved, rtol=1e-4, atol=1e-4)
    assert abs(float(plain.sum())) < 1e-9


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected", "clipped"),
    [
        (1.0, 2.0, 2.0, False),
        (1.1, 2.0, 2.2, False),
        (1.5, 2.0, 2.4, True),  # held at 1 + eps
        (9.0, 2.0, 2.4, True),
        (0.5, 2.0, 1.0, False),  # a good token that became unlikely: free to come back
        (1.5, -2.0, -3.0, False),  # a bad token that became likely: pushed down
        (3.9, -2.0, -7.8, False),
        (9.0, -2.0, -8.0, True),  # bounded by delta
        (0.5, -2.0, -1.6, True),  # held at 1 - eps
        (0.9, -2.0, -1.8, False),
    ],
)
def test_compute_objective__each_side__is_the_formula(
    ratio: float, advantage: float, expected: float, clipped: bool
) -> None:
    live = tensor(ratio).requires_grad_()
    value = compute_objective(live, tensor(advantage), PLAIN)
    assert value.item() == pytest.approx(expected)
    (slope,) = torch.autograd.grad(value.sum(), live)
    assert slope.item() == (0.0 if clipped else advantage)
    assert bool(is_clipped(live, tensor(advantage), PLAIN)) is clipped


def test_compute_weights__each_normaliser__is_the_formula() -> None:
    lengths = torch.tensor([2, 6])
    assert compute_weights(lengths, "tokens", constant=10).tolist() == [1 / 8, 1 / 8]
    assert compute_weights(lengths, "sequence", constant=10).tolist() == pytest.approx([1 / 4, 1 / 12])
    assert compute_weights(lengths, "constant", constant=10).tolist() == pytest.approx([1 / 20, 1 / 20])


def test_compute_kl__value_and_gradient__are_live() -> None:
    logprobs = tensor(-1.0, -2.0).requires_grad_()
    kl = compute_kl(logprobs, tensor(-1.0, -1.0))
    assert kl.tolist() == pytest.approx([0.0, math.e - 2])
    (slope,) = torch.autograd.grad(kl.sum(), logprobs)
    assert slope.tolist() == pytest.approx([0.0, 1 - math.e])  # d/dl (exp(ref - l) - (ref - l) - 1) = 1 - exp(ref - l)


def test_compute_kl__mean_over_the_policy__is_the_divergence() -> None:
    p, q = tensor(0.7, 0.2, 0.1), tensor(0.2, 0.5, 0.3)
    found = (p * compute_kl(p.log(), q.log())).sum()
    assert found.item() == pytest.approx(float((p * (p / q).log()).sum()))
