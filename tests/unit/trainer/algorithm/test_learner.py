"""Updates against an unpacked implementation, one sample at a time, and against torch's own optimizer."""

import copy
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from covey.engines.base import ReplayRequest
from covey.engines.hf.engine import HuggingFaceEngine
from covey.errors import OperatorError
from covey.model.policy_files import load_model
from covey.model.tiny import tiny_folder
from tests.fakes.samples import (
    DECOUPLED,
    OPTIMISER,
    REGULARISED,
    SHAPE,
    TWO_SIDED,
    build_batch,
    build_learner,
    build_samples,
)
from trainer.algorithm.forward import PackingConfig
from trainer.algorithm.logprobs import Recomputer
from trainer.algorithm.loss_settings import LossSettings
from trainer.data.samples import Batch

pytestmark = pytest.mark.unit


@pytest.fixture(scope="module")
def base() -> PreTrainedModel:
    return load_model(tiny_folder(), "float32")


def compute_unpacked(
    model: PreTrainedModel, batch: Batch, objective: LossSettings, temperature: float = 1.0
) -> tuple[float, dict[str, Any]]:
    """Compute loss and statistics token by token, as the formulas are written. Gradients are left in `model`."""
    total = torch.zeros(())
    clipped = ratios = entropies = 0.0
    gaps: list[float] = []
    for sample, weight in zip(batch.samples, batch.weights, strict=True):
        ids = torch.tensor([[*sample.prompt, *sample.tokens]])
        logprobs = torch.log_softmax(model(input_ids=ids).logits[0] / temperature, dim=-1)
        for k, token in enumerate(sample.tokens):
            row = logprobs[len(sample.prompt) + k - 1]
            ratio = torch.exp(row[token] - sample.old[k])  # type: ignore[index]
            drift, importance = ratio.item(), 1.0
            gaps.append(row[token].item() - sample.old[k])  # type: ignore[index]
            if objective.is_decoupled:
                ratio = torch.exp(row[token] - sample.proximal[k])  # type: ignore[index]
                importance = min(math.exp(sample.proximal[k] - sample.old[k]), objective.importance_sampling_clip_max)  # type: ignore[index]
            advantage = sample.advantage * importance
            sides = (min(ratio, torch.tensor(4.0)) * advantage, ratio.clamp(0.8, 1.2) * advantage)
            d = sample.reference[k] - row[token]  # type: ignore[index]
            entropy = -(row.exp() * row).sum()
            kl = importance * ratio * (torch.exp(d) - d - 1)
            total = total - weight * (min(sides) - objective.beta * kl + objective.entropy_coef * entropy)
            at = ratio.item()
            is_clipped = at > 1.2 if sample.advantage > 0 else at < 0.8 or at > 4
            clipped += is_clipped or importance == objective.importance_sampling_clip_max
            ratios, entropies = ratios + drift, entropies + entropy.item()
    torch.autograd.backward(total)
    n = len(gaps)
    divergences = [math.exp(gap) - gap - 1 for gap in gaps]
    statistics = {
        "clip_ratio": clipped / n, "ratio_mean": ratios / n, "entropy": entropies / n,
        "outside_clip": sum(abs(math.exp(gap) - 1) > 0.2 for gap in gaps) / n, "mismatch_kl": sum(divergences) / n,
        "mismatch_kl_max": max(divergences),
    }  # fmt: skip
    return total.item(), statistics


@pytest.mark.parametrize("temperature", [1.0, 1.5])
@pytest.mark.parametrize("objective", [TWO_SIDED, REGULARISED, DECOUPLED])
def test_update__packed_rows__loss_gradient_and_statistics_equal_those_of_single_samples(
    base: PreTrainedModel, objective: LossSettings, temperature: float
) -> None:
    batch, alone = build_batch(build_samples()), copy.deepcopy(base)
    loss, statistics = compute_unpacked(alone, batch, objective, temperature)
    learner = build_learner(base, objective=objective, shape=replace(SHAPE, temperature=temperature))
    found = learner.update(batch)
    assert found.loss == pytest.approx(loss, rel=1e-4)
    for name, value in statistics.items():
        assert getattr(found, name) == pytest.approx(value, rel=1e-4)
    assert 0.05 < found.clip_ratio < 0.95
    for (name, ours), (_, theirs) in zip(learner.model.named_parameters(), alone.named_parameters(), strict=True):
        assert theirs.grad is not None
        size = float(theirs.grad.abs().max())
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-3, atol=1e-5 * size, msg=name)
    norm = math.sqrt(sum(float(p.grad.square().sum()) for p in alone.parameters() if p.grad is not None))
    assert found.gradient_norm == pytest.approx(norm, rel=1e-4)


