"""Forward passes of packed rows: log p and entropy of completion tokens, on one rank or distributed over several.

All values belong to the sampling distribution, at the pool's temperature. Workers claim log-probabilities of the
unmodified model, which are equal only at temperature 1.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, chain, pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from covey.engines.process_memory import explain_memory
from covey.errors import OperatorError
from covey.model.policy_files import DTYPES, get_head
from covey.model.ragged_attention import has_ragged_kernel
from covey.protocol.ids import GroupId, RolloutId, Step, TaskId
from trainer.algorithm.lm_head import ModelHead, compute_head
from trainer.algorithm.offload import HostMasters
from trainer.algorithm.tree_attention import build_families
from trainer.data.packing import MicroBatch, PackedBatch, PrefixTree, build_rows, group, share
from trainer.data.samples import Sample

_SLACK = {"float32": 1e-3, "float16": 0.1, "bfloat16": 0.5}
"""Difference of a log-probability that rounding may cause, in nats, by dtype of the computation. Logits are around 20,
and bfloat16 has three digits.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class PackingConfig:
    """Settings of packing and of the forward pass."""

    seq_len: int
    """Number of tokens in a row."""
    micro_batch_size: int
    """Number of rows whose tokens one forward pass takes."""
    compute_dtype: str
    """Dtype of the computation, a key of DTYPES. The master weights are always float32."""
    temperature: float = 1.0
    """Sampling temperature of the pool. The policy is softmax(logits / temperature)."""
    sync_each_batch: bool = False
    """Whether several ranks add up their gradients after each micro-batch, and not once per update."""
    activation_offload: bool = False
    """Whether activations are in main memory between the forward and the backward pass."""


def shares_prefixes(model: PreTrainedModel) -> bool:
    """Return whether siblings can share one copy of their common prefix.

    This requires attention that supports families, and layers with a sliding window would lose the prefix.
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
            fix="Remove model.activation_checkpointing from the settings",
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
            fix="Lower model.micro_batch_size or model.seq_len, or enable model.activation_checkpointing, "
            "model.activation_offload, model.optimizer_offload or, with several ranks, model.sync_each_batch",
        ) from error


def predict(model: PreTrainedModel, rows: PackedBatch, shape: PackingConfig) -> tuple[Tensor, Tensor]:
    """Return log p and entropy of the n predictions of `rows`, float32 [n] each.

    Unless the computation is in float32, call it `with_working_weights`.
    """
    dtype = DTYPES[shape.compute_dtype]
    packed: dict[str, Any] = {}
    if shares_prefixes(model):  # a given mask stops transformers from building one; this one is never read
        has_lines = has_ragged_kernel(rows.tokens.device, dtype, _get_head_width(model))
        packed["families"] = build_families(rows.ends, device=rows.tokens.device, has_lines=has_lines)
        packed["attention_mask"] = torch.full((1, 1, 1, 1), torch.nan, dtype=model.dtype, device=rows.tokens.device)
    hidden = model.base_model(
        input_ids=rows.tokens[None], position_ids=rows.positions[None], use_cache=False, **packed
    ).last_hidden_state
    hidden = hidden[0, rows.places]  # before the head, which takes most of the memory
    head = get_head(model)
    if isinstance(head, ModelHead):
        return head.predict(hidden, rows.targets, dtype, shape.temperature)
    return compute_head(hidden, head.weight, rows.targets, dtype=dtype, temperature=shape.temperature)


def _get_head_width(model: PreTrainedModel) -> int:
    """Return the width of the attention heads."""
    config = model.config.get_text_config()
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


@contextmanager
def with_working_weights(
    model: PreTrainedModel, dtype: torch.dtype, masters: HostMasters | None = None
) -> Iterator[None]:
    """Let the layers of a model compute with copies of its float32 weights in `dtype`, forward and backward.

    Gradients of the copies are added to those of the weights in float32. The head keeps a float32 weight, because
    `compute_head` converts it tile by tile. Sharded weights are not copied: FSDP gathers them in `dtype`.

    With `masters` the trained weights are in main memory, and their gradients are kept for `HostMasters.collect`.
    """
    head = get_head(model)
    own, wholes, copies = head._parameters, dict[int, Tensor](), dict[int, Tensor]()
    changed: list[tuple[dict[str, Any], str, Tensor]] = []
    for module in model.modules():
        parameters: dict[str, Any] = module._parameters
        for name, weight in parameters.items():
            if weight is not None and weight.dtype is torch.float32 and not isinstance(weight, DTensor):
                changed.append((parameters, name, weight))

    def get_whole(weight: Tensor) -> Tensor:
        """Return the weight on the device: in float32 if the head uses it, and otherwise in `dtype`."""
        if masters is None or not weight.requires_grad:
            return weight
        if id(weight) not in wholes:
            wholes[id(weight)] = masters.upload(weight, torch.float32 if weight is head_weight else dtype)
        return wholes[id(weight)]

    head_weight = head.weight
    try:
        for parameters, name, weight in changed:
            whole = get_whole(weight)
            parameters[name] = whole if parameters is own else copies.setdefault(id(weight), whole.to(dtype))
        yield
    finally:
        for parameters, name, weight in changed:
            parameters[name] = weight


class Predictor(torch.nn.Module):
    """`predict` for one model as a module. Its methods gather the weights if the model is sharded.

    `device` is the device of the computation. With `masters` the model's trained weights are in main memory.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        shape: PackingConfig,
        *,
        device: torch.device | None = None,
        masters: HostMasters | None = None,
    ) -> None:
        super().__init__()
        self.model, self.shape, self.masters = model, shape, masters
        self.device = model.device if device is None else device
        if type(head := get_head(model)) is torch.nn.Linear:
            head.__class__ = ModelHead

    def forward(self, rows: PackedBatch, shape: PackingConfig | None = None) -> tuple[Tensor, Tensor]:
        return predict(self.model, rows, shape or self.shape)

    def with_working_weights(self) -> AbstractContextManager[None]:
        """Let the model compute in the format of `shape`, as the function of this name does."""
        return with_working_weights(self.model, DTYPES[self.shape.compute_dtype], self.masters)

    def compute_plain(self, tokens: Tensor) -> Tensor:
        """Return the logits of one sequence [n] as the model itself computes them, float32 [n, vocabulary]."""
        logits: Tensor = self.model(input_ids=tokens[None], use_cache=False).logits[0]
        return logits.float()


