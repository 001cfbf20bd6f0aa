"""The top values of windows of hidden states where the states are, so that only k values a window leave a GPU.

Called by engines; `proofs.build_from_top` and `proofs.compare_top` take what comes back.  Equal to the canonical top
of `proofs.compute_top`.
"""

import numpy as np
import torch
from numpy.typing import NDArray

_LOW = 0x7FFF


def compute_top_tensor(windows: torch.Tensor, k: int) -> tuple[NDArray[np.int64], NDArray[np.uint16]]:
    """Indices int64[n, k], ascending in each row, and bits uint16[n, k] of the values of largest magnitude.

    `windows`: bfloat16[n, values of a window] on any device.  Ties go to the lower index.  Raises ValueError for
    another type or a k that is not 1 .. values of a window.
    """
    if windows.dtype != torch.bfloat16 or windows.ndim != 2 or not 1 <= k <= windows.shape[1]:
        raise ValueError(f"windows are bfloat16[n, at least {k}], not {windows.dtype}{tuple(windows.shape)}")
    bits = windows.contiguous().view(torch.int16)
    magnitudes = bits & _LOW
    # topk of a tensor says nothing about ties, so it only tells the level; places among equals come from counting.
    level = magnitudes.topk(k, dim=1, sorted=True).values[:, -1:]
    above, equal = magnitudes > level, magnitudes == level
    room = k - above.sum(dim=1, keepdim=True)
    taken = above | (equal & (equal.cumsum(dim=1, dtype=torch.int32) <= room))
    indices = taken.nonzero()[:, 1].reshape(len(windows), k)
    values = bits.gather(1, indices)
    return indices.cpu().numpy(), values.cpu().numpy().view(np.uint16)
