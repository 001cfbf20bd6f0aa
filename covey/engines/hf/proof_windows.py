"""Collects the hidden states of a decoding batch in windows. A full window is reduced to its top values."""

import numpy as np
import torch
from numpy.typing import NDArray

from covey.toploc.topk import Capture, Top
from covey.toploc.topk_torch import find_tops


class Windows:
    """The current window of every request, and the top values of earlier windows.

    The windows take requests x window x hidden bfloat16 values on the device of the states.
    """

    def __init__(self, requests: int, longest: int, capture: Capture | None) -> None:
        self._capture = capture
        self._room = min(longest, capture.window if capture else 0)
        self._rows = 0
        """Number of rows in the current windows. All requests start together, so their windows fill together."""
        self._states: torch.Tensor | None = None
        self._tops: list[list[Top]] = [[] for _ in range(requests)]

    def add(
        self, states: torch.Tensor, places: NDArray[np.int64], live: NDArray[np.int64], stays: NDArray[np.bool_]
    ) -> None:
        """Add the states of one token per running request.

        `states` is [distinct, hidden]. `live`, int64[n], contains the indices of the running requests. `places`,
        int64[n], contains the row of each request in `states`, and `stays`, bool[n], whether it continues after this
        token.
        """
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
            new_tops = find_tops(windows.flatten(0, 1), [self._rows] * done.size, self._capture)
            for request, tops in zip(live[done].tolist(), new_tops, strict=True):
                self._tops[request] += tops
        if is_full:
            self._rows = 0

    def get_tops(self, request: int) -> tuple[Top, ...]:
        """Return the top values of a request, one `Top` per window. Empty if nothing is captured."""
        return tuple(self._tops[request])
