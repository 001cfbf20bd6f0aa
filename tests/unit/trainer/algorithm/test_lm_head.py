"""The head against logits written out, in float64 loops and in torch's own dense operators."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from covey.model.policy_files import load_model
from covey.model.tiny import tiny_folder
from trainer.algorithm import lm_head
from trainer.algorithm.lm_head import compute_head

pytestmark = pytest.mark.unit

Pair = tuple[Tensor, Tensor]


@pytest.fixture(autouse=True)
def _many_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use small tiles, so that the last tiles are ragged in both dimensions."""
    monkeypatch.setattr(lm_head, "CPU_TILE", (5, 7))


def draw(n: int, vocabulary: int, width: int = 16, scale: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(n * 1000 + vocabulary)
    targets = torch.randint(0, vocabulary, (n,))
    return torch.randn(n, width) * scale, torch.randn(vocabulary, width) * scale, targets


def compute_dense(hidden: Tensor, weight: Tensor, targets: Tensor) -> Pair:
    logits = hidden @ weight.T
    logprobs = torch.log_softmax(logits if logits.dtype is torch.float64 else logits.float(), dim=-1)
    return logprobs.gather(1, targets[:, None])[:, 0], -(logprobs.exp() * logprobs).sum(dim=-1)


def differentiate(compute: Callable[..., Pair], inputs: tuple[Tensor, Tensor, Tensor], **options: Any) -> list[Tensor]:
    """Return the outputs, then the gradients of a sum with uneven factors of both outputs."""
    hidden, weight = (each.detach().clone().requires_grad_() for each in inputs[:2])
    logprobs, entropy = compute(hidden, weight, inputs[2], **options)
    factors = torch.linspace(-1, 1, len(hidden))
    torch.autograd.backward((factors * logprobs + (0.5 - factors) * entropy).sum())
    assert hidden.grad is not None
    assert weight.grad is not None
    return [logprobs.detach(), entropy.detach(), hidden.grad, weight.grad]


@pytest.mark.parametrize(("n", "vocabulary"), [(1, 1), (1, 40), (5, 7), (13, 23), (6, 300)])
def test_compute_head__float32__outputs_and_gradients_equal_the_dense_ones(n: int, vocabulary: int) -> None:
    """Dense results are computed in float64, because in float32 they would be as inexact. Logits are up to 5."""
    inputs = draw(n, vocabulary, scale=0.5)
    exact = (inputs[0].double(), inputs[1].double(), inputs[2])
    for ours, theirs in zip(
        differentiate(compute_head, inputs, dtype=torch.float32), differentiate(compute_dense, exact), strict=True
    ):
        assert float((ours.double() - theirs).abs().max()) < 1e-6 * max(1.0, float(theirs.abs().max()))


@pytest.mark.parametrize("temperature", [0.5, 1.7])
def test_compute_head__temperature__divides_the_logits(temperature: float) -> None:
    inputs = draw(13, 23, scale=0.5)
    exact = (inputs[0].double(), inputs[1].double(), inputs[2])

    def compute_exactly(hidden: Tensor, weight: Tensor, targets: Tensor) -> Pair:
        return compute_dense(hidden / temperature, weight, targets)

    found = differentiate(compute_head, exact, dtype=torch.float64, temperature=temperature)
    for ours, theirs in zip(found, differentiate(compute_exactly, exact), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_compute_head__bfloat16__is_within_a_hundredth_of_float32_on_the_same_values() -> None:
    inputs = draw(13, 23)
    hidden, weight = inputs[0].bfloat16(), inputs[1].bfloat16()
    found = differentiate(compute_head, (hidden, weight, inputs[2]), dtype=torch.bfloat16)
    assert [each.dtype for each in found] == [torch.float32, torch.float32, torch.bfloat16, torch.bfloat16]
    for ours, theirs in zip(
        found, differentiate(compute_dense, (hidden.float(), weight.float(), inputs[2])), strict=True
    ):
        assert float((ours.float() - theirs).norm() / theirs.norm()) < 1e-2


def test_compute_head__float32_masters_in_bfloat16__gradients_arrive_in_float32() -> None:
    inputs = draw(13, 23)
    rounded = (inputs[0].bfloat16().float(), inputs[1].bfloat16().float(), inputs[2])
    found = differentiate(compute_head, inputs, dtype=torch.bfloat16)
    assert {each.dtype for each in found} == {torch.float32}
    for ours, theirs in zip(found, differentiate(compute_dense, rounded), strict=True):
        assert float((ours - theirs).norm() / theirs.norm()) < 1e-2


def test_compute_head__by_hand__three_entries() -> None:
    # logits 0, log 2, log 5: p = 1/8, 1/4, 5/8
    weight = torch.tensor([[0.0], [math.log(2)], [math.log(5)]], requires_grad=True)
    logprobs, entropy = compute_head(torch.ones(1, 1), weight, torch.tensor([1]), dtype=torch.float32)
    by_hand = math.log(8) / 8 + math.log(4) / 4 + 5 / 8 * math.log(8 / 5)
    assert logprobs.item() == pytest.approx(-math.log(4))
    assert entropy.item() == pytest.approx(by_hand)
    (slopes,) = torch.autograd.grad(logprobs.sum(), weight, retain_graph=True)
    assert slopes[:, 0].tolist() == pytest.approx([-1 / 8, 3 / 4, -5 / 8])  # onehot - p
    (slopes,) = torch.autograd.grad(entropy.sum(), weight)
    p = [1 / 8, 1 / 4, 5 / 8]
    assert slopes[:, 0].tolist() == pytest.approx([-q * (math.log(q) + by_hand) for q in p])


def test_compute_head__uniform_and_certain__entropy_is_log_v_and_zero() -> None:
    weight = torch.tensor([[0.0], *[[-80.0]] * 29])
    hidden = torch.tensor([[0.0], [1.0]])
    logprobs, entropy = compute_head(hidden, weight, torch.tensor([3, 0]), dtype=torch.float32)
    assert entropy.tolist() == pytest.approx([math.log(30), 0.0], abs=1e-6)
    assert logprobs.tolist() == pytest.approx([-math.log(30), 0.0], abs=1e-6)


@pytest.mark.parametrize("scale", [1e-3, 30.0])
def test_compute_head__flat_and_steep_logits__stay_finite(scale: float) -> None:
    # Logits reach several thousands, whose exponentials overflow without the running maximum.
    inputs = draw(11, 29, scale=scale)
    for ours, theirs in zip(
        differentiate(compute_head, inputs, dtype=torch.float32), differentiate(compute_dense, inputs), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_compute_head__log_probability_alone__has_its_own_gradient() -> None:
    inputs = draw(13, 23)
    grads = []
    for compute in (compute_head, compute_dense):
        hidden = inputs[0].clone().requires_grad_()
        options = {"dtype": torch.float32} if compute is compute_head else {}
        torch.autograd.backward(compute(hidden, inputs[1], inputs[2], **options)[0].sum())
        grads.append(hidden.grad)
    torch.testing.assert_close(grads[0], grads[1])


def test_compute_head__frozen_weight__gets_no_gradient_and_no_memory() -> None:
    hidden, weight, targets = draw(13, 23)
    hidden.requires_grad_()
    logprobs, _ = compute_head(hidden, weight, targets, dtype=torch.float32)
    torch.autograd.backward(logprobs.sum())
    assert hidden.grad is not None
    assert weight.grad is None


def test_compute_head__no_rows__gives_zero_gradients() -> None:
    hidden, weight, targets = draw(0, 23)
    hidden.requires_grad_()
    weight.requires_grad_()
    logprobs, entropy = compute_head(hidden, weight, targets, dtype=torch.float32)
    torch.autograd.backward(logprobs.sum() + entropy.sum())
    assert logprobs.shape == entropy.shape == (0,)
    assert weight.grad is not None
    assert not weight.grad.any()


def test_compute_head__tied_embedding__has_the_sum_of_both_gradients() -> None:
    model: PreTrainedModel = load_model(tiny_folder(), "float32")
    tokens = torch.tensor([[2, 30, 40, 50, 60, 70]])
    embedding = model.get_input_embeddings().weight
    assert embedding is model.get_output_embeddings().weight
    logits = model(input_ids=tokens[:, :-1]).logits[0]
    dense = torch.log_softmax(logits, dim=-1).gather(1, tokens[0, 1:, None]).sum()
    (expected,) = torch.autograd.grad(dense, embedding)
    hidden = model.base_model(input_ids=tokens[:, :-1]).last_hidden_state[0]
    logprobs, _ = compute_head(hidden, embedding, tokens[0, 1:], dtype=torch.float32)
    (found,) = torch.autograd.grad(logprobs.sum(), embedding)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_compute_head__one_thousand_by_twenty_thousand__never_holds_the_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lm_head, "CPU_TILE", (64, 512))
    hidden, weight, targets = draw(1000, 20_000, width=4)
    hidden.requires_grad_()
    with torch.profiler.profile(profile_memory=True) as profile:
        torch.autograd.backward(compute_head(hidden, weight, targets, dtype=torch.float32)[0].sum())
    largest = max(event.nbytes() for event in profile.profiler.kineto_results.events() if event.name() == "[memory]")
    assert largest <= 64 * 512 * 8  # the positions of a tile's targets take less
