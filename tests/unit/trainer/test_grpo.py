"""The objective against values worked out by hand and against autograd's own derivatives."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trainer.grpo import (
    Objective,
    compute_advantages,
    compute_entropy,
    compute_kl,
    compute_loss,
    compute_objective,
    compute_weights,
    is_clipped,
)

pytestmark = pytest.mark.unit

PLAIN = Objective(epsilon=0.2, delta=4.0, kl=0.0, entropy=0.0)


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_compute_advantages__one_of_four__is_the_population_z_score() -> None:
    # mean 1/4, variance 3/16, std sqrt(3)/4: (3/4) / std = sqrt(3), (-1/4) / std = -1/sqrt(3)
    found = compute_advantages(tensor(1, 0, 0, 0)[None], "grpo")[0].tolist()
    assert found == pytest.approx([math.sqrt(3), *[-1 / math.sqrt(3)] * 3], rel=1e-5)
    exact = 0.75 / (math.sqrt(3) / 4 + 1e-6)
    assert found[0] == pytest.approx(exact, rel=1e-12)


def test_compute_advantages__dr_grpo__only_centres() -> None:
    found = compute_advantages(torch.stack([tensor(1, 0, 0, 0), tensor(2, 4, 6, 0)]), "dr_grpo")
    assert found.tolist() == [[0.75, -0.25, -0.25, -0.25], [-1, 1, 3, -3]]


@pytest.mark.parametrize("kind", ["grpo", "dr_grpo"])
@pytest.mark.parametrize("reward", [0.0, 1.0, 0.1, -1 / 3])
def test_compute_advantages__equal_rewards__are_exactly_zero(kind: str, reward: float) -> None:
    assert compute_advantages(torch.full((2, 7), reward, dtype=torch.float64), kind).abs().max() == 0  # type: ignore[arg-type]


@given(st.lists(st.sampled_from([0.0, 1.0]), min_size=8, max_size=8), st.floats(-3, 3), st.floats(0.5, 4))
def test_compute_advantages__shifted_and_scaled_rewards__do_not_matter(
    rewards: list[float], shift: float, scale: float
) -> None:
    plain = compute_advantages(tensor(*rewards)[None], "grpo")
    moved = compute_advantages(tensor(*(shift + scale * r for r in rewards))[None], "grpo")
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


def test_compute_entropy__uniform_and_certain__are_log_n_and_zero() -> None:
    rows = torch.log(torch.tensor([[0.25] * 4, [1 - 3e-12, 1e-12, 1e-12, 1e-12]], dtype=torch.float64))
    assert compute_entropy(rows).tolist() == pytest.approx([math.log(4), 0.0], abs=1e-9)


def compute(objective: Objective, **changes: torch.Tensor) -> tuple[float, torch.Tensor, object]:
    values = {
        "logprobs": tensor(-1.0, -0.5, -2.0), "old": tensor(-1.0, -1.0, -1.0), "advantages": tensor(1.0, -1.0, 2.0),
        "weights": tensor(0.25, 0.25, 0.5), "entropy": tensor(1.0, 2.0, 3.0), "reference": tensor(-1.0, -1.0, -1.0),
    } | changes  # fmt: skip
    logprobs = values["logprobs"].requires_grad_()
    loss, sums = compute_loss(**values, objective=objective)  # type: ignore[arg-type]
    (slope,) = torch.autograd.grad(loss, logprobs)
    return loss.item(), slope, sums


def test_compute_loss__three_tokens__is_the_weighted_sum_by_hand() -> None:
    # ratios 1, e^0.5 = 1.6487, e^-1 = 0.3679; objectives 1, -1.6487, 0.7358
    up, down = math.exp(0.5), math.exp(-1)
    loss, slope, sums = compute(PLAIN)
    assert loss == pytest.approx(-(0.25 - 0.25 * up + 0.5 * 2 * down))
    assert slope.tolist() == pytest.approx([-0.25, 0.25 * up, -down])  # -w A r
    assert sums.tokens == 3  # type: ignore[attr-defined]
    assert sums.clipped == 0  # type: ignore[attr-defined]
    assert sums.ratio == pytest.approx(1 + up + down)  # type: ignore[attr-defined]
    assert sums.entropy == 6  # type: ignore[attr-defined]


def test_compute_loss__kl_coefficient__adds_value_and_gradient() -> None:
    plain, slope, _ = compute(PLAIN)
    loss, moved, sums = compute(Objective(epsilon=0.2, delta=4.0, kl=0.1, entropy=0.0))
    by_hand = [0.0, math.exp(-0.5) + 0.5 - 1, math.e - 1 - 1]
    assert loss - plain == pytest.approx(0.1 * (0.25 * by_hand[1] + 0.5 * by_hand[2]))
    assert (moved - slope).tolist() == pytest.approx([0, 0.025 * (1 - math.exp(-0.5)), 0.05 * (1 - math.e)])
    assert sums.kl == pytest.approx(sum(by_hand))  # type: ignore[attr-defined]


def test_compute_loss__entropy_coefficient__rewards_entropy() -> None:
    plain, _, _ = compute(PLAIN)
    loss, _, _ = compute(Objective(epsilon=0.2, delta=4.0, kl=0.0, entropy=0.1))
    assert loss - plain == pytest.approx(-0.1 * (0.25 + 0.5 + 1.5))


@given(st.lists(st.tuples(st.floats(-5, 0), st.floats(-5, 0), st.floats(-3, 3)), min_size=1, max_size=20))
def test_compute_loss__any_split_and_order__adds_up(tokens: list[tuple[float, float, float]]) -> None:
    columns = [torch.tensor(column, dtype=torch.float64) for column in zip(*tokens, strict=True)]
    weights, entropy = torch.full_like(columns[0], 0.1), torch.zeros_like(columns[0])

    def lose(chosen: list[int]) -> float:
        logprobs, old, advantages = (column[chosen] for column in columns)
        parts = {"logprobs": logprobs, "old": old, "advantages": advantages}
        loss, _ = compute_loss(
            **parts, weights=weights[chosen], entropy=entropy[chosen], reference=None, objective=PLAIN
        )
        return loss.item()

    n = len(tokens)
    whole = lose(list(range(n)))
    assert lose(list(range(n))[::-1]) == pytest.approx(whole)
    assert lose(list(range(0, n, 2))) + lose(list(range(1, n, 2))) == pytest.approx(whole)
