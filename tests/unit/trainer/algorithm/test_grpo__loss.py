"""The loss against values worked out by hand, and against plain floats and their differences."""

import math
import random
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes.samples import change
from trainer.algorithm.grpo import TokenSums, compute_loss
from trainer.algorithm.loss_settings import ImportanceMode, KlEstimator, LossSettings

pytestmark = pytest.mark.unit

PLAIN = LossSettings(importance_sampling_mode="none")
DECOUPLED = LossSettings()


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def compute(objective: LossSettings, **changes: torch.Tensor | None) -> tuple[float, torch.Tensor, TokenSums]:
    values = {
        "logprobs": tensor(-1.0, -0.5, -2.0), "old": tensor(-1.0, -1.0, -1.0), "advantages": tensor(1.0, -1.0, 2.0),
        "weights": tensor(0.25, 0.25, 0.5), "entropy": tensor(1.0, 2.0, 3.0), "reference": tensor(-1.0, -1.0, -1.0),
        "proximal": None, "segments": torch.tensor([0, 0, 1]),
    } | changes  # fmt: skip
    logprobs = values["logprobs"]
    assert logprobs is not None
    logprobs.requires_grad_()
    loss, sums = compute_loss(**values, settings=objective)  # type: ignore[arg-type]
    (slope,) = torch.autograd.grad(loss, logprobs)
    return loss.item(), slope, sums


def test_compute_loss__divergence_without_a_reference__is_refused() -> None:
    with pytest.raises(ValueError, match="no reference log-probabilities"):
        compute(change(PLAIN, beta=0.1), reference=None)


def test_compute_loss__three_tokens__is_the_weighted_sum_by_hand() -> None:
    # ratios 1, e^0.5 = 1.6487, e^-1 = 0.3679; objectives 1, -1.6487, 0.7358
    up, down = math.exp(0.5), math.exp(-1)
    loss, slope, sums = compute(PLAIN)
    assert loss == pytest.approx(-(0.25 - 0.25 * up + 0.5 * 2 * down))
    assert slope.tolist() == pytest.approx([-0.25, 0.25 * up, -down])  # -w A r
    assert (sums.tokens, sums.clipped, sums.entropy) == (3, 0, 6)
    assert sums.ratio == pytest.approx(1 + up + down)
    assert sums.loss == pytest.approx(loss)


def test_compute_loss__decoupled_on_the_starting_policy__is_policy_gradient_with_capped_weights() -> None:
    # pi_prox is the policy itself, so value and slope are w A, whatever the ratio to the policy that sampled
    old, weight = tensor(-1.5, 0.3, -9.0), [math.exp(0.5), math.exp(-0.8), 5.0]
    loss, slope, sums = compute(DECOUPLED, old=old)
    by_hand = [-0.25 * weight[0], 0.25 * weight[1], -0.5 * 2 * weight[2]]
    assert slope.tolist() == pytest.approx(by_hand)
    assert loss == pytest.approx(sum(by_hand))
    assert sums.clipped == 1  # the third is held down by the cap
    assert sums.ratio == pytest.approx(weight[0] + weight[1] + math.exp(7))  # the drift is reported uncapped
    same = tensor(-1.0, -0.5, -2.0)
    assert torch.equal(compute(DECOUPLED, old=old, proximal=same)[1], slope)


def test_compute_loss__decoupled_after_an_update__clips_the_ratio_to_the_starting_policy() -> None:
    # u = 1, e^0.5, e^-1 against pi_prox; w = e^0.5, e^-0.5, e^1 against the policy that sampled
    old, proximal = tensor(-1.5, -0.5, -2.0), tensor(-1.0, -1.0, -1.0)
    loss, slope, sums = compute(DECOUPLED, old=old, proximal=proximal, advantages=tensor(1.0, 1.0, -2.0))
    # the second token is held at 1.2, the third at 0.8
    assert loss == pytest.approx(-0.25 * math.exp(0.5) - 0.25 * math.exp(-0.5) * 1.2 + 0.5 * math.e * 0.8 * 2)
    assert slope.tolist() == pytest.approx([-0.25 * math.exp(0.5), 0, 0])
    assert sums.clipped == 2


