"""Shards a learner's tensors with FSDP2 over all ranks. Every rank calls each function at the same time."""

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from covey.errors import OperatorError
from covey.model.policy_files import get_weights
from trainer.distributed.ranks import Ranks


def require_shardable(ranks: Ranks, *, lora_rank: int | None) -> None:
    """Raise OperatorError("unsupported_ranks") if the settings do not support several ranks."""
    if ranks.is_shared and lora_rank is not None:
        raise OperatorError(
            "unsupported_ranks",
            "LoRA adapters cannot be trained on several ranks",
            fix="Remove lora_rank from the settings, or start one process without torchrun",
        )


def shard(predictor: nn.Module, mesh: DeviceMesh) -> None:
    """Shard a model in place. Each layer is one unit, and the rest (embedding, last norm, head) is another one.

    The units move to the mesh's device one by one. Weights are gathered only in the unit that a forward or backward
    pass is in. Gradients are sums over the ranks, not means, because each rank's loss is already its share of the
    whole.
    """
    for module in predictor.modules():
        if isinstance(module, GradientCheckpointingLayer):
            fully_shard(module, mesh=mesh)
    fully_shard(predictor, mesh=mesh, reshard_after_forward=True)
    for module in predictor.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)  # gloo supports no other reduction that does not divide


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


@torch.no_grad()
def gather_weights(model: PreTrainedModel, dtype: torch.dtype) -> dict[str, Tensor]:
    """Return the weights by name in rank 0's main memory, converted to `dtype`. Other ranks get an empty dict.

    Only one tensor at a time is whole on a device.
    """
    is_first, weights = not is_shared() or dist.get_rank() == 0, {}
    for name, tensor in get_weights(model).items():
        whole = make_whole(tensor.detach().to(dtype))
        if is_first:
            weights[name] = whole.cpu()
    return weights


def is_shared() -> bool:
    """Return whether this process is one of several ranks."""
    return dist.is_available() and dist.is_initialized()
