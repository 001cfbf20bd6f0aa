"""Forward passes of packed rows: log p and entropy of completion tokens, on one rank or distributed over several.

All values belong to the sampling distribution, at the pool's temperature. Workers claim log-probabilities of the
unmodified model, which are equal only at temperature 1.
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
    """Settings of packing and of the forward pass."""

    seq_len: int
    """Number of tokens in a packed row."""
    micro_batch_size: int
    """Number of packed rows in one forward pass."""
    compute_dtype: str
    """Dtype of the computation, a key of DTYPES. The master weights are always float32."""
    temperature: float = 1.0
    """Sampling temperature of the pool. The policy is softmax(logits / temperature)."""


def choose_attention(model: PreTrainedModel, shape: PackingConfig) -> None:
    """Select the attention kernels of the model.

    On a GPU with the package flash_attn, these are kernels for sequences of different lengths, which find the borders
    of samples where position ids restart. They do not support float32. In all other cases SDPA runs family by family,
    with masks.
    """
    if model.device.type != "cuda" or shape.compute_dtype == "float32":
        return
    if is_flash_attn_2_available():
        model.set_attn_implementation(FLASH)
    else:
        get_logger().warning(
            "attention falls back to masks, which are slow for long groups", without="the package flash_attn"
        )


def shares_prefixes(model: PreTrainedModel) -> bool:
    """Return whether siblings can share one copy of their common prefix.

    This requires attention that supports families. The flash_attn kernels do not, and layers with a sliding window
    would lose the prefix.
    """
    config = model.config
    layers = set(getattr(config, "layer_types", None) or [])
    is_whole = getattr(config, "sliding_window", None) is None and layers <= {"full_attention"}
    return bool(config._attn_implementation == "sdpa" and is_whole)


def recompute_activations(model: PreTrainedModel) -> None:
    """Make the backward pass recompute each layer from its input. The forward pass then keeps only these inputs.

    Raises OperatorError("unsupported_model") if the model's layers do not support it.
    """
    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    if not layers:
        raise OperatorError(
            "unsupported_model",
            f"the layers of {type(model).__name__} do not support activation checkpointing",
            fix="Remove activation_checkpointing from the settings",
        )
    for layer in layers:  # not the whole model, because its training mode would also enable dropout
        layer.gradient_checkpointing = layer.training = True
        setattr(layer, "_gradient_checkpointing_func", partial(checkpoint, use_reentrant=False))  # noqa: B010


@contextmanager
def explain_trainer_memory() -> Iterator[None]:
    """Convert a lack of memory in the context to OperatorError("trainer_out_of_memory")."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        cause = explain_memory(error, "trainer")
        if cause is None:
            raise
        raise OperatorError(
            "trainer_out_of_memory",
            cause.message.removesuffix(f". {cause.fix}"),
            fix="Lower micro_batch_size or seq_len, or enable activation_checkpointing",
        ) from error


def predict(model: PreTrainedModel, rows: PackedBatch, shape: PackingConfig) -> tuple[Tensor, Tensor]:
    """Return log p and entropy of the n predictions of `rows`, float32 [n] each."""
    dtype = DTYPES[shape.compute_dtype]
    is_mixed = dtype is not torch.float32 and model.dtype is torch.float32
    cast_to = dtype if is_mixed else torch.bfloat16
    packed: dict[str, Any] = {}
    if shares_prefixes(model):  # a given mask stops transformers from building one; this one is never read
        packed["families"] = build_families(rows.positions, rows.ends)
        packed["attention_mask"] = torch.full((1, 1, 1, 1), torch.nan, dtype=model.dtype, device=model.device)
    # No cache: each weight is cast only once anyway, and a cache would keep all casts in memory until the end.
    with torch.autocast(model.device.type, dtype=cast_to, enabled=is_mixed, cache_enabled=False):
        hidden = model.base_model(
            input_ids=rows.tokens[None], position_ids=rows.positions[None], use_cache=False, **packed
        ).last_hidden_state
    hidden = hidden[0, rows.places]  # before the head, which takes most of the memory
    if shape.temperature != 1:
        hidden = hidden / shape.temperature
    return compute_head(hidden, get_head(model).weight, rows.targets, dtype=dtype)


