"""Weights and masks by hand and as properties, and that extreme log-probabilities give no NaN."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from trainer.algorithm.grpo import LossInputs, compute_loss
from trainer.algorithm.importance import (
    Importance,
    compute_binary_kl,
    compute_importance,
    compute_ratio,
    compute_sequence_ratio,
    sum_segments,
)
from trainer.algorithm.loss_settings import LossSettings

pytestmark = pytest.mark.unit

MODES = ("none", "token_truncate", "token_mask", "sequence_truncate", "sequence_mask", "icepop")
MASKS: dict[str, dict[str, Any]] = {
    "none": {}, "ipo": {"mask_threshold": 0.1}, "dppo": {"mask_threshold": 0.1}, "kpop": {"mask_threshold": 0.1},
    "opsm": {"mask_threshold": 0.1}, "geometric": {"mask_threshold": 1.5}, "k3": {"mask_threshold": 0.1},
}  # fmt: skip
PAIRS = [(mode, mask) for mode in MODES for mask in MASKS]


def tensor(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def number(completions: list[int]) -> Tensor:
    """Number completions from 0."""
    return torch.unique(torch.tensor(completions), return_inverse=True)[1]


def build(mode: str = "none", mask: str = "none", **values: Any) -> LossSettings:
    bounds: dict[str, Any] = {"importance_sampling_clip_max": 2.0, "importance_sampling_clip_min": 0.5}
    fields = bounds | MASKS[mask] | {"importance_sampling_mode": mode, "mask": mask} | values
    return LossSettings.model_validate(fields)


def correct(settings: LossSettings, trainer: Tensor, sampler: Tensor, **changes: Tensor) -> Importance:
    values = {
        "current": trainer, "start": trainer, "sampler": sampler, "advantages": torch.ones_like(trainer),
        "segments": torch.zeros(len(trainer), dtype=torch.int64),
    } | changes  # fmt: skip
    return compute_importance(**values, settings=settings)  # type: ignore[arg-type]


def logs(*ratios: float) -> Tensor:
    return tensor(*map(math.log, ratios))


def test_sum_segments__two_completions__gives_each_token_its_own_sum() -> None:
    segments = torch.tensor([0, 0, 2, 2, 2])
    assert sum_segments(tensor(1, 2, 10, 20, 30), segments).tolist() == [3, 3, 60, 60, 60]


def test_compute_sequence_ratio__ratios_2_and_8__is_their_geometric_mean() -> None:
    found = compute_sequence_ratio(logs(2, 8, 5), tensor(0, 0, 0), torch.tensor([0, 0, 1]))
    assert found.tolist() == pytest.approx([4, 4, 5])


@pytest.mark.parametrize(
    ("mode", "expected"),
    [  # ratios 4, 1/2 and 1/8, whose product is 1/4
        ("none", [1, 1, 1]),
        ("token_truncate", [2, 0.5, 0.4]),
        ("token_mask", [0, 0.5, 0]),
        ("icepop", [0, 0.5, 0]),
        ("sequence_truncate", [0.4, 0.4, 0.4]),
        ("sequence_mask", [0, 0, 0]),
    ],
)
def test_compute_importance__each_mode__is_the_weight_by_hand(mode: str, expected: list[float]) -> None:
    found = correct(build(mode, importance_sampling_clip_min=0.4), logs(4, 0.5, 0.125), tensor(0, 0, 0))
    assert found.weights.tolist() == pytest.approx(expected)
    assert found.kept.tolist() == [weight > 0 for weight in expected]
    assert not found.weights.requires_grad


def test_compute_importance__ipo_and_dppo__compare_probabilities() -> None:
    trainer, sampler = logs(0.5, 0.5, 0.5, 0.5), logs(0.3, 0.3, 0.7, 0.7)
    advantages = tensor(1, -1, 1, -1)
    assert correct(build(mask="ipo"), trainer, sampler).kept.tolist() == [False] * 4
    assert correct(build(mask="ipo"), trainer, logs(0.41, 0.5, 0.59, 0.61)).kept.tolist() == [True, True, True, False]
    # a good token may fall and a bad one may rise
    assert correct(build(mask="dppo"), trainer, sampler, advantages=advantages).kept.tolist() == [
        False, True, True, False,
    ]  # fmt: skip


def test_compute_binary_kl__09_to_05__is_the_divergence_by_hand() -> None:
    found = compute_binary_kl(tensor(0.9), tensor(0.5)).item()
    assert found == pytest.approx(0.9 * math.log(1.8) + 0.1 * math.log(0.2))


def test_compute_importance__kpop__masks_where_either_direction_is_too_far() -> None:
    # forward and backward divergences: 0.368 and 0.511; 0.020 and 0.020; and of rare tokens 0.0066 and 0.0014
    found = correct(build(mask="kpop", mask_threshold=0.4), logs(0.9, 0.6, 0.01), logs(0.5, 0.5, 0.001))
    assert found.kept.tolist() == [False, True, True]


def test_compute_importance__opsm__masks_bad_completions_far_from_the_policy() -> None:
    segments, sampler = torch.tensor([0, 0, 1, 1]), tensor(0.0, 0.3, 0.3, 0.0)
    for advantages, expected in ((-1.0, [False] * 4), (1.0, [True] * 4), (0.0, [True] * 4)):
        found = correct(
            build(mask="opsm"), torch.zeros_like(sampler), sampler, segments=segments,
            advantages=torch.full_like(sampler, advantages),
        )  # fmt: skip
        assert found.kept.tolist() == expected
    near = correct(build(mask="opsm", mask_threshold=0.2), torch.zeros_like(sampler), sampler, advantages=-sampler)
    assert near.kept.tolist() == [True] * 4


def test_compute_importance__geometric_and_k3__judge_whole_completions() -> None:
    trainer, segments = logs(4, 0.25, 2, 2), torch.tensor([0, 0, 1, 1])
    zero = torch.zeros_like(trainer)
    # geometric means 1 and 2; means of r - log r - 1: (1.61 + 0.64) / 2 = 1.125, and 0.307
    assert correct(build(mask="geometric"), trainer, zero, segments=segments).kept.tolist() == [
        True,
        True,
        False,
        False,
    ]
    found = correct(build(mask="k3", mask_threshold=0.31), trainer, zero, segments=segments)
    assert found.kept.tolist() == [False, False, True, True]


def test_compute_importance__masks_of_a_decoupled_objective__compare_the_start_of_the_step() -> None:
    start, current, sampler = logs(0.5), logs(0.9), logs(0.5)
    assert correct(build("token_truncate", "ipo"), start, sampler, current=current).kept.tolist() == [True]
    assert correct(build("none", "ipo"), start, sampler, current=current).kept.tolist() == [False]
    # OPSM always compares the policy in training
    bad = {"current": logs(0.4), "advantages": tensor(-1)}
    assert correct(build("token_truncate", "opsm"), start, sampler, **bad).kept.tolist() == [False]


@settings(max_examples=40)
@given(st.sampled_from(PAIRS), st.lists(st.tuples(st.floats(-9, 0), st.booleans()), min_size=1, max_size=12))
def test_compute_importance__equal_policies__change_nothing(
    pair: tuple[str, str], tokens: list[tuple[float, bool]]
) -> None:
    same = tensor(*(value for value, _ in tokens))
    segments = number([int(flag) for _, flag in tokens])
    found = correct(build(*pair), same, same, segments=segments, advantages=torch.full_like(same, -1.0))
    assert found.weights.tolist() == [1.0] * len(tokens)
    assert bool(found.kept.all())


@settings(max_examples=40)
@given(
    st.sampled_from(PAIRS),
    st.lists(st.tuples(st.floats(-9, 0), st.floats(-9, 0), st.integers(0, 2)), min_size=2, max_size=12),
    st.randoms(use_true_random=False),
)
def test_compute_importance__any_order_of_tokens__gives_each_the_same(
    pair: tuple[str, str], tokens: list[tuple[float, float, int]], random: Any
) -> None:
    order = list(range(len(tokens)))
    random.shuffle(order)
    trainer, sampler = (tensor(*(token[k] for token in tokens)) for k in (0, 1))
    segments = number([token[2] for token in tokens])
    signs = torch.where(segments == 1, -1.0, 1.0).double()
    plain = correct(build(*pair), trainer, sampler, segments=segments, advantages=signs)
    moved = correct(build(*pair), trainer[order], sampler[order], segments=segments[order], advantages=signs[order])
    torch.testing.assert_close(moved.weights, plain.weights[order])
    assert pair[1] in ("geometric", "k3", "opsm") or torch.equal(moved.kept, plain.kept[order])


EXTREME = (-math.inf, -1e4, -100.0, -1.0, 0.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
@pytest.mark.parametrize("loss_type", ["dapo", "grpo", "cispo", "policy_gradient"])
def test_compute_loss__extreme_logprobs__has_a_finite_loss_and_gradient(
    loss_type: str, pair: tuple[str, str], dtype: torch.dtype
) -> None:
    """All combinations of probabilities of 0, e^-10000, e^-100, e^-1 and 1 under all policies: ratios up to e^100."""
    chosen = build(
        *pair, loss_type=loss_type, epsilon_high=5.0, delta=None, beta=0.1, kl_tau=1e-3, masked_tokens="drop",
        importance_sampling_level="sequence" if loss_type == "grpo" else "token",
    )  # fmt: skip
    current, start, sampler, reference = (
        each.to(dtype) for each in torch.cartesian_prod(*[torch.tensor(EXTREME)] * 4).T
    )
    live = current.clone().requires_grad_()
    n = len(live)
    signs = torch.tensor([1.0, -1.0], dtype=dtype).repeat(n)[:n]
    loss, sums = compute_loss(
        logprobs=live, old=sampler, proximal=start, advantages=signs, weights=torch.full_like(live, 1 / n),
        segments=torch.arange(n) // 3, entropy=torch.ones_like(live), reference=reference, settings=chosen,
    )  # fmt: skip
    torch.autograd.backward(loss)
    assert bool(loss.isfinite())
    assert live.grad is not None
    assert bool(live.grad.isfinite().all())
    assert all(math.isfinite(value) for value in (sums.kept_weight, sums.ratio, sums.kl, sums.masked))


def test_compute_ratio__two_probabilities_of_zero__is_one_without_gradient() -> None:
    live = tensor(-math.inf, -math.inf, 0.0).requires_grad_()
    ratio = compute_ratio(live, tensor(-math.inf, 0.0, -math.inf))
    assert ratio.tolist() == pytest.approx([1.0, math.exp(-20), math.exp(20)])
    (slope,) = torch.autograd.grad(ratio.sum(), live)
    assert slope.tolist() == [0, 0, 0]


def lose(settings: LossSettings, custom: Any = None) -> tuple[float, list[float]]:
    live = tensor(-1.0, -0.5, -2.0).requires_grad_()
    loss, sums = compute_loss(
        logprobs=live, old=tensor(-1.0, -1.0, -1.0), proximal=None, advantages=tensor(1.0, -1.0, 2.0),
        weights=tensor(0.25, 0.25, 0.5), segments=torch.tensor([0, 0, 1]), entropy=tensor(1.0, 2.0, 3.0),
        reference=None, settings=settings, custom=custom,
    )  # fmt: skip
    (slope,) = torch.autograd.grad(loss, live)
    factor = sums.weight / sums.kept_weight
    return factor * loss.item(), [factor * value for value in slope.tolist()]


def test_compute_loss__dropped_tokens__leave_the_denominator() -> None:
    # probabilities 0.37, 0.61 and 0.14 against 0.37: the second differs by 0.24, and the third by 0.23
    plain = {"importance_sampling_mode": "none", "loss_type": "policy_gradient", "mask": "ipo", "mask_threshold": 0.235}
    counted, dropped = (LossSettings.model_validate(plain | {"masked_tokens": each}) for each in ("count", "drop"))
    down = math.exp(-1)
    assert lose(counted)[0] == pytest.approx(-(0.25 + 0.5 * 2 * down))
    assert lose(dropped)[0] == pytest.approx(-(0.25 + 0.5 * 2 * down) / 0.75)
    assert lose(dropped)[1] == pytest.approx([-1 / 3, 0, -2 * 0.5 / 0.75 * down])


def test_compute_loss__dropped_tokens_of_a_sequence_mean__leave_that_of_their_completion() -> None:
    fields = {
        "importance_sampling_mode": "none", "mask": "ipo", "mask_threshold": 0.235, "masked_tokens": "drop",
        "loss_type": "grpo", "delta": None,
    }  # fmt: skip
    # weights of two completions are 1/2; the first keeps one token of two, which now has all of it
    loss, _ = lose(LossSettings.model_validate(fields))
    assert loss == pytest.approx(-(0.5 * 1 + 0.5 * 2 * math.exp(-1)))


def test_compute_loss__custom_loss__is_weighted_and_masked() -> None:
    seen: list[LossInputs] = []

    def double(inputs: LossInputs) -> Tensor:
        seen.append(inputs)
        return -2 * inputs.advantages * inputs.logprobs

    settings = LossSettings(importance_sampling_clip_max=1.5, mask="ipo", mask_threshold=0.235)
    loss, slope = lose(settings, double)
    assert loss == pytest.approx(0.25 * 2 * 1.0 + 0.5 * 2 * 2 * 2.0)
    assert slope == pytest.approx([-0.5, 0, -2])
    assert seen[0].importance.tolist() == pytest.approx([1, 1.5, math.exp(-1)])
    assert seen[0].kept.tolist() == [True, False, True]
    assert seen[0].start.tolist() == [-1.0, -0.5, -2.0]
