"""The seeded sampler as a vLLM logits processor: greedy decoding then takes the token that our noise chose.

vLLM makes one for each worker.  A request names its seed and temperature in `SamplingParams.extra_args`; one without
them is left alone.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor, MoveDirectionality

from covey.sampling.sampler import sample

SEED, TEMPERATURE = "covey_seed", "covey_temperature"


@dataclass(frozen=True, slots=True)
class _Slot:
    seed: int
    temperature: float
    tokens: list[int]
    """Those generated so far: vLLM's own list, which it appends to, so that its length is the position."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Group:
    """All rows of one temperature."""

    temperature: float
    rows: torch.Tensor
    seeds: NDArray[np.uint64]
    tokens: list[list[int]]


class SeededSampler(LogitsProcessor):  # type: ignore[misc]  # vLLM need not be installed where types are checked
    """Sets the logit of each request's token to infinity.

    The race of all tokens computes little of the noise, so there are no noisy logits to give back.  Log-probabilities
    are taken from the logits before this; see `recorder`.
    """

    @classmethod
    def validate_params(cls, sampling_params: Any) -> None:
        """Raise ValueError for a seed that the noise does not know."""
        seed = (sampling_params.extra_args or {}).get(SEED)
        if seed is not None and not (isinstance(seed, int) and 0 <= seed < 2**63):
            raise ValueError(f"{SEED} is an integer from 0 to 2**63 - 1, not {seed!r}")

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        self._device = device
        self._slots: dict[int, _Slot] = {}
        """By row of the batch."""
        self._groups: list[_Group] = []

    def is_argmax_invariant(self) -> bool:
        """No: it shall run for greedy requests."""
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Follow the requests through the rows: removed, then added, then moved, as vLLM's interface says."""
        if batch_update is None:
            return
        for row in batch_update.removed:
            self._slots.pop(row, None)
        for row, params, _, tokens in batch_update.added:
            self._slots.pop(row, None)
            extra = params.extra_args or {}
            if SEED in extra:
                self._slots[row] = _Slot(extra[SEED], float(extra[TEMPERATURE]), tokens)
        for first, second, direction in batch_update.moved:
            moved, replaced = self._slots.pop(first, None), self._slots.pop(second, None)
            if moved is not None:
                self._slots[second] = moved
            if replaced is not None and direction == MoveDirectionality.SWAP:
                self._slots[first] = replaced
        # Most steps change nothing, so what they share is made here.
        self._groups = [self._build_group(each) for each in {slot.temperature for slot in self._slots.values()}]

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """`logits`: float32[rows, V], changed in place."""
        for group in self._groups:
            positions = np.array([len(each) for each in group.tokens], np.uint32)
            chosen = logits if len(positions) == len(logits) else logits[group.rows]
            tokens = sample(chosen, group.seeds, positions, group.temperature).to(logits.device)
            logits[group.rows, tokens] = float("inf")
        return logits

    def _build_group(self, temperature: float) -> _Group:
        rows = sorted(row for row, slot in self._slots.items() if slot.temperature == temperature)
        slots = [self._slots[row] for row in rows]
        return _Group(
            temperature=temperature,
            rows=torch.tensor(rows, device=self._device),
            seeds=np.array([slot.seed for slot in slots], np.uint64),
            tokens=[slot.tokens for slot in slots],
        )
