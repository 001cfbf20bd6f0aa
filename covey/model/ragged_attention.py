"""Whether torch's attention kernel for sequences of different lengths runs on a device."""

import torch

_DTYPES = (torch.bfloat16, torch.float16)
_CAPABILITY = (8, 0)
"""Least compute capability of a GPU: that of an A100."""
_MAX_WIDTH = 256
"""Maximum width of an attention head."""


def has_ragged_kernel(device: torch.device, dtype: torch.dtype, width: int) -> bool:
    """Return whether `torch.nn.attention.varlen` computes heads of `width` values in `dtype` on a device."""
    if device.type != "cuda" or dtype not in _DTYPES or width > _MAX_WIDTH or width % 8:
        return False
    return torch.cuda.get_device_capability(device) >= _CAPABILITY
