"""The last hidden states of running requests, at most one window each. A full window is reduced to its top values."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from covey.toploc.topk import Capture, Top
from covey.toploc.topk_torch import find_tops


class States:
    """Windows of hidden states, and the top values of full windows, by request.

    The first state allocates room for `requests` windows. More room is allocated only if preempted requests keep
    unfinished windows.
    """

    def __init__(self, capture: Capture, requests: int, longest: int) -> None:
        self._capture, self._requests = capture, requests
        self._room = min(capture.window, longest)
        self._held: torch.Tensor | None = None
        """Unfinished windows, bfloat16[places, window, hidden], on the device of the states.

        None before the first state.
        """
        self._free: list[int] = []
        """Unused indices into the first dimension of `_held`."""
        self._places: dict[int, int] = {}
        """Index of each request's window in `_held`, by key."""
        self._rows: NDArray[np.int64] = np.zeros(0, np.int64)
        """Number of rows in each unfinished window, below `Capture.window`."""
        self._tops: dict[int, list[Top]] = {}
        """Top values of the finished windows, by key."""
        self._batch: list[int] = []
        """Keys of the previous call of `add_each`."""
        self._at: NDArray[np.int64] = np.zeros(0, np.int64)
        """Indices of the windows of `_batch`. They are cached, because the next batch usually has the same keys."""

    def add_each(self, keys: Sequence[int], states: torch.Tensor) -> None:
        """Add the next state of each of `keys`. `states` is [n, hidden]."""
        if keys != self._batch:
            self._batch, self._at = list(keys), np.array([self._get_place(key, states) for key in keys])
        at, window, device = self._at, self._capture.window, states.device
        assert self._held is not None
        rows = torch.from_numpy(at * self._room + self._rows[at]).to(device, non_blocking=True)
        self._held.flatten(0, 1).index_copy_(0, rows, states.to(torch.bfloat16))
        self._rows[at] += 1
        full = np.flatnonzero(self._rows[at] == window)
        if len(full):
            whole = self._held[torch.from_numpy(at[full]).to(device, non_blocking=True)].flatten(0, 1)
            self._close([keys[i] for i in full.tolist()], whole, [window] * len(full))

    def add_run(self, key: int, states: torch.Tensor) -> None:
        """Add the next states of one request. `states` is [n, hidden]."""
        window, place = self._capture.window, self._get_place(key, states)
        assert self._held is not None
        filled = int(self._rows[place])
        if filled + len(states) >= window:
            whole = torch.cat([self._held[place, :filled], states.to(torch.bfloat16)])
            count = len(whole) // window
            self._close([key], whole[: count * window], [count * window])
            filled, states = 0, whole[count * window :]
        self._held[place, filled : filled + len(states)] = states
        self._rows[place] = filled + len(states)

    def finish(self, key: int) -> None:
        """Close the last window of a request that gets no more states."""
        place = self._places.get(key)
        if place is not None and self._rows[place]:
            assert self._held is not None
            rows = int(self._rows[place])
            self._close([key], self._held[place, :rows], [rows])
        tops = self._tops.get(key)
        self.drop(key)
        if tops is not None:
            self._tops[key] = tops

    def drop(self, key: int) -> None:
        """Remove the states and top values of a request."""
        self._batch = []
        self._tops.pop(key, None)
        if key in self._places:
            self._free.append(self._places.pop(key))

    def pop_tops(self, key: int) -> list[Top]:
        """Remove and return the top values of a finished request, one `Top` per window."""
        return self._tops.pop(key, [])

    def _close(self, keys: Sequence[int], states: torch.Tensor, lengths: list[int]) -> None:
        for key, tops in zip(keys, find_tops(states, lengths, self._capture), strict=True):
            self._tops.setdefault(key, []).extend(tops)
            self._rows[self._places[key]] = 0

    def _get_place(self, key: int, states: torch.Tensor) -> int:
        if key not in self._places:
            if not self._free:
                more = states.new_empty(self._requests, self._room, states.shape[1], dtype=torch.bfloat16)
                first = 0 if self._held is None else len(self._held)
                self._held = more if self._held is None else torch.cat([self._held, more])
                self._rows = np.append(self._rows, np.zeros(self._requests, np.int64))
                self._free = list(range(first, len(self._held)))[::-1]
            self._places[key] = self._free.pop()
            self._rows[self._places[key]] = 0
        return self._places[key]