class Predictor(torch.nn.Module):
    """`predict` for one model as a module. Calling it gathers the weights if the model is sharded."""

    def __init__(self, model: PreTrainedModel, shape: PackingConfig) -> None:
        super().__init__()
        self.model, self.shape = model, shape

    def forward(self, rows: PackedBatch) -> tuple[Tensor, Tensor]:
        return predict(self.model, rows, self.shape)


@torch.no_grad()
def compute_logprobs(predictor: Predictor, samples: Sequence[Sample]) -> list[tuple[float, ...]]:
    """Return log p(token) of each completion under the current model. Every rank gets the values of all samples."""
    device, shape = predictor.model.device, predictor.shape
    bounds = list(accumulate((len(sample.tokens) for sample in samples), initial=0))
    logprobs = torch.zeros(bounds[-1], device=device)
    for micro_batch in share_samples(predictor.model, samples, shape):
        is_shared = shares_prefixes(predictor.model)
        rows = build_rows(samples, [0.0] * len(samples), micro_batch, is_shared=is_shared).to(device)
        offsets = [offset for row in micro_batch for i in row for offset in range(bounds[i], bounds[i + 1])]
        logprobs[offsets] = predictor(rows)[0]
    values = sum_over_ranks(logprobs).tolist()
    return [tuple(values[start:end]) for start, end in pairwise(bounds)]


def find_families(model: PreTrainedModel, samples: Sequence[Sample], shape: PackingConfig) -> list[PrefixTree]:
    """Return the prefix trees in which the samples are packed.

    A layer's matrices have about 12 hidden^2 values, and attention to n tokens uses n x hidden values. Both cost the
    same at 12 x hidden tokens.
    """
    crossover = 12 * get_head(model).weight.shape[1]
    return group(samples, seq_len=shape.seq_len, crossover=crossover, is_shared=shares_prefixes(model))


def share_samples(model: PreTrainedModel, samples: Sequence[Sample], shape: PackingConfig) -> list[list[list[int]]]:
    """Return the micro-batches of this rank: lists of rows of sample indices.

    Micro-batches have one row each if attention would compare all tokens of a micro-batch with each other.
    """
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
    """Sum a tensor over the ranks in place and return it. With a single process the tensor is unchanged."""
    if dist.is_available() and dist.is_initialized():
        dist.all_reduce(tensor)
    return tensor


def max_over_ranks(tensor: Tensor) -> Tensor:
    """Take the maximum of a tensor over the ranks in place and return it.

    With a single process the tensor is unchanged.
    """
    if dist.is_available() and dist.is_initialized():
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
    return tensor


@torch.no_grad()
def require_supported(model: PreTrainedModel) -> None:
    """Raise OperatorError("unsupported_model") unless packed samples have the same log-probabilities as with the plain
    model.

    This detects a head with a bias, capped or scaled logits, and states that cross the borders of samples.
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
            f"{type(model).__name__} applies more than a linear head to its hidden states, or mixes packed samples",
            fix="Use a model with a plain linear head that supports sequence packing",
        )


@torch.no_grad()
def require_borders(predictor: Predictor) -> None:
    """Raise OperatorError("unsupported_model") if the kernels used for learning mix packed samples.

    A sample that is packed after another one must have its own log-probabilities, not those of the two joined. All
    ranks call this at the same time.
    """
    first, second = _probe((0, 1, 2), (1, 0)), _probe((2, 1), (0, 2))
    joined = _probe((*first.prompt, *first.tokens, *second.prompt), second.tokens)

    def find(*samples: Sample) -> Tensor:
        rows = build_rows(
            samples, [0.0] * len(samples), [range(len(samples))], is_shared=shares_prefixes(predictor.model)
        )
        logprobs: Tensor = predictor(rows.to(predictor.model.device))[0]
        return logprobs[-len(second.tokens) :]

    packed, alone = find(first, second), find(second)
    leak, limit = float((packed - alone).abs().mean()), float((find(joined) - alone).abs().mean()) / 2
    if not leak <= limit + 1e-3:
        raise OperatorError(
            "unsupported_model",
            f"{type(predictor.model).__name__} lets packed samples affect each other, by {leak:.3g} nats per token",
            fix="Use a different model, or uninstall flash_attn if it is installed",
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
