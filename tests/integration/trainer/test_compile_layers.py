"""Compiled layers give the gradients of layers that are not compiled, and rows of other lengths compile nothing again.

The quick tests trace as torch.compile does, but run torch's own kernels. COVEY_FULL=1 also runs compiled kernels.
"""

import subprocess
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch._inductor.cpp_builder import get_cpp_compiler
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from covey.model.tiny import tiny_folder
from tests.fakes.samples import SHAPE, build_batch, build_learner, build_samples, forget_old, give_proximal
from trainer.algorithm.compilation import compile_layers
from trainer.algorithm.forward import recompute_activations
from trainer.algorithm.learner import Learner

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),  # dynamo reads it
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # inductor imports torch.jit
]


def build_model(*, is_lean: bool) -> PreTrainedModel:
    """Build a random model of one layer."""
    torch.manual_seed(0)
    config = AutoConfig.from_pretrained(tiny_folder(), num_hidden_layers=1, layer_types=["full_attention"])
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    if is_lean:
        recompute_activations(model)
    return model


def update(learner: Learner, count: Callable[[], int]) -> tuple[list[torch.Tensor], list[int]]:
    """Return the gradients of three updates with rows of different lengths, and the number of graphs after each."""
    gradients, graphs = [], []
    for seed in range(3):
        batch = give_proximal(forget_old(build_batch(build_samples(9, seed))), None)  # large ratios amplify rounding
        learner.update(batch)
        found = [each.grad for each in learner.model.parameters()]
        gradients.append(torch.cat([each.flatten() for each in found if each is not None]))
        graphs.append(count())
    return gradients, graphs


def check(backend: str, *, is_lean: bool) -> None:
    torch._dynamo.reset()
    model, counter = build_model(is_lean=is_lean), CompileCounterWithBackend(backend)
    shape = replace(SHAPE, micro_batch_size=1, activation_offload=is_lean)
    plain, compiled = (build_learner(model, shape=shape) for _ in range(2))
    compile_layers(compiled.model, counter)
    expected, _ = update(plain, lambda: 0)
    found, graphs = update(compiled, lambda: counter.frame_count)
    assert graphs[0] > 1
    assert graphs[1:] == graphs[:1] * 2
    for ours, theirs in zip(found, expected, strict=True):
        assert float((ours - theirs).norm() / theirs.norm()) < 1e-5


@pytest.mark.parametrize("is_lean", [pytest.param(False, marks=pytest.mark.full), True])
def test_compile_layers__rows_of_other_lengths__give_the_same_gradients_and_compile_nothing_again(
    is_lean: bool,
) -> None:
    check("aot_eager", is_lean=is_lean)


@pytest.mark.full
def test_compile_layers__compiled_kernels__give_the_same_gradients() -> None:
    try:
        subprocess.run([get_cpp_compiler(), "--version"], check=True, capture_output=True)
    except (OSError, RuntimeError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no C++ compiler answers: {error}")
    check("inductor", is_lean=False)