def test_compute_loss__decoupled_and_recomputed_old__is_the_two_sided_one() -> None:
    same = tensor(-1.0, -1.0, -1.0)
    decoupled, two_sided = compute(DECOUPLED, old=same, proximal=same), compute(PLAIN, old=same)
    assert decoupled[0] == two_sided[0]
    assert torch.equal(decoupled[1], two_sided[1])


@pytest.mark.parametrize("objective", [PLAIN, DECOUPLED])
@pytest.mark.parametrize("gap", [800.0, -800.0])
def test_compute_loss__ratio_that_overflows__has_a_finite_gradient(objective: LossSettings, gap: float) -> None:
    loss, slope, _ = compute(objective, old=tensor(-1.0 - gap, -0.5 - gap, -2.0 - gap))
    assert math.isfinite(loss)
    assert bool(slope.isfinite().all())


def draw_policies(*names: str) -> dict[str, torch.Tensor]:
    """Draw log-probabilities of policies over six tokens, float64 [6]."""
    draw = torch.Generator().manual_seed(0)
    return {name: torch.randn(6, generator=draw, dtype=torch.float64).log_softmax(dim=0) for name in names}


def compute_divergence_slope(objective: LossSettings, logits: torch.Tensor, **policies: torch.Tensor) -> torch.Tensor:
    """Return the exact gradient of the expected loss by the logits. Each token counts with its probability."""
    live = logits.clone().requires_grad_()
    zero = torch.zeros_like(logits)
    loss, _ = compute_loss(
        logprobs=live.log_softmax(dim=0), old=policies.get("old"), proximal=policies.get("proximal"), advantages=zero,
        weights=policies.get("old", logits).exp(), entropy=zero, reference=policies["reference"], settings=objective,
        segments=torch.arange(len(logits)),
    )  # fmt: skip
    (slope,) = torch.autograd.grad(loss, live)
    return slope


def compute_slope_of(divergence: Callable[[torch.Tensor], torch.Tensor], logits: torch.Tensor) -> torch.Tensor:
    live = logits.clone().requires_grad_()
    (slope,) = torch.autograd.grad(divergence(live.log_softmax(dim=0)), live)
    return slope


@pytest.mark.parametrize("objective", [PLAIN, DECOUPLED])
@pytest.mark.parametrize("others", [(), ("old",), ("old", "proximal")], ids="-".join)
def test_compute_loss__corrected_divergence__has_the_gradient_of_the_reverse_kl(
    objective: LossSettings, others: tuple[str, ...]
) -> None:
    """The expectation is enumerated over the vocabulary, on samples of the policy itself or of an older one."""
    policies = draw_policies("policy", "reference", *others)
    logits, reference = policies.pop("policy"), policies["reference"]
    slope = compute_divergence_slope(change(objective, beta=1.0, importance_sampling_clip_max=1e9), logits, **policies)
    expected = compute_slope_of(lambda p: (p.exp() * (p - reference)).sum(), logits)
    assert float(expected.norm()) > 0.1
    torch.testing.assert_close(slope, expected, rtol=0, atol=1e-14)


def test_compute_loss__plain_divergence__has_the_gradient_of_the_forward_kl() -> None:
    policies = draw_policies("policy", "reference")
    logits, reference = policies["policy"], policies["reference"]
    plain = change(PLAIN, beta=1.0, kl_estimator="k3")
    slope = compute_divergence_slope(plain, logits, reference=reference)
    expected = compute_slope_of(lambda p: (reference.exp() * (reference - p)).sum(), logits)
    torch.testing.assert_close(slope, expected, rtol=0, atol=1e-14)
    corrected = compute_divergence_slope(change(plain, kl_estimator="k3_corrected"), logits, reference=reference)
    assert float((corrected - slope).norm() / slope.norm()) > 0.1


