"""The last hidden states of the running requests, at most one window of each; a full window leaves its top behind."""

from collections.abc import Sequence

import torch

from covey.toploc.tensors import find_tops
from covey.toploc.tops import Capture, Top


class States:
    """Holds `requests` windows from the start; more only where preempted requests wait with a part of one."""

    def __init__(self, capture: Capture, requests: int, longest: int) -> None:
        self._capture, self._requests = capture, requests
        self._room = min(capture.window, longest)
        self._held: torch.Tensor | None = None
        """bfloat16[places, window, hidden], where the states are."""
        self._free: list[int] = []
        self._places: dict[int, int] = {}
        self._rows: dict[int, int] = {}
        """Of each request's unfinished window, below `Capture.window`."""
        self._tops: dict[int, list[Top]] = {}

    def add_each(self, keys: Sequence[int], states: torch.Tensor) -> None:
        """The next state of each of `keys`, [n, hidden]."""
        window, counts = self._capture.window, self._rows
        places = [self._get_place(key, states) for key in keys]
        rows = [counts[key] for key in keys]
        assert self._held is not None
        index = torch.tensor([places, rows], device=states.device)
        self._held[index[0], index[1]] = states.to(torch.bfloat16)
        full = []
        for key in keys:
            counts[key] += 1
            if counts[key] == window:
                full.append(key)
        if full:
            at = torch.tensor([self._places[key] for key in full], device=states.device)
            self._close(full, self._held[at].flatten(0, 1), [window] * len(full))

    def add_run(self, key: int, states: torch.Tensor) -> None:
        """The next states of one request, [n, hidden]."""
        window, place = self._capture.window, self._get_place(key, states)
        assert self._held is not None
        held = self._rows[key]
        if held + len(states) >= window:
            whole = torch.cat([self._held[place, :held], states.to(torch.bfloat16)])
            count = len(whole) // window
            self._close([key], whole[: count * window], [count * window])
            held, states = 0, whole[count * window :]
        self._held[place, held : held + len(states)] = states
        self._rows[key] = held + len(states)

    def finish(self, key: int) -> None:
        """No more states of this request come: the rest is its last window."""
        rows = self._rows.get(key, 0)
        if rows:
            assert self._held is not None
            self._close([key], self._held[self._places[key], :rows], [rows])
        tops = self._tops.get(key)
        self.drop(key)
        if tops is not None:
            self._tops[key] = tops

    def drop(self, key: int) -> None:
        """Forget what came of this request."""
        self._rows.pop(key, None)
        self._tops.pop(key, None)
        if key in self._places:
            self._free.append(self._places.pop(key))

    def pop_tops(self, key: int) -> list[Top]:
        """One a window of a finished request."""
        return self._tops.pop(key, [])

    def _close(self, keys: Sequence[int], states: torch.Tensor, lengths: list[int]) -> None:
        for key, tops in zip(keys, find_tops(states, lengths, self._capture), strict=True):
            self._tops.setdefault(key, []).extend(tops)
            self._rows[key] = 0

    def _get_place(self, key: int, states: torch.Tensor) -> int:
        if key not in self._places:
            if not self._free:
                more = states.new_empty(self._requests, self._room, states.shape[1], dtype=torch.bfloat16)
                first = 0 if self._held is None else len(self._held)
                self._held = more if self._held is None else torch.cat([self._held, more])
                self._free = list(range(first, len(self._held)))[::-1]
            self._places[key], self._rows[key] = self._free.pop(), 0
        return self._places[key]
