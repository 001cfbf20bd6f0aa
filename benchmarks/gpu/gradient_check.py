"""The learner's gradient against that of plain transformers in float32, which computes each sample by itself."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor
from transformers import PreTrainedModel

from benchmarks.gpu.random_models import SMALL, TINY_VOCABULARY, VOCABULARY, build_model
from benchmarks.gpu.section_run import SectionRun
from benchmarks.measurement import Bar
from benchmarks.training.utilisation import OBJECTIVE, OPTIMISER, draw_batch
from trainer.algorithm.forward import PackingConfig
from trainer.algorithm.learner import Learner
from trainer.data.samples import Batch

LENGTHS = (200, 150, 257, 30)
"""Tokens of the completions.  Each two have the same prompt."""
PROMPT = 64
FROZEN = replace(OPTIMISER, learning_rate=0.0, clip=1e30)
"""Changes neither the weights nor the gradient."""
AIMS = {"bfloat16": 2e-2, "float32": 1e-5}
"""Maximum difference of the gradient, relative to its norm."""


def check_gradients(run: SectionRun) -> None:
    """Record the relative differences of the gradient in both formats."""
    vocabulary, lengths = run.pick(VOCABULARY, TINY_VOCABULARY), [each // run.pick(1, 8) for each in LENGTHS]
    batch = draw_batch(lengths, prompt=PROMPT // run.pick(1, 8), vocabulary=vocabulary, siblings=2)
    model = build_model(run, SMALL)
    wanted = compute_plainly(model, batch, is_mixed=False)
    autocast = compute_gap(compute_plainly(model, batch, is_mixed=True), wanted)
    for dtype, most in AIMS.items():
        gap = compute_gap(compute_ours(model, batch, dtype), wanted)
        peer = {"peer": "transformers autocast", "peer_value": autocast} if dtype == "bfloat16" else {}
        run.record(
            f"gradient, {dtype}", gap, "of its norm", aim=Bar(most=most), is_value_aimed=True,
            memory_gb=run.read_peak_gb(), **peer,  # type: ignore[arg-type]
        )  # fmt: skip


def compute_ours(model: PreTrainedModel, batch: Batch, dtype: str) -> Tensor:
    """Return the gradient that the learner computes."""
    shape = PackingConfig(seq_len=4096, micro_batch_size=1, compute_dtype=dtype)
    Learner(model, optimiser=FROZEN, objective=OBJECTIVE, shape=shape).update(batch)
    return take_gradient(model)


def compute_plainly(model: PreTrainedModel, batch: Batch, *, is_mixed: bool) -> Tensor:
    """Return the gradient that autograd computes of the whole logits of each sample.

    If `is_mixed`, autocast computes in bfloat16.
    """
    device = model.device
    for sample, weight in zip(batch.samples, batch.weights, strict=True):
        tokens = torch.tensor([[*sample.prompt, *sample.tokens]], device=device)
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=is_mixed):
            logits = model(input_ids=tokens, use_cache=False).logits[0, len(sample.prompt) - 1 : -1].float()
        logprobs = logits.log_softmax(-1).gather(1, tokens[0, len(sample.prompt) :, None])
        torch.autograd.backward(-weight * sample.advantage * logprobs.sum())
    return take_gradient(model)


def take_gradient(model: PreTrainedModel) -> Tensor:
    """Return the gradient of all parameters as one vector, and remove it from the model."""
    gradients: Sequence[Tensor | None] = [each.grad for each in model.parameters()]
    model.zero_grad(set_to_none=True)
    return torch.cat([each.flatten() for each in gradients if each is not None])


def compute_gap(found: Tensor, wanted: Tensor) -> float:
    """Return the norm of the difference, divided by the norm of `wanted`."""
    return float((found.double() - wanted.double()).norm() / wanted.double().norm())