def test_compute_loss__corrected_divergence__is_weighted_no_more_than_the_cap_allows() -> None:
    """pi_prox / pi_behave is e^2, e^0.5 and 1. With a cap of 5 the first becomes 5."""
    at = {"old": tensor(-3.0, -1.0, -2.0), "proximal": tensor(-1.0, -0.5, -2.0), "advantages": tensor(0.0, 0.0, 0.0)}
    loss, _, sums = compute(change(DECOUPLED, beta=0.1), **at)
    by_hand = [0.0, math.exp(0.5) * (math.exp(-0.5) + 0.5 - 1), math.e - 1 - 1]
    assert loss == pytest.approx(0.1 * (0.25 * by_hand[1] + 0.5 * by_hand[2]))
    assert sums.kl == pytest.approx(sum(by_hand))
    far, _, _ = compute(change(DECOUPLED, beta=0.1), reference=tensor(0.0, -0.5, -2.0), **at)
    assert far == pytest.approx(0.1 * 0.25 * 5 * (math.e - 1 - 1))


def test_compute_loss__one_update_on_stale_samples__measures_the_distance_from_the_sampling_policy() -> None:
    """Nothing is clipped, because the step starts from this policy, although two of three ratios are outside."""
    gaps = [0.1, 0.3, -1.0]
    old = tensor(*(logprob - gap for logprob, gap in zip((-1.0, -0.5, -2.0), gaps, strict=True)))
    for objective in (PLAIN, DECOUPLED):
        _, _, sums = compute(objective, old=old)
        divergences = [math.exp(gap) - gap - 1 for gap in gaps]
        assert sums.outside_clip == 2
        assert sums.mismatch_kl == pytest.approx(sum(divergences), rel=1e-12)
        assert sums.mismatch_kl_max == pytest.approx(divergences[2], rel=1e-12)
    assert sums.clipped == 0


def test_compute_loss__mismatch_of_a_last_bit__is_not_rounding_noise() -> None:
    """In float32 exp(d) - d - 1 of such small d would be a multiple of 6e-8, or negative."""
    logprobs = torch.tensor([-1.0, -1.0, -1.0])
    old = logprobs + torch.tensor([2.0**-20, -(2.0**-20), 2.0**-21])
    values = {"logprobs": logprobs, "old": old, "advantages": logprobs, "weights": logprobs, "entropy": logprobs}
    _, _, sums = compute(PLAIN, **values, reference=None)
    assert sums.mismatch_kl == pytest.approx((2 * 2.0**-40 + 2.0**-42) / 2, rel=1e-5)


def compute_token(objective: LossSettings, logprob: float, at: dict[str, float]) -> float:
    """Return the loss of one token in plain floats. The importance weight does not depend on `logprob`."""
    if not objective.is_decoupled:
        ratio, importance = math.exp(logprob - at["old"]), 1.0
    else:
        ratio = math.exp(logprob - at["proximal"])
        importance = min(math.exp(at["proximal"] - at["old"]), objective.importance_sampling_clip_max)
    held = max(1 - objective.epsilon, min(1 + objective.epsilon, ratio))
    gain = importance * min(min(ratio, objective.delta or math.inf) * at["advantages"], held * at["advantages"])
    d = at["reference"] - logprob
    kl = importance * math.exp(logprob - at["proximal" if objective.is_decoupled else "old"])
    kl = (math.exp(d) - d - 1) * (kl if objective.kl_estimator == "k3_corrected" else 1)
    return -at["weights"] * (gain - objective.beta * kl + objective.entropy_coef * at["entropy"])


