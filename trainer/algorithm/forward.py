"""Packed rows through a model: log p and entropy of their completion tokens, on one rank or shared among many.

Called by `learner`.  Everything is of the policy that samples, at the pool's temperature; what workers claim is of the
unmodified model, which is the same at temperature 1 only.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.utils.import_utils import is_flash_attn_2_available

from covey.engines.process_memory import explain_memory
from covey.errors import OperatorError
from covey.model.policy_files import DTYPES, get_head
from covey.protocol.ids import GroupId, RolloutId, Step, TaskId
from covey.runtime.log import get_logger
from trainer.algorithm.lm_head import compute_head
from trainer.algorithm.tree_attention import build_families
from trainer.data.packing import PackedBatch, PrefixTree, build_rows, group, share
from trainer.data.samples import Sample

FLASH = "flash_attention_2"


@dataclass(frozen=True, kw_only=True, slots=True)
class PackingConfig:
    """How rows go through the model."""

    seq_len: int
    micro_batch_size: int
    compute_dtype: str
    """Key of DTYPES; the masters are float32 whatever it is."""
    temperature: float = 1.0
    """At which the pool samples: the policy is softmax(logits / temperature)."""


def choose_attention(model: PreTrainedModel, shape: PackingConfig) -> None:
    """Kernels for ragged rows where a GPU has the package flash_attn, which knows no float32; they find the borders of
    samples by the positions that start again.  Elsewhere SDPA goes family by family, with masks."""
    if model.device.type != "cuda" or shape.compute_dtype == "float32":
        return
    if is_flash_attn_2_available():
        model.set_attn_implementation(FLASH)
    else:
        get_logger().warning("attention goes by masks, slowly where groups are long", without="the package flash_attn")


def shares_prefixes(model: PreTrainedModel) -> bool:
    """Whether siblings may follow one copy of what they have in common.  Attention is told of families for it: kernels
    for ragged rows take none, and layers with a window would lose it."""
    config = model.config
    layers = set(getattr(config, "layer_types", None) or [])
    is_whole = getattr(config, "sliding_window", None) is None and layers <= {"full_attention"}
    return bool(config._attn_implementation == "sdpa" and is_whole)


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
            fix="Lower micro_batch_size or seq_len, or set activation_checkpointing",
        ) from error


def predict(model: PreTrainedModel, rows: PackedBatch, shape: PackingConfig) -> tuple[Tensor, Tensor]:
    """log p and entropy of the n predictions of `rows`, float32 [n] each."""
    dtype = DTYPES[shape.compute_dtype]
    is_mixed = dtype is not torch.float32 and model.dtype is torch.float32
    cast_to = dtype if is_mixed else torch.bfloat16
    packed: dict[str, Any] = {}
    if shares_prefixes(model):  # transformers builds no mask where it is given one, and nobody reads this one
        packed["families"] = build_families(rows.positions, rows.ends)
        packed["attention_mask"] = torch.full((1, 1, 1, 1), torch.nan, dtype=model.dtype, device=model.device)
    # No cache: each weight is cast once anyway, and kept until the end all of them would be in memory at once.
    with torch.autocast(model.device.type, dtype=cast_to, enabled=is_mixed, cache_enabled=False):
        hidden = model.base_model(
            input_ids=rows.tokens[None], position_ids=rows.positions[None], use_cache=False, **packed
        ).last_hidden_state
    hidden = hidden[0, rows.places]  # before the head, which is where memory goes
    if shape.temperature != 1:
        hidden = hidden / shape.temperature
    return compute_head(hidden, get_head(model).weight, rows.targets, dtype=dtype)


class Predictor(torch.nn.Module):
    """`predict` for one model, as a module: where the model is in shards, calling it makes the weights whole."""

    def __init__(self, model: PreTrainedModel, shape: PackingConfig) -> None:
        super().__init__()
        self.model, self.shape = model, shape

    def forward(self, rows: PackedBatch) -> tuple[Tensor, Tensor]:
        return predict(self.model, rows, self.shape)


@torch.no_grad()
def compute_logprobs(predictor: Predictor, samples: Sequence[Sample]) -> list[tuple[float, ...]]:
    """log p(token) of each completion under the model as it is; on every rank those of all samples."""
    device, shape = predictor.model.device, predictor.shape
    bounds = list(accumulate((len(sample.tokens) for sample in samples), initial=0))
    found = torch.zeros(bounds[-1], device=device)
    for part in share_samples(predictor.model, samples, shape):
        rows = build_rows(samples, [0.0] * len(samples), part, is_shared=shares_prefixes(predictor.model)).to(device)
        places = [place for row in part for i in row for place in range(bounds[i], bounds[i + 1])]
        found[places] = predictor(rows)[0]
    values = sum_over_ranks(found).tolist()
    return [tuple(values[start:end]) for start, end in pairwise(bounds)]


def find_families(model: PreTrainedModel, samples: Sequence[Sample], shape: PackingConfig) -> list[PrefixTree]:
    """The samples as they are packed.  A layer's matrices hold about 12 hidden^2 values, attention to n tokens computes
    with n hidden."""
    crossover = 12 * get_head(model).weight.shape[1]
    return group(samples, seq_len=shape.seq_len, crossover=crossover, is_shared=shares_prefixes(model))


def share_samples(model: PreTrainedModel, samples: Sequence[Sample], shape: PackingConfig) -> list[list[list[int]]]:
    """The micro-batches of this rank: lists of rows of sample indices; one row each where attention would compare all
    tokens of a micro-batch with each other."""
    is_by_samples = shares_prefixes(model) or model.config._attn_implementation == FLASH
    is_divided = dist.is_available() and dist.is_initialized()
    shares = share(
        find_families(model, samples, shape),
        ranks=dist.get_world_size() if is_divided else 1,
        seq_len=shape.seq_len,
        micro_batch_size=shape.micro_batch_size if is_by_samples else 1,
    )
    return shares[dist.get_rank() if is_divided else 0]


def sum_over_ranks(tensor: Tensor) -> Tensor:
    """In place; alone, nothing."""
    if dist.is_available() and dist.is_initialized():
        dist.all_reduce(tensor)
    return tensor


def max_over_ranks(tensor: Tensor) -> Tensor:
    """In place, as `sum_over_ranks`."""
    if dist.is_available() and dist.is_initialized():
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
    return tensor


@torch.no_grad()
def require_supported(model: PreTrainedModel) -> None:
    """Compare packed samples with the model's own logits of each; raise OperatorError("unsupported_model").

    A head with a bias, capped or scaled logits, and states that cross the borders of samples are found so.
    """
    samples = [_probe((0, 1, 2), (1, 0)), _probe((0, 1, 2), (2, 2, 1)), _probe((1,), (0, 2))]
    rows = build_rows(samples, [0.0] * 3, [[0, 1, 2]], is_shared=shares_prefixes(model)).to(model.device)
    ours, _ = predict(model, rows, PackingConfig(seq_len=16, micro_batch_size=1, compute_dtype="float32"))
    theirs = []
    for sample in samples:
        tokens = torch.tensor([[*sample.prompt, *sample.tokens]], device=model.device)
        logits = model(input_ids=tokens, use_cache=False).logits[0, len(sample.prompt) - 1 : -1]
        theirs.append(torch.log_softmax(logits.float(), dim=-1).gather(1, tokens[0, len(sample.prompt) :, None])[:, 0])
    if not torch.allclose(ours, torch.cat(theirs), atol=1e-3):
        raise OperatorError(
            "unsupported_model",
            f"{type(model).__name__} makes more of its states than a plain head, or mixes packed samples",
            fix="Use another model",
        )


@torch.no_grad()
def require_borders(predictor: Predictor) -> None:
    """By the kernels that learning uses, on all ranks at once: a sample behind another one is what it is alone, and not
    what the two are as one; raise OperatorError("unsupported_model") otherwise."""
    first, second = _probe((0, 1, 2), (1, 0)), _probe((2, 1), (0, 2))
    joined = _probe((*first.prompt, *first.tokens, *second.prompt), second.tokens)

    def find(*samples: Sample) -> Tensor:
        rows = build_rows(
            samples, [0.0] * len(samples), [range(len(samples))], is_shared=shares_prefixes(predictor.model)
        )
        logprobs: Tensor = predictor(rows.to(predictor.model.device))[0]
        return logprobs[-len(second.tokens) :]

    behind, alone = find(first, second), find(second)
    leak, most = float((behind - alone).abs().mean()), float((find(joined) - alone).abs().mean()) / 2
    if not leak <= most + 1e-3:
        raise OperatorError(
            "unsupported_model",
            f"{type(predictor.model).__name__} mixes packed samples: {leak:.3g} nats a token",
            fix="Use another model, or remove the package flash_attn where it is installed",
        )


def _probe(prompt: tuple[int, ...], tokens: tuple[int, ...]) -> Sample:
    return Sample(
        id=RolloutId(task=TaskId(0), group=GroupId(0), sibling=0),
        policy_version=Step(0),
        prompt=prompt,
        tokens=tokens,
        reward=0.0,
        advantage=0.0,
        old=None,
    )
