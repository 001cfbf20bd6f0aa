"""The states of a batch that decodes, a window of each request at a time, for `hf`: a full one leaves its top."""

import numpy as np
import torch
from numpy.typing import NDArray

from covey.toploc.topk import Capture, Top
from covey.toploc.topk_torch import find_tops


class Windows:
    """Holds requests x window x hidden values of bfloat16 where the states are, and the tops so far."""

    def __init__(self, requests: int, longest: int, capture: Capture | None) -> None:
        self._capture = capture
        self._room = min(longest, capture.window if capture else 0)
        self._rows = 0
        """Of the current window; all requests start together, so their windows fill together."""
        self._states: torch.Tensor | None = None
        self._tops: list[list[Top]] = [[] for _ in range(requests)]

    def add(
        self, states: torch.Tensor, places: NDArray[np.int64], live: NDArray[np.int64], stays: NDArray[np.bool_]
    ) -> None:
        """One token's states, [distinct, hidden], of which those at `places`, int64[n], are the requests' `live`,
        int64[n], and whether each of them goes on."""
        if self._capture is None:
            return
        if self._states is None:
            self._states = states.new_empty(len(self._tops), self._room, states.shape[1], dtype=torch.bfloat16)
        device = states.device
        self._states[torch.from_numpy(live).to(device), self._rows] = states.to(torch.bfloat16)[places]
        self._rows += 1
        is_full = self._rows == self._room
        done = np.flatnonzero(~stays | is_full)
        if done.size:
            windows = self._states[torch.from_numpy(live[done]).to(device), : self._rows]
            found = find_tops(windows.flatten(0, 1), [self._rows] * done.size, self._capture)
            for request, tops in zip(live[done].tolist(), found, strict=True):
                self._tops[request] += tops
        if is_full:
            self._rows = 0

    def get_tops(self, request: int) -> tuple[Top, ...]:
        """One a window; nothing if nothing is captured."""
        return tuple(self._tops[request])
