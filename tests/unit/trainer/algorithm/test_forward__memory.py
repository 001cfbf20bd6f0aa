"""Updates that run out of memory, and activation checkpointing, which saves it."""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from transformers import PreTrainedModel

from covey.errors import OperatorError
from covey.model.policy_files import load_model
from covey.model.tiny import tiny_folder
from tests.fakes.samples import DECOUPLED, SHAPE, build_batch, build_learner, build_samples
from trainer.algorithm.forward import recompute_activations
from trainer.algorithm.logprobs import Recomputer
from trainer.factories import build_learner as build_from_settings

pytestmark = pytest.mark.unit


@pytest.fixture(scope="module")
def base() -> PreTrainedModel:
    return load_model(tiny_folder(), "float32")


@contextmanager
def watch_layers(model: PreTrainedModel, on_call: Callable[[], None]) -> Iterator[None]:
    """Call `on_call` whenever one of a layer's matrices is applied."""
    layer = model.get_submodule("model.layers.0.mlp.gate_proj")
    handle = layer.register_forward_hook(lambda *_: on_call())
    yield
    handle.remove()


def take_too_much() -> None:
    torch.empty(1 << 55)


def raise_as_a_gpu() -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


@pytest.mark.parametrize("run_out", [take_too_much, raise_as_a_gpu])
def test_learn__no_memory__says_what_to_lower_and_no_update_is_counted(base: PreTrainedModel, run_out: Any) -> None:
    learner = build_learner(base)
    found = pytest.raises(
        OperatorError, match=r"trainer_out_of_memory: .*memory.*Lower model.micro_batch_size or model.seq_len"
    )
    with watch_layers(learner.model, run_out), found:
        learner.learn([build_batch(build_samples(3))])
    assert learner.updates == 0
    assert all(torch.equal(a, b) for a, b in zip(learner.model.parameters(), base.parameters(), strict=True))


def test_compute__no_memory__says_what_to_lower(base: PreTrainedModel) -> None:
    scratch = copy.deepcopy(base)
    with watch_layers(scratch, take_too_much), pytest.raises(OperatorError, match="trainer_out_of_memory"):
        Recomputer(scratch, SHAPE).compute(tiny_folder(), build_samples(3))


def test_learn__another_failure__is_not_called_a_lack_of_memory(base: PreTrainedModel) -> None:
    def fail() -> None:
        raise RuntimeError("shapes do not fit")

    learner = build_learner(base)
    with watch_layers(learner.model, fail), pytest.raises(RuntimeError, match="shapes do not fit"):
        learner.learn([build_batch(build_samples(3))])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_recompute_activations__update__gives_the_same_gradients(base: PreTrainedModel, dtype: str) -> None:
    shape, batch = replace(SHAPE, compute_dtype=dtype), build_batch(build_samples())
    kept = build_learner(base, objective=DECOUPLED, shape=shape)
    lean = build_learner(base, objective=DECOUPLED, shape=shape)
    recompute_activations(lean.model)
    assert lean.update(batch) == kept.update(batch)
    for ours, theirs in zip(lean.model.parameters(), kept.model.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=0, atol=1e-6)


def test_recompute_activations__layers__are_computed_twice_and_keep_less(base: PreTrainedModel) -> None:
    def measure(model: PreTrainedModel) -> tuple[int, int]:
        """Return the number of calls of a layer's matrix and the bytes that the forward pass keeps."""
        calls, kept, ids = [], [], torch.randint(0, 259, (4, 64))

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            kept.append(tensor.numel() * tensor.element_size())
            return tensor

        with watch_layers(model, lambda: calls.append(1)):
            with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
                states = model.base_model(input_ids=ids, use_cache=False).last_hidden_state
            forward = sum(kept)
            torch.autograd.backward(states.sum())
        return len(calls), forward

    full, lean = copy.deepcopy(base), copy.deepcopy(base)
    recompute_activations(lean)
    (calls, size), (again, less) = measure(full), measure(lean)
    assert (calls, again) == (1, 2)
    assert less < size / 3


def test_recompute_activations__attention_with_dropout__drops_nothing(base: PreTrainedModel) -> None:
    model = copy.deepcopy(base)
    for module in model.modules():
        if hasattr(module, "attention_dropout"):
            module.attention_dropout = 0.5
    ids = torch.arange(3, 40)[None]
    expected = base(input_ids=ids).logits
    recompute_activations(model)
    torch.testing.assert_close(model(input_ids=ids, use_cache=False).logits, expected, rtol=0, atol=1e-6)


def test_recompute_activations__model_without_such_layers__is_refused() -> None:
    with pytest.raises(OperatorError, match=r"unsupported_model.*activation_checkpointing"):
        recompute_activations(nn.Linear(2, 2))  # type: ignore[arg-type]


@pytest.mark.parametrize("is_set", [True, False])
def test_build_learner__activation_checkpointing__follows_the_setting(
    build_harness: Callable[..., Any], is_set: bool
) -> None:
    harness = build_harness(model={"activation_checkpointing": is_set}, threads=1)
    learner, _ = build_from_settings(harness.config, harness.params)
    layers = learner.model.get_submodule("model.layers").children()
    assert {getattr(layer, "gradient_checkpointing", None) for layer in layers} == {is_set}
