"""Later updates of a step, and samples without `old`, use the policy of the masters with which the step starts."""

import copy
from dataclasses import replace

import pytest
import torch
from transformers import PreTrainedModel

from covey.model.policy_files import load_model
from covey.model.tiny import tiny_folder
from tests.fakes.samples import (
    SHAPE,
    TWO_SIDED,
    build_batch,
    build_learner,
    build_samples,
    forget_old,
    give_proximal,
)
from trainer.algorithm.forward import Predictor, compute_logprobs
from trainer.algorithm.loss_settings import LossSettings
from trainer.data.samples import Batch, Sample

pytestmark = pytest.mark.unit


@pytest.fixture(scope="module")
def base() -> PreTrainedModel:
    return load_model(tiny_folder(), "float32")


def test_learn__two_updates__the_second_looks_back_to_the_starting_policy(base: PreTrainedModel) -> None:
    objective = LossSettings(importance_sampling_clip_max=1e9)
    first, second = (give_proximal(build_batch(build_samples(seed=seed)), None) for seed in (0, 1))
    learner, by_hand = build_learner(base, objective=objective), build_learner(base, objective=objective)
    starting = compute_logprobs(Predictor(base, SHAPE), second.samples)
    by_hand.update(first)
    found, expected = learner.learn([first, second]), by_hand.update(give_proximal(second, starting))
    assert found[1] == expected
    # Nothing is clipped in the first update; after it the policy is far enough away.
    assert found[0].clip_ratio == 0 < found[1].clip_ratio


def test_learn__first_update__equals_one_with_the_starting_policy_computed_beforehand(base: PreTrainedModel) -> None:
    objective, batch = LossSettings(), give_proximal(build_batch(build_samples()), None)
    first, second = build_learner(base, objective=objective), build_learner(base, objective=objective)
    second.update(give_proximal(batch, compute_logprobs(Predictor(base, SHAPE), batch.samples)))
    first.learn([batch])
    for ours, theirs in zip(first.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("objective", [TWO_SIDED, LossSettings()], ids=["two_sided", "decoupled"])
def test_learn__samples_without_old__look_back_to_the_starting_masters(
    base: PreTrainedModel, objective: LossSettings
) -> None:
    base = copy.deepcopy(base)
    with torch.no_grad():
        for parameter in base.parameters():
            parameter.mul_(1 + 2**-12)  # not representable in bfloat16
    batches = [build_batch(build_samples(seed=seed)) for seed in (0, 1)]
    starting = [compute_logprobs(Predictor(base, SHAPE), batch.samples) for batch in batches]
    learner, by_hand = build_learner(base, objective=objective), build_learner(base, objective=objective)
    found = learner.learn([give_proximal(forget_old(batch), None) for batch in batches])
    expected = [by_hand.update(give_old(batch, each)) for batch, each in zip(batches, starting, strict=True)]
    assert found == expected
    assert found[0].ratio_mean == 1
    assert abs(found[1].ratio_mean - 1) > 1e-3
    for ours, theirs in zip(learner.model.parameters(), by_hand.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("temperature", [0.6, 1.5])
def test_learn__temperature__applies_to_all_compared_policies(base: PreTrainedModel, temperature: float) -> None:
    """The samples have log-probabilities of the model itself, from logits divided by hand, so all ratios start at 1."""
    shape = replace(SHAPE, temperature=temperature)
    batches = [forget_old(build_batch(build_samples(seed=seed))) for seed in (0, 1)]
    drawn = [give_old(batch, [read_off(base, each, temperature) for each in batch.samples]) for batch in batches]
    claimed = [give_proximal(batch, None) for batch in drawn]
    objective = LossSettings()
    learner, by_hand = (build_learner(base, objective=objective, shape=shape) for _ in range(2))
    found, expected = learner.learn(claimed), [by_hand.update(batch) for batch in drawn]
    assert found[0].ratio_mean == pytest.approx(1, abs=1e-5)
    assert abs(found[1].ratio_mean - 1) > 1e-3  # the first update has moved it
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours.loss, ours.ratio_mean, ours.gradient_norm) == pytest.approx(
            (theirs.loss, theirs.ratio_mean, theirs.gradient_norm), rel=1e-4, abs=1e-6
        )


@torch.no_grad()
def read_off(model: PreTrainedModel, sample: Sample, temperature: float) -> tuple[float, ...]:
    """Return log p of a sample's completion from the model's own logits."""
    logits = model(input_ids=torch.tensor([[*sample.prompt, *sample.tokens]])).logits[0, len(sample.prompt) - 1 : -1]
    logprobs = torch.log_softmax(logits / temperature, dim=-1)
    return tuple(logprobs.gather(1, torch.tensor(sample.tokens)[:, None])[:, 0].tolist())


def give_old(batch: Batch, values: list[tuple[float, ...]]) -> Batch:
    """Return the batch with `values` as log-probabilities under the policy that sampled and under the starting one."""
    pairs = zip(batch.samples, values, strict=True)
    return replace(batch, samples=tuple(replace(sample, old=each, proximal=each) for sample, each in pairs))
