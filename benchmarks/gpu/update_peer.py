"""The trainer's peer: an update that transformers and torch make without Covey, as fast as they easily can.

The model computes in bfloat16 with torch's SDPA, padded and without shared prompts.  Masters are float32, AdamW is
fused, and the head computes its logits in chunks, which the backward pass repeats.
"""

from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils import clip_grad_norm_
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from benchmarks.training.utilisation import OPTIMISER
from covey.model.policy_files import get_head
from trainer.data.samples import Batch

CHUNK = 4096
"""Number of predictions of which the head computes the logits at once: 2.5 GB in float32."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PaddedBatch:
    """The samples of a batch, one per row."""

    tokens: Tensor
    """Token ids, int64[samples, longest], padded with 0 on the right.  Under causal attention no token sees padding."""
    places: Tensor
    """Indices of the states that predict, in the flattened tokens, int64[predictions]."""
    targets: Tensor
    """Token ids to predict, int64[predictions]."""
    factors: Tensor
    """Weight times advantage of each prediction, float32[predictions]."""


def pad(batch: Batch, device: torch.device) -> PaddedBatch:
    """Write each sample into a row of its own."""
    longest = max(sample.fed for sample in batch.samples)
    tokens = torch.zeros(len(batch.samples), longest, dtype=torch.int64)
    places: list[int] = []
    targets: list[int] = []
    factors: list[float] = []
    for row, (sample, weight) in enumerate(zip(batch.samples, batch.weights, strict=True)):
        tokens[row, : sample.fed] = torch.tensor([*sample.prompt, *sample.tokens[:-1]])
        places += range(row * longest + len(sample.prompt) - 1, row * longest + sample.fed)
        targets += sample.tokens
        factors += [weight * sample.advantage] * len(sample.tokens)
    return PaddedBatch(
        tokens=tokens.to(device),
        places=torch.tensor(places, device=device),
        targets=torch.tensor(targets, device=device),
        factors=torch.tensor(factors, device=device),
    )


class UpdatePeer:
    """A model in bfloat16, its float32 masters and their optimizer."""

    def __init__(self, model: PreTrainedModel, batch: Batch) -> None:
        """Convert a float32 model in place."""
        self.masters = [each.detach().clone() for each in model.parameters()]
        self._model, self._batch = model.to(torch.bfloat16), pad(batch, model.device)  # type: ignore[arg-type]
        self._optimizer = torch.optim.AdamW(
            self.masters, lr=OPTIMISER.learning_rate, betas=OPTIMISER.betas, weight_decay=0.0, fused=True
        )

    def update(self) -> float:
        """Take one optimizer step, and return the norm of the gradient."""
        hidden = self._model.base_model(input_ids=self._batch.tokens, use_cache=False).last_hidden_state
        states = hidden.flatten(0, 1)[self._batch.places]
        torch.autograd.backward(compute_chunked_loss(states, get_head(self._model).weight, self._batch))
        weights = list(self._model.parameters())
        for master, weight in zip(self.masters, weights, strict=True):
            master.grad, weight.grad = cast(Tensor, weight.grad).float(), None
        norm = clip_grad_norm_(self.masters, OPTIMISER.clip)
        self._optimizer.step()
        with torch.no_grad():
            torch._foreach_copy_(weights, self.masters)
        self._optimizer.zero_grad()
        return float(norm)


def compute_chunked_loss(states: Tensor, weight: Tensor, batch: PaddedBatch) -> Tensor:
    """Return the sum of the weighted losses of the predictions, whose states are [predictions, hidden]."""

    def compute(chunk: Tensor, targets: Tensor, factors: Tensor) -> Tensor:
        return (F.cross_entropy((chunk @ weight.T).float(), targets, reduction="none") * factors).sum()

    total = states.new_zeros((), dtype=torch.float32)
    for part in zip(*(torch.split(each, CHUNK) for each in (states, batch.targets, batch.factors)), strict=True):
        total = total + checkpoint(compute, *part, use_reentrant=False)
    return total
