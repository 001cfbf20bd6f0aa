"""Masters, moments and activations in main memory give the same policies as on the device."""

import weakref
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from covey.model.policy_files import load_model
from covey.model.tiny import tiny_folder
from tests.fakes.samples import DECOUPLED, OPTIMISER, SHAPE, build_batch, build_learner, build_samples, forget_old
from trainer.algorithm.forward import recompute_activations, share_samples
from trainer.algorithm.learner import Learner
from trainer.algorithm.lora import add_adapters, fill_adapters
from trainer.algorithm.offload import HostMasters, offload_activations
from trainer.factories import build_learner as build_from_settings

pytestmark = pytest.mark.unit


def build_base(*, is_tied: bool, is_adapted: bool, dtype: torch.dtype) -> PreTrainedModel:
    if is_tied:
        model = load_model(tiny_folder(), "float32")
    else:
        torch.manual_seed(0)
        config = AutoConfig.from_pretrained(tiny_folder(), tie_word_embeddings=False)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    if is_adapted:
        add_adapters(model, rank=4, alpha=16.0, targets=(), dtype=dtype)
        fill_adapters(model, 0)
    return model


def learn(learner: Learner) -> tuple[list[Any], dict[str, Tensor]]:
    """Run a step of two updates, and return its metrics and the masters and moments after it."""
    metrics = learner.learn([forget_old(build_batch(build_samples(9, seed))) for seed in (0, 1)])
    assert all(each.grad is None for each in learner.model.parameters())
    return metrics, learner.get_masters() | learner.get_optimizer_tensors()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("is_tied", "is_adapted"), [(True, False), (False, False), (True, True)])
def test_learn__everything_offloaded__changes_no_bit(is_tied: bool, is_adapted: bool, dtype: str) -> None:
    base = build_base(is_tied=is_tied, is_adapted=is_adapted, dtype=getattr(torch, dtype))
    shape = replace(SHAPE, compute_dtype=dtype, micro_batch_size=1)
    assert len(share_samples(base, build_samples(9), shape)) > 2
    plain = build_learner(base, objective=DECOUPLED, shape=shape)
    lean = build_learner(
        base,
        objective=DECOUPLED,
        optimiser=replace(OPTIMISER, offload=True),
        shape=replace(shape, activation_offload=True),
    )
    (metrics, expected), (ours, found) = learn(plain), learn(lean)
    assert ours == metrics
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


def test_upload__other_dtype__gradients_are_summed_in_float32() -> None:
    model = torch.nn.Linear(2, 1, bias=False)
    masters = HostMasters(model, torch.device("cpu"))
    copy = masters.upload(model.weight, torch.bfloat16)
    assert copy.dtype is torch.bfloat16
    for factor in (1.0, 2**-10, 2**-10):  # in bfloat16 the small ones would be lost
        torch.autograd.backward((copy * factor).sum())
    masters.collect([model.weight])
    assert model.weight.grad is not None
    assert model.weight.grad.dtype is torch.float32
    assert model.weight.grad.tolist() == [[1 + 2**-9] * 2]
    masters.collect([model.weight])
    assert model.weight.grad is None


@pytest.mark.parametrize("is_lean", [False, True])
@pytest.mark.parametrize("is_offloaded", [False, True])
def test_offload_activations__forward_pass__frees_the_activations_and_copies_no_weight(
    is_offloaded: bool, is_lean: bool
) -> None:
    model, made = load_model(tiny_folder(), "float32"), list[weakref.ref[Tensor]]()
    if is_lean:
        recompute_activations(model)

    def remember(_: object, __: object, output: Tensor) -> None:
        made.append(weakref.ref(output))

    model.get_submodule("model.layers.0").register_forward_hook(remember)
    model.get_submodule("model.layers.1.mlp.act_fn").register_forward_hook(remember)
    with (
        offload_activations(model) if is_offloaded else nullcontext(),
        patch.object(torch, "empty", wraps=torch.empty) as empty,
    ):
        states = model.base_model(input_ids=torch.randint(0, 259, (1, 64)), use_cache=False).last_hidden_state
    shapes = {tuple(call.args[0]) for call in empty.call_args_list if call.args}
    weights = {tuple(each.shape) for each in model.parameters()}
    assert not shapes & weights
    assert ((1, 64, 96) in shapes) is is_offloaded
    layer, inner = (each() is not None for each in made[:2])
    assert layer is not is_offloaded
    assert inner is not (is_offloaded or is_lean)
    torch.autograd.backward(states.sum())


@pytest.mark.parametrize("is_set", [True, False])
def test_build_learner__offload_settings__are_applied(build_harness: Callable[..., Any], is_set: bool) -> None:
    harness = build_harness(model={"optimizer_offload": is_set, "activation_offload": is_set}, threads=1)
    learner, _ = build_from_settings(harness.config, harness.params)
    assert learner._shape.activation_offload is is_set
    assert (learner._masters is not None) is is_set
