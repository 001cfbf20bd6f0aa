"""The top values of windows of hidden states where the states are, so that only k values a window leave a GPU.

Called by engines; `proofs.build_many` and `proofs.compare_many` take what comes back.  Equal to the canonical top of
`proofs.compute_top`.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from covey.toploc import proofs
from covey.toploc.topk import Capture, Top

_LOW = 0x7FFF


def find_tops(states: torch.Tensor, lengths: Sequence[int], capture: Capture) -> list[tuple[Top, ...]]:
    """The tops of completions whose rows, so many as `lengths` says, follow each other in `states`, [rows, hidden].

    States are rounded to bfloat16.  On a CPU the compiled search is the faster one.
    """
    if states.device.type != "cpu":
        return compute_tops_tensor(states, lengths, capture)
    bits = states.to(torch.bfloat16).contiguous().view(torch.uint16).numpy()
    ends = np.cumsum(lengths, dtype=int).tolist()
    return proofs.find_tops([bits[end - n : end] for n, end in zip(lengths, ends, strict=True)], capture)


def compute_tops_tensor(states: torch.Tensor, lengths: Sequence[int], capture: Capture) -> list[tuple[Top, ...]]:
    """`find_tops` by torch alone, on any device; all windows of as many rows are searched together."""
    states, places = states.to(torch.bfloat16), dict[int, list[tuple[int, int]]]()
    for c, (n, end) in enumerate(zip(lengths, np.cumsum(lengths, dtype=int).tolist(), strict=True)):
        for start in range(end - n, end, capture.window):
            places.setdefault(min(capture.window, end - start), []).append((c, start))
    tops: list[list[Top]] = [[] for _ in lengths]
    # Whole windows first: the short one is a completion's last.
    for rows, windows in sorted(places.items(), reverse=True):
        starts = torch.tensor([start for _, start in windows], device=states.device)
        values = states[starts[:, None] + torch.arange(rows, device=states.device)].flatten(1)
        found = compute_top_tensor(values, proofs.compute_k(rows, states.shape[1], capture.top_k))
        for (c, _), indices, bits in zip(windows, *found, strict=True):
            tops[c].append(Top(indices=indices, bits=bits))
    return [tuple(each) for each in tops]


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
