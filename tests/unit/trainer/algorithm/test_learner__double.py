"""The whole path from samples to loss and gradients in float64, so that no difference can be rounding."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from covey.model import policy_files
from covey.model.policy_files import load_model
from covey.model.tiny import tiny_folder
from tests.fakes.samples import DECOUPLED, REGULARISED, SHAPE, TWO_SIDED, build_batch, build_learner, build_samples
from trainer.algorithm import forward
from trainer.algorithm.loss_settings import LossSettings
from trainer.data.samples import Sample

pytestmark = pytest.mark.unit
DOUBLE = replace(SHAPE, compute_dtype="float64")


@pytest.fixture
def base(monkeypatch: pytest.MonkeyPatch) -> PreTrainedModel:
    monkeypatch.setitem(policy_files.DTYPES, "float64", torch.float64)  # type: ignore[arg-type]
    monkeypatch.setitem(forward._SLACK, "float64", forward._SLACK["float32"])
    return load_model(tiny_folder(), "float32").double()


def round_sample(sample: Sample) -> Sample:
    """Round a sample's values so that float32, which rows hold, represents them and their differences exactly."""
    columns = {
        name: tuple(round(value * 1024) / 1024 for value in getattr(sample, name))
        for name in ("old", "proximal", "reference")
    }
    return replace(sample, advantage=round(sample.advantage * 1024) / 1024, **columns)


@torch.no_grad()
def draw_near(sample: Sample, model: PreTrainedModel) -> Sample:
    """Give a sample policies as similar as those of a few steps.

    If they were far apart, e^(log-ratio) would be so large that float32 loses precision.
    """
    logits = model(input_ids=torch.tensor([[*sample.prompt, *sample.tokens]])).logits[0, len(sample.prompt) - 1 : -1]
    own = torch.log_softmax(logits, dim=-1).gather(1, torch.tensor(sample.tokens)[:, None])[:, 0]
    noise = torch.linspace(-0.3, 0.3, len(own))
    columns = {"old": own + noise, "proximal": own + noise / 2, "reference": own - noise}
    return round_sample(replace(sample, **{name: tuple(each.tolist()) for name, each in columns.items()}))


def compute_dense(model: PreTrainedModel, sample: Sample, weight: float, objective: LossSettings) -> Tensor:
    """Return the loss of one sample from its logits, as the formulas are written."""
    ids = torch.tensor([[*sample.prompt, *sample.tokens]])
    logits = model(input_ids=ids).logits[0, len(sample.prompt) - 1 : -1]
    assert logits.dtype is torch.float64
    every = torch.log_softmax(logits, dim=-1)
    logprobs = every[torch.arange(len(sample.tokens)), list(sample.tokens)]
    old, proximal, reference = (
        torch.tensor(each, dtype=torch.float64) for each in (sample.old, sample.proximal, sample.reference)
    )
    start, importance = old, torch.ones_like(old)
    if objective.is_decoupled:
        start, importance = proximal, torch.exp(proximal - old).clamp(max=objective.importance_sampling_clip_max)
    ratio, advantage = torch.exp(logprobs - start), sample.advantage
    held = ratio.clamp(1 - objective.epsilon, 1 + objective.epsilon)
    gain = importance * torch.minimum(ratio.clamp(max=objective.delta) * advantage, held * advantage)
    kl = importance * ratio * (torch.exp(reference - logprobs) - (reference - logprobs) - 1)
    entropy = -(every.exp() * every).sum(dim=-1)
    return -weight * (gain - objective.beta * kl + objective.entropy_coef * entropy).sum()


@pytest.mark.parametrize("objective", [TWO_SIDED, REGULARISED, DECOUPLED], ids=["plain", "regularised", "decoupled"])
def test_update__float64__loss_and_gradients_equal_those_of_dense_logits_one_sample_at_a_time(
    base: PreTrainedModel, objective: LossSettings
) -> None:
    samples, alone = [round_sample(each) for each in build_samples()], copy.deepcopy(base)
    batch = replace(build_batch(samples), weights=(1 / 128,) * len(samples))
    assert len({sample.prompt for sample in samples}) < len(samples)  # siblings share a prefix
    pairs = zip(batch.samples, batch.weights, strict=True)
    loss = torch.stack([compute_dense(alone, sample, weight, objective) for sample, weight in pairs]).sum()
    torch.autograd.backward(loss)
    learner = build_learner(base, objective=objective, shape=DOUBLE)
    found = learner.update(batch)
    assert found.loss == pytest.approx(loss.item(), rel=1e-8)
    for (name, ours), (_, theirs) in zip(learner.model.named_parameters(), alone.named_parameters(), strict=True):
        assert ours.grad is not None
        assert theirs.grad is not None
        assert ours.grad.dtype is torch.float64
        size = float(theirs.grad.abs().max())
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=0, atol=1e-6 * size, msg=name)


@pytest.mark.parametrize("objective", [TWO_SIDED, REGULARISED, DECOUPLED], ids=["plain", "regularised", "decoupled"])
def test_update__float32__loss_and_gradients_are_within_a_millionth_of_float64(
    base: PreTrainedModel, objective: LossSettings
) -> None:
    batch = build_batch([draw_near(each, base) for each in build_samples()])
    wide = build_learner(base, objective=objective, shape=DOUBLE)
    narrow = build_learner(load_model(tiny_folder(), "float32"), objective=objective)
    exact = wide.update(batch)
    assert narrow.update(batch).loss == pytest.approx(exact.loss, abs=1e-6)
    pairs = zip(narrow.model.named_parameters(), wide.model.named_parameters(), strict=True)
    for (name, ours), (_, theirs) in pairs:
        assert ours.grad is not None
        assert theirs.grad is not None
        torch.testing.assert_close(ours.grad.double(), theirs.grad, rtol=0, atol=1e-6 * exact.gradient_norm, msg=name)