@given(st.integers(0, 2**32), st.sampled_from(["token_truncate", "none"]), st.sampled_from(["k3_corrected", "k3"]))
def test_compute_loss__any_tokens__equals_plain_floats_and_their_differences(
    seed: int, mode: ImportanceMode, estimator: KlEstimator
) -> None:
    rng = random.Random(seed)
    objective = LossSettings(
        importance_sampling_mode=mode,
        importance_sampling_clip_max=3.0,
        beta=0.05,
        kl_estimator=estimator,
        entropy_coef=0.01,
    )
    names = ("old", "proximal", "advantages", "weights", "entropy", "reference")
    tokens = [{name: rng.uniform(-3, 0) for name in names} | {"advantages": rng.gauss(0, 2)} for _ in range(12)]
    logprobs = [rng.uniform(-3, 0) for _ in tokens]
    columns = {name: tensor(*(token[name] for token in tokens)) for name in names}
    columns["segments"] = torch.arange(len(tokens)) // 4
    loss, slope, _ = compute(objective, logprobs=tensor(*logprobs), **columns)
    expected = [compute_token(objective, logprob, at) for logprob, at in zip(logprobs, tokens, strict=True)]
    assert loss == pytest.approx(sum(expected), rel=1e-9, abs=1e-9)
    for i, (logprob, at) in enumerate(zip(logprobs, tokens, strict=True)):
        up, down = (compute_token(objective, logprob + step, at) for step in (1e-6, -1e-6))
        # Where clipping begins or ends within the step, the slope is one of the two on its sides, or between them.
        low, high = sorted([(up - expected[i]) / 1e-6, (expected[i] - down) / 1e-6])
        tolerance = 1e-5 * max(abs(low), abs(high)) + 2e-6
        assert low - tolerance <= slope[i].item() <= high + tolerance


def test_compute_loss__kl_coefficient__adds_value_and_gradient() -> None:
    plain, slope, _ = compute(PLAIN)
    loss, moved, sums = compute(change(PLAIN, beta=0.1, kl_estimator="k3"))
    by_hand = [0.0, math.exp(-0.5) + 0.5 - 1, math.e - 1 - 1]
    assert loss - plain == pytest.approx(0.1 * (0.25 * by_hand[1] + 0.5 * by_hand[2]))
    assert (moved - slope).tolist() == pytest.approx([0, 0.025 * (1 - math.exp(-0.5)), 0.05 * (1 - math.e)])
    assert sums.kl == pytest.approx(sum(by_hand))


def test_compute_loss__entropy_coefficient__rewards_entropy() -> None:
    plain, _, _ = compute(PLAIN)
    loss, _, _ = compute(change(PLAIN, entropy_coef=0.1))
    assert loss - plain == pytest.approx(-0.1 * (0.25 + 0.5 + 1.5))


@given(st.lists(st.tuples(st.floats(-5, 0), st.floats(-5, 0), st.floats(-3, 3)), min_size=1, max_size=20))
def test_compute_loss__any_split_and_order__adds_up(tokens: list[tuple[float, float, float]]) -> None:
    columns = [torch.tensor(column, dtype=torch.float64) for column in zip(*tokens, strict=True)]
    weights, entropy = torch.full_like(columns[0], 0.1), torch.zeros_like(columns[0])

    def lose(chosen: list[int]) -> float:
        logprobs, old, advantages = (column[chosen] for column in columns)
        parts = {"logprobs": logprobs, "old": old, "advantages": advantages}
        loss, _ = compute_loss(
            **parts,
            proximal=None,
            weights=weights[chosen],
            entropy=entropy[chosen],
            reference=None,
            settings=PLAIN,
            segments=torch.arange(len(chosen)),
        )
        return loss.item()

    n = len(tokens)
    whole = lose(list(range(n)))
    assert lose(list(range(n))[::-1]) == pytest.approx(whole)
    assert lose(list(range(0, n, 2))) + lose(list(range(1, n, 2))) == pytest.approx(whole)
