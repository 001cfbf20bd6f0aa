"""Packed rows through a model: log p and entropy of their completion tokens, on one rank or shared among many.

Called by `learner`.  Everything is of the unmodified model (temperature 1), which is also what workers claim.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.utils.import_utils import is_flash_attn_2_available

from covey.engines.memory import explain_memory
from covey.errors import OperatorError
from covey.model.files import DTYPES, get_head
from trainer.batch import Rows, Sample, build_rows, share
from trainer.head import compute_head

FLASH = "flash_attention_2"


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """How rows go through the model."""

    row_tokens: int
    micro_batch_rows: int
    compute_dtype: str
    """Key of DTYPES; the masters are float32 whatever it is."""


def choose_attention(model: PreTrainedModel) -> None:
    """Kernels for ragged rows where a GPU has the package flash_attn; masks of [rows, 1, width, width] elsewhere.

    Both find the borders of samples by the positions that start again.
    """
    if model.device.type == "cuda" and is_flash_attn_2_available():
        model.set_attn_implementation(FLASH)


def recompute_activations(model: PreTrainedModel) -> None:
    """From now on the backward pass computes each layer again from its input, and the forward pass keeps no more.

    Raises OperatorError("unsupported_model") where the layers of the model do not offer it.
    """
    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    if not layers:
        raise OperatorError(
            "unsupported_model",
            f"the layers of {type(model).__name__} cannot be computed again",
            fix="Leave activation_checkpointing out",
        )
    for layer in layers:  # alone: a whole model in training mode would also drop activations out
        layer.gradient_checkpointing = layer.training = True
        setattr(layer, "_gradient_checkpointing_func", partial(checkpoint, use_reentrant=False))  # noqa: B010


@contextmanager
def explain_trainer_memory() -> Iterator[None]:
    """Raises OperatorError("trainer_out_of_memory") where memory ran out within."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        found = explain_memory(error, "trainer")
        if found is None:
            raise
        raise OperatorError(
            "trainer_out_of_memory",
            found.message.removesuffix(f". {found.fix}"),
            fix="Lower micro_batch_rows or row_tokens, or set activation_checkpointing",
        ) from error


def predict(model: PreTrainedModel, rows: Rows, shape: Shape) -> tuple[Tensor, Tensor]:
    """log p and entropy of the n predictions of `rows.mask`, row after row, float32 [n] each."""
    dtype = DTYPES[shape.compute_dtype]
    is_mixed = dtype is not torch.float32 and model.dtype is torch.float32
    tokens, positions = rows.tokens, rows.positions
    if model.config._attn_implementation == FLASH:  # it looks for borders only where there is one row
        tokens, positions = tokens.view(1, -1), positions.view(1, -1)
    with torch.autocast(model.device.type, dtype=dtype if is_mixed else torch.bfloat16, enabled=is_mixed):
        hidden = model.base_model(input_ids=tokens, position_ids=positions, use_cache=False).last_hidden_state
    hidden = hidden.flatten(0, 1)[rows.mask.flatten()]  # before the head, which is where memory goes
    return compute_head(hidden, get_head(model).weight, rows.targets[rows.mask], dtype=dtype)


class Predictor(torch.nn.Module):
    """`predict` for one model, as a module: where the model is in shards, calling it makes the weights whole."""

    def __init__(self, model: PreTrainedModel, shape: Shape) -> None:
        super().__init__()
        self.model, self.shape = model, shape

    def forward(self, rows: Rows) -> tuple[Tensor, Tensor]:
        return predict(self.model, rows, self.shape)


@torch.no_grad()
def compute_logprobs(predictor: Predictor, samples: Sequence[Sample]) -> list[tuple[float, ...]]:
    """log p(token) of each completion under the model as it is; on every rank those of all samples."""
    device, shape = predictor.model.device, predictor.shape
    bounds = list(accumulate((len(sample.tokens) for sample in samples), initial=0))
    found = torch.zeros(bounds[-1], device=device)
    for part in share_samples(predictor.model, samples, shape):
        rows = build_rows(samples, [0.0] * len(samples), part).to(device)
        places = [place for row in part for i in row for place in range(bounds[i], bounds[i + 1])]
        found[places] = predictor(rows)[0]
    values = sum_over_ranks(found).tolist()
    return [tuple(values[start:end]) for start, end in pairwise(bounds)]


def share_samples(model: PreTrainedModel, samples: Sequence[Sample], shape: Shape) -> list[list[list[int]]]:
    """The micro-batches of this rank: lists of rows of sample indices.  A layer's matrices hold about 12 hidden^2
    values, attention to n tokens computes with n hidden."""
    is_shared = dist.is_available() and dist.is_initialized()
    shares = share(
        [sample.fed for sample in samples],
        ranks=dist.get_world_size() if is_shared else 1,
        row_tokens=shape.row_tokens,
        micro_batch_rows=shape.micro_batch_rows,
        crossover=12 * get_head(model).weight.shape[1],
    )
    return shares[dist.get_rank() if is_shared else 0]


def sum_over_ranks(tensor: Tensor) -> Tensor:
    """In place; alone, nothing."""
    if dist.is_available() and dist.is_initialized():
        dist.all_reduce(tensor)
    return tensor


@torch.no_grad()
def require_supported(model: PreTrainedModel) -> None:
    """Compare two packed samples with the model's own logits of each; raise OperatorError("unsupported_model").

    A head with a bias, capped or scaled logits, and states that cross the borders of samples are found so.
    """
    device = model.device
    tokens = torch.tensor([[0, 1, 2, 1, 0]], device=device)
    nothing = torch.zeros(tokens.shape, device=device)
    rows = Rows(
        tokens=tokens,
        positions=torch.tensor([[0, 1, 2, 0, 1]], device=device),
        targets=tokens,
        mask=torch.ones_like(tokens, dtype=torch.bool),
        old=nothing,
        proximal=None,
        reference=nothing,
        advantages=nothing,
        weights=nothing,
    )
    ours, _ = predict(model, rows, Shape(row_tokens=5, micro_batch_rows=1, compute_dtype="float32"))
    logits = torch.cat([model(input_ids=part, use_cache=False).logits[0] for part in (tokens[:, :3], tokens[:, 3:])])
    theirs = torch.log_softmax(logits.float(), dim=-1).gather(1, tokens[0][:, None])[:, 0]
    if not torch.allclose(ours, theirs, atol=1e-3):
        raise OperatorError(
            "unsupported_model",
            f"{type(model).__name__} makes more of its states than a plain head, or mixes packed samples",
            fix="Use another model",
        )