@pytest.mark.parametrize(
    "shape",
    [
        PackingConfig(seq_len=1, micro_batch_size=1, compute_dtype="float32"),  # every sample alone
        PackingConfig(seq_len=1, micro_batch_size=99, compute_dtype="float32"),  # padded
        PackingConfig(seq_len=100, micro_batch_size=2, compute_dtype="float32"),
        PackingConfig(seq_len=999, micro_batch_size=1, compute_dtype="float32"),  # all in one row
    ],
)
def test_update__any_packing_and_order__teaches_the_same(base: PreTrainedModel, shape: PackingConfig) -> None:
    samples = build_samples()
    first, second = build_learner(base), build_learner(base, shape=shape)
    loss = first.update(build_batch(samples)).loss
    assert second.update(build_batch(samples[::-1])).loss == pytest.approx(loss, rel=1e-4)
    for ours, theirs in zip(first.model.parameters(), second.model.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=0, atol=1e-6)


def test_learn__later_update_without_a_live_sample__is_left_out(base: PreTrainedModel) -> None:
    learner = build_learner(base, objective=DECOUPLED)
    dead = Batch(samples=(), weights=(), tokens=9)
    assert [each.trained_tokens > 0 for each in learner.learn([build_batch(build_samples()), dead])] == [True, False]
    assert learner.updates == 1
    assert learner.learn([]) == []


def test_learn__after_a_step__gradients_are_freed(base: PreTrainedModel) -> None:
    """Recomputation, evaluation and export between two steps can use the 4 bytes per weight."""
    learner = build_learner(base, objective=DECOUPLED)
    (found,) = learner.learn([build_batch(build_samples())])
    assert found.gradient_norm > 0
    assert [name for name, each in learner.model.named_parameters() if each.grad is not None] == []


def test_update__masters__move_as_adamw_by_hand(base: PreTrainedModel) -> None:
    learner = build_learner(base)
    before = copy.deepcopy(dict(learner.model.named_parameters()))
    learner.update(build_batch(build_samples()))
    for name, after in learner.model.named_parameters():
        grad = after.grad
        assert grad is not None
        # In the first step of AdamW the unbiased moments are g and g^2, so it moves by lr * sign(g) after the decay.
        expected = before[name] * (1 - 1e-3 * 0.1) - 1e-3 * grad / (grad.abs() + 1e-8)
        torch.testing.assert_close(after.detach(), expected.detach(), rtol=1e-4, atol=1e-6)


def test_update__large_gradient__is_clipped_and_reported_unclipped(base: PreTrainedModel) -> None:
    free, tight = build_learner(base), build_learner(base, optimiser=replace(OPTIMISER, clip=0.01))
    batch = build_batch(build_samples())
    norm = free.update(batch).gradient_norm
    assert tight.update(batch).gradient_norm == norm > 0.01
    left = math.sqrt(sum(float(p.grad.square().sum()) for p in tight.model.parameters() if p.grad is not None))
    assert left == pytest.approx(0.01, rel=1e-3)


def test_get_rate__warm_up_of_four__rises_linearly_then_stays() -> None:
    rates = [replace(OPTIMISER, learning_rate=8.0, warm_up=4).get_rate(update) for update in range(6)]
    assert rates == [2, 4, 6, 8, 8, 8]
    assert OPTIMISER.get_rate(0) == 1e-3


def test_update__warm_up__is_what_the_optimizer_uses(base: PreTrainedModel) -> None:
    learner = build_learner(base, optimiser=replace(OPTIMISER, warm_up=4, weight_decay=0.0))
    before = learner.model.get_input_embeddings().weight.detach().clone()
    metrics = learner.update(build_batch(build_samples()))
    moved = (learner.model.get_input_embeddings().weight.detach() - before).abs().max().item()
    assert metrics.learning_rate == 2.5e-4
    assert moved == pytest.approx(2.5e-4, rel=1e-2)


