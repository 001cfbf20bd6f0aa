"""Searches the top values on the device of the hidden states, so that only k values per window leave a GPU.

`proofs.build_many` and `proofs.compare_many` take the results. They equal the canonical top values of
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
    """Return the top values of every window of each completion.

    `states`, [rows, hidden], contains the completions in sequence, and `lengths` the number of rows of each. States are
    rounded to bfloat16. On a CPU the compiled search is used, because it is faster.
    """
    if states.device.type != "cpu":
        return compute_tops_tensor(states, lengths, capture)
    bits = states.to(torch.bfloat16).contiguous().view(torch.uint16).numpy()
    ends = np.cumsum(lengths, dtype=int).tolist()
    return proofs.find_tops([bits[end - n : end] for n, end in zip(lengths, ends, strict=True)], capture)


def compute_tops_tensor(states: torch.Tensor, lengths: Sequence[int], capture: Capture) -> list[tuple[Top, ...]]:
    """Compute the same result as `find_tops` with torch alone, on any device.

    Windows of equal size are searched together.
    """
    states, places = states.to(torch.bfloat16), dict[int, list[tuple[int, int]]]()
    for c, (n, end) in enumerate(zip(lengths, np.cumsum(lengths, dtype=int).tolist(), strict=True)):
        for start in range(end - n, end, capture.window):
            places.setdefault(min(capture.window, end - start), []).append((c, start))
    # Larger windows come first, because the short window of a completion is its last.
    groups, found = sorted(places.items(), reverse=True), list[torch.Tensor]()
    for rows, windows in groups:
        starts = torch.tensor([start for _, start in windows], device=states.device)
        values = states[starts[:, None] + torch.arange(rows, device=states.device)].flatten(1)
        found.append(_find_top(values, proofs.compute_k(rows, states.shape[1], capture.top_k)))
    tops: list[list[Top]] = [[] for _ in lengths]
    for (_, windows), top in zip(groups, _fetch(found), strict=True):
        for (c, _), indices, bits in zip(windows, *top, strict=True):
            tops[c].append(Top(indices=indices, bits=bits))
    return [tuple(each) for each in tops]


def compute_top_tensor(windows: torch.Tensor, k: int) -> tuple[NDArray[np.int64], NDArray[np.uint16]]:
    """Return the indices int64[n, k] and the bits uint16[n, k] of the k values of largest magnitude in each window.

    `windows` is bfloat16[n, values of a window], on any device. Indices ascend in each row, and ties go to the lower
    index. Raises ValueError for a different type, or if k is not 1 .. values of a window.
    """
    if windows.dtype != torch.bfloat16 or windows.ndim != 2 or not 1 <= k <= windows.shape[1]:
        raise ValueError(f"windows are {windows.dtype}{tuple(windows.shape)}, but must be bfloat16[n, at least {k}]")
    ((indices, bits),) = _fetch([_find_top(windows, k)])
    return indices, bits


def _find_top(windows: torch.Tensor, k: int) -> torch.Tensor:
    """Return the indices of the k largest magnitudes of each window and their bits, int64[2, n, k], on the device."""
    bits = windows.contiguous().view(torch.int16)
    magnitudes = bits & _LOW
    # torch.topk does not define the order of ties. It therefore gives only the level, and ties are chosen by counting.
    level = magnitudes.topk(k, dim=1, sorted=True).values[:, -1:]
    above, equal = magnitudes > level, magnitudes == level
    room = k - above.sum(dim=1, keepdim=True)
    taken = above | (equal & (equal.cumsum(dim=1, dtype=torch.int32) <= room))
    # The number of results is known, so the host need not wait for it.
    indices = torch.nonzero_static(taken, size=len(windows) * k)[:, 1].reshape(len(windows), k)
    return torch.stack([indices, bits.gather(1, indices).long()])


def _fetch(found: Sequence[torch.Tensor]) -> list[tuple[NDArray[np.int64], NDArray[np.uint16]]]:
    """Copy results of `_find_top` from their device, all at once."""
    if not found:
        return []
    flat = torch.cat([each.flatten() for each in found]).cpu().numpy()
    parts = np.split(flat, np.cumsum([each.numel() for each in found])[:-1])
    both = (part.reshape(each.shape) for part, each in zip(parts, found, strict=True))
    return [(indices, bits.astype(np.int16).view(np.uint16)) for indices, bits in both]
