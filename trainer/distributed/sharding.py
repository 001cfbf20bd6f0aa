"""A learner's tensors in shards: FSDP2 over all ranks.

Called by `learner`, `checkpoint` and `storage`.  Every rank calls each function at the same time.
"""

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
    """Raise OperatorError("unsupported_ranks") where what is configured does not run on several ranks."""
    if ranks.is_shared and lora_rank is not None:
        raise OperatorError(
            "unsupported_ranks",
            "adapters do not train on several ranks",
            fix="Leave lora_rank out, or start one process without torchrun",
        )


def shard(predictor: nn.Module, mesh: DeviceMesh) -> None:
    """In place: each layer for itself, and what is left (embedding, last norm, head) for itself.

    They go to the mesh's device one by one, from wherever they are.  Weights are whole only where a forward or backward
    pass is.  Gradients are sums over the ranks, not means: each rank's loss already is its share of the whole.
    """
    for module in predictor.modules():
        if isinstance(module, GradientCheckpointingLayer):
            fully_shard(module, mesh=mesh)
    fully_shard(predictor, mesh=mesh, reshard_after_forward=True)
    for module in predictor.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)  # gloo knows no other reduction that does not divide


def make_whole(tensor: Tensor) -> Tensor:
    """Gathered from all ranks; a tensor that is no shard itself."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def get_local(tensor: Tensor) -> Tensor:
    """This rank's part."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


@torch.no_grad()
def scatter_weights(model: PreTrainedModel, weights: Mapping[str, Tensor] | None) -> None:
    """Make the shards those of whole `weights` by name, which rank 0 has; None elsewhere.

    One is whole on a device at a time.
    """
    for name, tensor in get_weights(model).items():
        whole = torch.empty(tensor.shape) if weights is None else weights[name]
        whole = whole.to(tensor.device, tensor.dtype)
        if isinstance(tensor, DTensor):
            tensor.copy_(distribute_tensor(whole, tensor.device_mesh, tensor.placements))
        else:  # a buffer is in no shards
            dist.broadcast(whole, 0)
            tensor.copy_(whole)


@torch.no_grad()
def gather_weights(model: PreTrainedModel, dtype: torch.dtype) -> dict[str, Tensor]:
    """The weights by name in memory of rank 0, cast to `dtype`; none elsewhere.  One is whole on a device at a time."""
    is_first, found = not is_shared() or dist.get_rank() == 0, {}
    for name, tensor in get_weights(model).items():
        whole = make_whole(tensor.detach().to(dtype))
        if is_first:
            found[name] = whole.cpu()
    return found


def is_shared() -> bool:
    """Whether this process is one of several ranks."""
    return dist.is_available() and dist.is_initialized()
