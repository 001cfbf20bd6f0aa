"""The trainer on a CUDA device compared with a CPU: an update, the head without logits, packed rows, recomputed layers.

Each check is a function of a device, so that it also runs as `check("cpu")` on a machine without a GPU.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from covey.model.policy_files import DTYPES, load_model
from covey.model.tiny import tiny_folder
from tests.fakes.samples import (
    DECOUPLED,
    OPTIMISER,
    SHAPE,
    build_batch,
    build_learner,
    build_samples,
    give_proximal,
    nest,
)
from trainer.algorithm.forward import predict, recompute_activations, with_working_weights
from trainer.algorithm.learner import Learner
from trainer.algorithm.lm_head import TILE, compute_head
from trainer.data.packing import build_rows

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

BATCH = give_proximal(build_batch(build_samples()), None)
"""Has no proximal policy, so no token is on the edge of clipping, where rounding decides its gradient."""
SMOOTH = replace(OPTIMISER, learning_rate=1e3, epsilon=1e3, weight_decay=0.0)
"""Has a large epsilon. With a small one the first step is the gradients' signs, and rounding decides those near 0."""


@pytest.fixture(scope="module")
def base() -> PreTrainedModel:
    return load_model(tiny_folder(), "float32")


def update(base: PreTrainedModel, device: str, dtype: str, *, is_lean: bool = False) -> tuple[Learner, int]:
    """Return a learner after one update on `device`, and the number of calls of its first layer's first matrix."""
    moved = copy.deepcopy(base)
    torch.nn.Module.to(moved, device)
    if is_lean:
        recompute_activations(moved)
    shape, calls = replace(SHAPE, compute_dtype=dtype), list[int]()
    learner = build_learner(moved, objective=DECOUPLED, optimiser=SMOOTH, shape=shape)
    learner.model.get_submodule("model.layers.0.mlp.gate_proj").register_forward_hook(lambda *_: calls.append(1))
    learner.update(BATCH)
    return learner, len(calls)


def measure_gap(found: Tensor, wanted: Tensor) -> float:
    """Return the norm of the difference, divided by the norm of the expected value."""
    return float((found.detach().cpu().double() - wanted.double()).norm() / wanted.double().norm())


def get_gradients(learner: Learner) -> Tensor:
    found = [each.grad for each in learner.model.parameters()]
    return torch.cat([each.cpu().flatten() for each in found if each is not None])


def get_steps(learner: Learner, base: PreTrainedModel) -> Tensor:
    """Return the differences between the master weights before and after the update."""
    pairs = zip(learner.model.parameters(), base.parameters(), strict=True)
    return torch.cat([(ours.detach().cpu() - theirs.detach()).flatten() for ours, theirs in pairs])


def check_update(base: PreTrainedModel, device: str, dtype: str, *, tolerance: float) -> None:
    (there, _), (here, _) = update(base, device, dtype), update(base, "cpu", "float32")
    assert {(each.dtype, each.device.type) for each in there.model.parameters()} == {(torch.float32, device)}
    assert measure_gap(get_gradients(there), get_gradients(here)) < tolerance
    assert measure_gap(get_steps(there, base), get_steps(here, base)) < tolerance


def check_repeated(base: PreTrainedModel, device: str) -> None:
    """Check that an update gives the same bits again, with the kernels of a trainer with `ckpt.every` above 1."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        (first, _), (second, _) = (update(base, device, "bfloat16") for _ in range(2))
    finally:
        torch.use_deterministic_algorithms(False)
    assert torch.equal(get_gradients(first), get_gradients(second))
    assert torch.equal(get_steps(first, base), get_steps(second, base))


def compute_dense(hidden: Tensor, weight: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the head's outputs from all logits at once."""
    logprobs = torch.log_softmax(hidden @ weight.T, dim=-1)
    return logprobs.gather(1, targets[:, None])[:, 0], -(logprobs.exp() * logprobs).sum(dim=-1)


