"""Offloading to main memory: master weights with their moments, and activations.

Values do not change on the way, so that policies are the same with and without it.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.distributed.tensor import DTensor
from torch.nn import Parameter

MIN_BYTES = 1024
"""Size in bytes below which an activation stays on the device, because a copy would take longer than it saves."""


class HostMasters:
    """Master weights in main memory, where they are also updated. The device has copies during an update.

    Gradients are summed on the device in float32, and copied to main memory once per update.
    """

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        """Keep the trained weights of a model in main memory, and move the rest of it to the device."""
        self._device, self._is_pinned = device, device.type == "cuda"
        self._gradients: dict[int, Tensor] = {}
        self._buffers: dict[int, Tensor] = {}
        """Buffers in main memory for gradients, which are kept from update to update."""
        for module in model.modules():
            for parameter in module._parameters.values():
                if parameter is not None:
                    self._place(parameter)
            for name, buffer in module._buffers.items():
                module._buffers[name] = None if buffer is None else buffer.to(device)

    def _place(self, parameter: Parameter) -> None:
        if not parameter.requires_grad:
            parameter.data = parameter.data.to(self._device)
        elif self._is_pinned and not parameter.is_pinned():
            parameter.data = parameter.data.pin_memory()

    def upload(self, master: Tensor, dtype: torch.dtype) -> Tensor:
        """Return a copy of a master weight on the device. Its gradient is kept for `collect`."""
        copy: Tensor = _Upload.apply(master, dtype, self._device, self._gradients)  # type: ignore[no-untyped-call]
        return copy

    def collect(self, masters: Iterable[Parameter]) -> None:
        """Set `grad` of the masters to the sums of the gradients of their copies."""
        for master in masters:
            gradient = self._gradients.pop(id(master), None)
            if gradient is not None and gradient.device != master.device:
                if id(master) not in self._buffers:  # pinning memory takes longer than the copy
                    self._buffers[id(master)] = torch.empty_like(master, pin_memory=self._is_pinned)
                gradient = self._buffers[id(master)].copy_(gradient, non_blocking=True)
            master.grad = gradient
        if self._is_pinned:
            torch.cuda.synchronize(self._device)


class _Upload(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, master: Tensor, dtype: torch.dtype, device: torch.device, gradients: dict[int, Tensor]
    ) -> Tensor:
        ctx.key, ctx.dtype, ctx.gradients = id(master), master.dtype, gradients
        return master.to(device, dtype, non_blocking=True)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None, None, None]:
        if (total := ctx.gradients.get(ctx.key)) is None:
            ctx.gradients[ctx.key] = gradient.to(ctx.dtype, copy=True)
        else:
            total += gradient
        return None, None, None, None


@contextmanager
def offload_activations(model: nn.Module) -> Iterator[None]:
    """Keep in main memory what a forward pass in the context saves for its backward pass, except weights."""
    weights = {_find_storage(each) for each in model.parameters() if not isinstance(each, DTensor)}

    def is_weight(tensor: Tensor) -> bool:  # FSDP gathers its weights again, and they are no parameters of the model
        return isinstance(tensor, Parameter) or isinstance(tensor._base, Parameter) or _find_storage(tensor) in weights

    def pack(tensor: Tensor) -> tuple[Tensor, torch.device | None]:
        if tensor.nbytes < MIN_BYTES or is_weight(tensor):
            return tensor, None
        host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
        return host.copy_(tensor, non_blocking=True), tensor.device

    def unpack(packed: tuple[Tensor, torch.device | None]) -> Tensor:
        tensor, device = packed  # copies of one stream are in order, so that none has to be waited for
        return tensor if device is None else tensor.to(device, non_blocking=True)

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        yield


def _find_storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
