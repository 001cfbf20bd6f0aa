"""The learner with objectives of whole completions, with masked tokens, with a custom loss and with bounded claims."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from covey.errors import OperatorError
from covey.model.policy_files import load_model
from covey.model.tiny import tiny_folder
from tests.fakes.samples import SHAPE, build_batch, build_learner, build_samples, give_proximal
from trainer.algorithm.forward import Predictor, compute_logprobs
from trainer.algorithm.grpo import LossInputs
from trainer.algorithm.loss_settings import LossSettings
from trainer.data.samples import Batch, Sample

pytestmark = pytest.mark.unit

OBJECTIVES = {
    "gspo": LossSettings(loss_type="grpo", importance_sampling_level="sequence", importance_sampling_mode="none"),
    "sequence_truncate": LossSettings(importance_sampling_mode="sequence_truncate"),
    "dropped_tokens": LossSettings(mask="kpop", mask_threshold=1e-4, kl_tau=1e-3),
    "dropped_completions": LossSettings(loss_type="grpo", mask="geometric", mask_threshold=4.0),
    "dropped_from_constant": LossSettings(loss_type="dr_grpo", mask="geometric", mask_threshold=4.0),
}


@pytest.fixture(scope="module")
def base() -> PreTrainedModel:
    return load_model(tiny_folder(), "float32")


@pytest.mark.parametrize("name", OBJECTIVES)
def test_update__values_of_whole_completions__do_not_depend_on_packing_and_order(
    base: PreTrainedModel, name: str
) -> None:
    """Each sample in a micro-batch of its own, families in several micro-batches, and all samples in one."""
    settings, samples = OBJECTIVES[name], build_samples()
    packed = [
        (build_learner(base, objective=settings, shape=replace(SHAPE, seq_len=n, micro_batch_size=1)), order)
        for n, order in ((1, samples), (60, samples[::-1]), (999, samples[3:] + samples[:3]))
    ]
    (alone, *others), updates = packed, [learner.update(build_batch(order)) for learner, order in packed]
    assert (updates[0].masked > 0) == settings.drops_masked
    assert updates[0].masked < 1
    for (learner, _), found in zip(others, updates[1:], strict=True):
        assert (found.loss, found.masked) == pytest.approx((updates[0].loss, updates[0].masked), rel=1e-4)
        for ours, theirs in zip(learner.model.parameters(), alone[0].model.parameters(), strict=True):
            torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-3, atol=1e-6)


def test_update__all_tokens_masked__has_no_gradient(base: PreTrainedModel) -> None:
    learner = build_learner(base, objective=LossSettings(mask="k3", mask_threshold=1e-9))
    found = learner.update(build_batch(build_samples()))
    assert (found.loss, found.gradient_norm, found.masked) == (0, 0, 1)


def lose_likelihood(inputs: LossInputs) -> Tensor:
    return -inputs.advantages * inputs.logprobs


def test_update__custom_loss__has_its_gradient(base: PreTrainedModel) -> None:
    """The gradient of A log p is that of an unclipped ratio to the policy itself."""
    batch = give_proximal(build_batch(build_samples()), None)
    custom = LossSettings(custom_loss=f"{__name__}:lose_likelihood", delta=None)
    plain = LossSettings(
        loss_type="policy_gradient", importance_sampling_clip_max=1.0, importance_sampling_clip_min=1.0
    )
    ours, theirs = (build_learner(base, objective=each) for each in (custom, plain))
    assert ours.update(batch).loss != pytest.approx(theirs.update(batch).loss)
    for one, other in zip(ours.model.parameters(), theirs.model.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-7)


def test_learner__custom_loss_that_does_not_exist__is_refused_at_the_start(base: PreTrainedModel) -> None:
    with pytest.raises(OperatorError, match=r"bad_settings: .*loss.custom_loss is no_such_package:x"):
        build_learner(base, objective=LossSettings(custom_loss="no_such_package:x"))


def claim(samples: Sequence[Sample], own: Sequence[Sequence[float]], gaps: Sequence[float]) -> Batch:
    """Return a batch whose samples claim values that differ from `own` by a gap each. The first one is audited."""
    changed = [
        replace(sample, old=tuple(value - gap for value in row), proximal=None, audited=i == 0)
        for i, (sample, row, gap) in enumerate(zip(samples, own, gaps, strict=True))
    ]
    return build_batch(changed)


def test_learn__claims__are_bounded_by_those_of_replayed_samples(base: PreTrainedModel) -> None:
    samples = build_samples(4)
    own = compute_logprobs(Predictor(base, SHAPE), samples)
    settings = LossSettings(old_policy="claimed")
    learner, by_hand = build_learner(base, objective=settings), build_learner(base)
    lying, honest = claim(samples, own, [0.25, 0.125, 3.0, -0.2]), claim(samples, own, [0.25, 0.125, 0.0, -0.2])
    (found,) = learner.learn([lying])
    tokens = [len(sample.tokens) for sample in samples]
    assert found.claims_replaced == pytest.approx(tokens[2] / sum(tokens))
    by_hand._objective = settings
    expected = by_hand.update(give_proximal(honest, own))
    assert (found.loss, found.ratio_mean) == pytest.approx((expected.loss, expected.ratio_mean), rel=1e-5)
    for ours, theirs in zip(learner.model.parameters(), by_hand.model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)