def test_update__no_sample_alive__changes_nothing(base: PreTrainedModel) -> None:
    learner = build_learner(base)
    learner.update(build_batch(build_samples()))
    before = copy.deepcopy(learner.model.state_dict())
    metrics = learner.update(Batch(samples=(), weights=(), tokens=40))
    assert (metrics.loss, metrics.gradient_norm, metrics.tokens, metrics.trained_tokens) == (0, 0, 40, 0)
    assert learner.updates == 1
    assert all(torch.equal(before[name], tensor) for name, tensor in learner.model.state_dict().items())


@pytest.mark.parametrize("advantage", [float("nan"), float("inf")])
def test_update__nan_or_inf_gradient__stops_before_the_step(base: PreTrainedModel, advantage: float) -> None:
    learner = build_learner(base)
    sample = replace(build_samples(1)[0], advantage=advantage)
    with pytest.raises(OperatorError, match="diverged"):
        learner.update(build_batch([sample]))
    assert all(bool(torch.isfinite(p).all()) for p in learner.model.parameters())
    assert learner.updates == 0


def test_update__same_batches_twice__equal_bits(base: PreTrainedModel) -> None:
    learners = [build_learner(base), build_learner(base)]
    for learner in learners:
        for seed in range(3):
            learner.update(build_batch(build_samples(seed=seed)))
    first, second = (learner.model.state_dict() for learner in learners)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_restore__after_one_of_three_updates__continues_with_equal_bits(base: PreTrainedModel) -> None:
    batches = [build_batch(build_samples(seed=seed)) for seed in range(3)]
    straight = build_learner(base, optimiser=replace(OPTIMISER, warm_up=3))
    straight.update(batches[0])
    resumed = build_learner(straight.model, optimiser=replace(OPTIMISER, warm_up=3))
    resumed.restore({name: t.clone() for name, t in straight.get_optimizer_tensors().items()}, straight.updates)
    for batch in batches[1:]:
        assert straight.update(batch) == resumed.update(batch)
    first, second = straight.model.state_dict(), resumed.model.state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_get_optimizer_tensors__fresh_and_used__one_pair_per_parameter(base: PreTrainedModel) -> None:
    learner = build_learner(base)
    assert learner.get_optimizer_tensors() == {}
    learner.update(build_batch(build_samples(2)))
    names = {f"{name}.{m}" for name, _ in base.named_parameters() for m in ("exp_avg", "exp_avg_sq")}
    assert set(learner.get_optimizer_tensors()) == names


def test_compute__ragged_samples__are_the_engines_log_probabilities_in_order(base: PreTrainedModel) -> None:
    engine = HuggingFaceEngine()
    engine.load_policy(tiny_folder(), 0)
    samples = build_samples(12)
    replays = engine.replay([ReplayRequest(prompt=s.prompt, tokens=s.tokens, seed=0) for s in samples], temperature=1.0)
    scratch = copy.deepcopy(base)
    with torch.no_grad():
        for parameter in scratch.parameters():
            parameter.fill_(7.0)  # previous weights of the scratch model must not matter
    found = Recomputer(scratch, SHAPE).compute(tiny_folder(), samples)
    for ours, theirs in zip(found, replays, strict=True):
        assert ours == pytest.approx(theirs.logprobs.tolist(), abs=2e-5)


def test_compute__bfloat16__is_near_float32_and_not_equal() -> None:
    samples = build_samples(6)
    exact = Recomputer(load_model(tiny_folder(), "float32"), SHAPE).compute(tiny_folder(), samples)
    shape = replace(SHAPE, compute_dtype="bfloat16")
    rough = Recomputer(load_model(tiny_folder(), "bfloat16"), shape).compute(tiny_folder(), samples)
    gaps = [abs(a - b) for x, y in zip(exact, rough, strict=True) for a, b in zip(x, y, strict=True)]
    assert 0 < sum(gaps) / len(gaps) < 0.15


def test_update__bfloat16_arithmetic__keeps_float32_masters(base: PreTrainedModel) -> None:
    exact, rough = build_learner(base), build_learner(base, shape=replace(SHAPE, compute_dtype="bfloat16"))
    batch = build_batch(build_samples())
    assert rough.update(batch).ratio_mean == pytest.approx(exact.update(batch).ratio_mean, rel=0.2)
    assert {p.dtype for p in rough.model.parameters()} == {torch.float32}
