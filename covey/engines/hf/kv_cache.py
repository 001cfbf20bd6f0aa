"""A KV cache for decoding whose buffers grow in blocks, so that a step writes only its own keys and values.

transformers' `DynamicCache` copies the whole cache for each token, and again whenever a sequence ends.
"""

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache, PretrainedConfig
from transformers.cache_utils import DynamicLayer

BLOCK = 256
"""Number of tokens by which a buffer grows. A larger block copies less often and leaves more memory unused."""


class BlockLayer(DynamicLayer):  # type: ignore[no-untyped-call]
    """Keys and values of a layer with full attention, at most `most_rows` sequences.

    `keys` and `values`, [rows, heads, tokens, width], are views of larger buffers.
    """

    def __init__(self, most_rows: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._most_rows = most_rows
        self._buffers: list[Tensor] = []
        """Buffers of the keys and of the values. Empty before the first token."""

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Add keys and values of the next tokens, [rows, heads, n, width], and return those of all tokens."""
        states, start = (key_states, value_states), self.get_seq_length()
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self._buffers = [each.new_empty(0, each.shape[1], 0, each.shape[3]) for each in states]
        rows, end = len(key_states), start + key_states.shape[2]
        self._view(rows, end)
        for buffer, added in zip(self._buffers, states, strict=True):
            buffer[:rows, :, start:end] = added
        return cast(Tensor, self.keys), cast(Tensor, self.values)

    def move(self, sources: Tensor, targets: Tensor, rows: int) -> None:
        """Copy the sequences in the rows `sources` to the rows `targets`, int64[m] each, and keep the first `rows`.

        No row is both a source and a target.
        """
        if not self.is_initialized:  # the layer uses the keys and values of another one
            return
        tokens = self.get_seq_length()
        self._view(rows, tokens)
        for buffer in self._buffers:
            states = buffer[:, :, :tokens]
            states[targets] = states[sources]

    def _view(self, rows: int, tokens: int) -> None:
        """Set `keys` and `values` to the first `rows` sequences and `tokens` tokens of buffers with enough room."""
        held, _, room, _ = self._buffers[0].shape
        if rows > held or tokens > room:
            if rows > held:  # Siblings separate one after another, and each time everything would be copied.
                held = max(rows, min(2 * held, self._most_rows))
            room = max(room, -(-tokens // BLOCK) * BLOCK)
            self._buffers = [self._enlarge(buffer, held, room) for buffer in self._buffers]
        self.keys, self.values = (buffer[:rows, :, :tokens] for buffer in self._buffers)

    def _enlarge(self, buffer: Tensor, rows: int, tokens: int) -> Tensor:
        larger = buffer.new_empty(rows, buffer.shape[1], tokens, buffer.shape[3])
        larger[: buffer.shape[0], :, : buffer.shape[2]] = buffer
        return larger


class BlockCache(DynamicCache):
    """transformers' cache with a `BlockLayer` for each layer with full attention.

    Layers with a sliding window, and recurrent layers, hold little and stay as they are.
    """

    def __init__(self, config: PretrainedConfig, most_rows: int) -> None:
        super().__init__(config=config)
        self.layers = [BlockLayer(most_rows) if type(each) is DynamicLayer else each for each in self.layers]

    def rearrange(self, rows: Sequence[int], device: torch.device) -> Tensor:
        """Keep the sequences in `rows`, in this order, and return `rows` on the device. A row may occur more than once.

        A `BlockLayer` copies only sequences whose row changes. `keep_rows` arranges `rows` as it requires.
        """
        index = cast(torch.LongTensor, torch.tensor(rows, device=device))
        changed = torch.from_numpy(np.flatnonzero(np.arange(len(rows)) != rows)).to(device)
        for layer in self.layers:
            if isinstance(layer, BlockLayer):
                layer.move(index[changed], changed, len(rows))
            else:
                layer.reorder_cache(index)  # also reorders the states of recurrent layers
        return index


def keep_rows(sources: Sequence[int]) -> list[int]:
    """Return a new row for each sequence, given its old row. If an old row is still a row, one sequence keeps it.

    Example: sources [1, 1, 3] give [1, 0, 2], so that the rows 0 and 2 are copies of the old rows 1 and 3.
    """
    rows, free = dict[int, int](), set(range(len(sources)))
    for place, source in enumerate(sources):
        if source in free:
            rows[place] = source
            free.remove(source)
    others = iter(sorted(free))
    return [rows[place] if place in rows else next(others) for place in range(len(sources))]