@torch.no_grad()
def compute_logprobs(predictor: Predictor, samples: Sequence[Sample]) -> list[tuple[float, ...]]:
    """Return log p(token) of each completion under the current model. Every rank gets the values of all samples."""
    device, shape = predictor.device, predictor.shape
    bounds = list(accumulate((len(sample.tokens) for sample in samples), initial=0))
    logprobs = torch.zeros(bounds[-1], device=device)
    with predictor.with_working_weights():
        for micro_batch in share_samples(predictor.model, samples, shape):
            rows = build_rows(samples, [0.0] * len(samples), micro_batch).to(device)
            offsets = [offset for i in chain.from_iterable(micro_batch) for offset in range(bounds[i], bounds[i + 1])]
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


def share_samples(model: PreTrainedModel, samples: Sequence[Sample], shape: PackingConfig) -> list[MicroBatch]:
    """Return the micro-batches of this rank.

    They have the tokens of `micro_batch_size` rows, or of one row if attention would compare all tokens of a
    micro-batch with each other.
    """
    is_divided = dist.is_available() and dist.is_initialized()
    shares = share(
        find_families(model, samples, shape),
        ranks=dist.get_world_size() if is_divided else 1,
        room=shape.seq_len * (shape.micro_batch_size if shares_prefixes(model) else 1),
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
def require_supported(predictor: Predictor) -> None:
    """Raise OperatorError("unsupported_model") unless packed samples have the same log-probabilities as with the plain
    model.

    This detects a head with a bias, capped or scaled logits, and states that cross the borders of samples. Whole
    float32 weights compute in float32. Shards compute in their own format, and its rounding is allowed. All ranks call
    this at the same time.
    """
    model = predictor.model
    is_exact = all(each.dtype is torch.float32 and not isinstance(each, DTensor) for each in model.parameters())
    dtype = "float32" if is_exact else predictor.shape.compute_dtype
    samples = [_probe((0, 1, 2), (1, 0)), _probe((0, 1, 2), (2, 2, 1)), _probe((1,), (0, 2))]
    rows: MicroBatch = [(0, 1), (2,)] if shares_prefixes(model) else [(0,), (1,), (2,)]
    packed, theirs = build_rows(samples, [0.0] * 3, rows).to(predictor.device), []
    with with_working_weights(model, DTYPES[dtype], predictor.masters):
        ours, _ = predictor(packed, replace(predictor.shape, compute_dtype=dtype, temperature=1.0))
        for sample in samples:
            tokens = torch.tensor([*sample.prompt, *sample.tokens], device=predictor.device)
            logprobs = torch.log_softmax(predictor.compute_plain(tokens)[len(sample.prompt) - 1 : -1], dim=-1)
            theirs.append(logprobs.gather(1, tokens[len(sample.prompt) :, None])[:, 0])
    gap = float((ours - torch.cat(theirs)).abs().max())
    if getattr(get_head(model), "bias", None) is not None or not gap <= _SLACK[dtype]:
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
        rows = build_rows(samples, [0.0] * len(samples), [(i,) for i in range(len(samples))])
        with predictor.with_working_weights():
            logprobs: Tensor = predictor(rows.to(predictor.device))[0]
        return logprobs[-len(second.tokens) :]

    packed, alone = find(first, second), find(second)
    leak, limit = float((packed - alone).abs().mean()), float((find(joined) - alone).abs().mean()) / 2
    if not leak <= limit + 1e-3:
        raise OperatorError(
            "unsupported_model",
            f"{type(predictor.model).__name__} lets packed samples affect each other, by {leak:.3g} nats per token",
            fix="Use a different model",
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
