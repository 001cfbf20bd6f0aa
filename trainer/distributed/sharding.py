"""Shards a learner's tensors with FSDP2 over all ranks. Every rank calls each function at the same time."""

from collections.abc import Iterable, Mapping
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    fully_shard,
    register_fsdp_forward_method,
)
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from covey.model.policy_files import get_head, get_weights
from trainer.distributed.host_copies import HostCopies
from trainer.distributed.loading import materialize


def shard(predictor: nn.Module, mesh: DeviceMesh, *, dtype: torch.dtype, offload: bool = False) -> None:
    """Shard the `model` of a predictor, which is on the meta device. The shards have no values yet.

    Weights are gathered in `dtype`, and gradients are reduced in float32. Each layer is one unit, and so are the
    embedding and the head. If they share their weight, it is in the last unit, which has the rest. Weights are gathered
    only in the unit that a forward or backward pass is in. Gradients are sums over the ranks, not means, because each
    rank's loss is already its share of the whole. With `offload` the shards and their gradients are in main memory.
    """
    model = cast(PreTrainedModel, predictor.model)
    device = torch.device(mesh.device_type)
    policy: dict[str, Any] = {"mp_policy": MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)}
    if offload:
        policy["offload_policy"] = CPUOffloadPolicy(pin_memory=device.type == "cuda")
    embedding, head = model.get_input_embeddings(), get_head(model)
    units: list[nn.Module] = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    if head.weight is not embedding.weight and hasattr(head, "predict"):
        units += [embedding, head]
    for unit in units:
        fully_shard(unit, mesh=mesh, **policy)
    fully_shard(predictor, mesh=mesh, **policy, reshard_after_forward=True)
    for module in predictor.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)  # gloo supports no other reduction that does not divide
    register_fsdp_forward_method(predictor, "compute_plain")
    register_fsdp_forward_method(head, "predict")
    materialize(model, torch.device("cpu") if offload else device)
    for module in model.modules():
        for name, buffer in module._buffers.items():
            module._buffers[name] = None if buffer is None else buffer.to(device)


def set_gradient_sync(predictor: nn.Module, is_due: bool) -> None:
    """Let the next backward pass add up the gradients of all ranks, or only keep this rank's.

    Kept gradients are whole and float32. No effect if the model is not sharded.
    """
    if isinstance(predictor, FSDPModule):
        predictor.set_requires_gradient_sync(is_due)


def make_whole(tensor: Tensor) -> Tensor:
    """Gather a tensor from all ranks. A tensor that is not sharded is returned unchanged."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def get_local(tensor: Tensor) -> Tensor:
    """Return this rank's shard of a tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


@torch.no_grad()
def scatter_weights(model: PreTrainedModel, weights: Mapping[str, Tensor] | None) -> None:
    """Set the shards on all ranks from rank 0's whole `weights`, by name. `weights` is None on other ranks.

    Only one tensor at a time is whole on a device.
    """
    for name, tensor in get_weights(model).items():
        whole = torch.empty(tensor.shape) if weights is None else weights[name]
        whole = whole.to(tensor.device, tensor.dtype)
        if isinstance(tensor, DTensor):
            tensor.copy_(distribute_tensor(whole, tensor.device_mesh, tensor.placements))
        else:  # buffers are not sharded
            dist.broadcast(whole, 0)
            tensor.copy_(whole)


def gather_weights(weights: Iterable[tuple[str, Tensor]], copies: HostCopies) -> dict[str, Tensor]:
    """Return `copies` of whole weights by name in rank 0's main memory.

    Other ranks get an empty dict. If `weights` gathers them one by one, only one tensor at a time is whole on a device.
    """
    is_first, kept = not is_shared() or dist.get_rank() == 0, {}
    for name, whole in weights:
        if is_first:
            kept[name] = copies.copy(f"policy/{name}", whole)
    copies.finish()
    return kept


def is_shared() -> bool:
    """Return whether this process is one of several ranks."""
    return dist.is_available() and dist.is_initialized()