def differentiate(compute: Callable[..., tuple[Tensor, Tensor]], given: Sequence[Tensor], device: str) -> list[Tensor]:
    """Return both outputs, and the gradients of their weighted sum."""
    hidden, weight = (each.detach().to(device).requires_grad_() for each in given[:2])
    logprobs, entropy = compute(hidden, weight, given[2].to(device))
    factors = torch.linspace(-1, 1, len(hidden), device=device)
    torch.autograd.backward((factors * logprobs + (0.5 - factors) * entropy).sum())
    assert hidden.grad is not None
    assert weight.grad is not None
    return [logprobs.detach(), entropy.detach(), hidden.grad, weight.grad]


def check_head(device: str, dtype: str, *, tolerance: float) -> None:
    """Check the head on shapes that leave partial tiles in both dimensions, with values that bfloat16 represents
    exactly.
    """
    torch.manual_seed(0)
    n, vocabulary = TILE[0] + 52, TILE[1] + 108
    hidden, weight = (torch.randn(rows, 64).mul_(0.5).bfloat16().float() for rows in (n, vocabulary))
    given = (hidden, weight, torch.randint(0, vocabulary, (n,)))
    ours = differentiate(partial(compute_head, dtype=DTYPES[dtype]), given, device)
    for found, wanted in zip(ours, differentiate(compute_dense, given, "cpu"), strict=True):
        assert found.dtype is torch.float32
        assert measure_gap(found, wanted) < tolerance


@torch.no_grad()
def check_attention(base: PreTrainedModel, device: str, *, is_shared: bool) -> None:
    """Compare rows of several samples with those of a CPU in float32. Without their borders the result would differ."""
    samples, moved = build_samples(), copy.deepcopy(base)
    torch.nn.Module.to(moved, device)
    rows = nest(samples, [[0, 1, 2, 3], [4], [5, 6, 7, 8]], is_shared=is_shared)
    packed = build_rows(samples, [0.0] * len(samples), rows)
    shape = replace(SHAPE, compute_dtype="bfloat16")
    wanted = predict(base, packed, SHAPE)
    with with_working_weights(moved, torch.bfloat16):
        found = predict(moved, packed.to(torch.device(device)), shape)
    for ours, theirs in zip(found, wanted, strict=True):
        assert measure_gap(ours, theirs) < 2e-2
    joined = torch.full_like(packed.ends, len(packed.tokens))
    borderless = replace(packed, positions=torch.arange(len(packed.tokens)), ends=joined)
    with with_working_weights(moved, torch.bfloat16):
        assert measure_gap(predict(moved, borderless.to(torch.device(device)), shape)[0], wanted[0]) > 4e-2


def check_checkpointing(base: PreTrainedModel, device: str, dtype: str, *, tolerance: float) -> None:
    (lean, twice), (full, once) = update(base, device, dtype, is_lean=True), update(base, device, dtype)
    assert twice == 2 * once > 0
    assert measure_gap(get_gradients(lean), get_gradients(full)) < tolerance


@pytest.mark.filterwarnings("ignore:.*eterministic")
def test_update__deterministic_kernels__gives_the_same_bits_again(base: PreTrainedModel) -> None:
    check_repeated(base, "cuda")


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-4), ("bfloat16", 5e-2)])
def test_update__on_cuda__gradients_and_steps_are_a_cpus_in_float32(
    base: PreTrainedModel, dtype: str, tolerance: float
) -> None:
    check_update(base, "cuda", dtype, tolerance=tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("bfloat16", 1e-2)])
def test_compute_head__on_cuda__outputs_and_gradients_are_a_cpus_in_float32(dtype: str, tolerance: float) -> None:
    check_head("cuda", dtype, tolerance=tolerance)


@pytest.mark.parametrize("is_shared", [False, True])
def test_predict__packed_rows_on_cuda__are_those_of_a_cpu_in_float32(base: PreTrainedModel, is_shared: bool) -> None:
    check_attention(base, "cuda", is_shared=is_shared)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("bfloat16", 1e-3)])
def test_recompute_activations__on_cuda__gradients_are_those_without(
    base: PreTrainedModel, dtype: str, tolerance: float
) -> None:
    """Gradients are equal, except for sums whose order a GPU does not fix."""
    check_checkpointing(base, "cuda", dtype, tolerance=tolerance)
