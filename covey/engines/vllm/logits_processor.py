"""The seeded sampler as a vLLM logits processor. Greedy decoding then selects the token that Covey's noise determines.

vLLM creates one processor per worker. A request has its seed and temperature in `SamplingParams.extra_args`. Requests
without them are unchanged.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor, MoveDirectionality

from covey.sampling.sampler import sample

SEED, TEMPERATURE = "covey_seed", "covey_temperature"


@dataclass(frozen=True, slots=True)
class _Slot:
    seed: int
    temperature: float
    tokens: list[int]
    """Tokens generated so far. This is vLLM's own list, which grows. Its length is the position of the next token."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Group:
    """All rows of the batch with the same temperature."""

    temperature: float
    rows: torch.Tensor
    """Indices of the rows in the batch, int64[n]."""
    seeds: torch.Tensor
    """Seed of each row, int64[n] on the device of the logits."""
    tokens: list[list[int]]
    """vLLM's list of generated tokens of each row."""


class SeededSampler(LogitsProcessor):  # type: ignore[misc]  # vLLM need not be installed where types are checked
    """A logits processor that sets the logit of each request's sampled token to infinity.

    The sampler computes only a little of the noise, so there are no noisy logits to return. It also finds the
    log-probabilities of the sampled tokens, which the `recorder` keeps.
    """

    @classmethod
    def validate_params(cls, sampling_params: Any) -> None:
        """Raise ValueError if a seed is not an integer from 0 to 2**63 - 1."""
        seed = (sampling_params.extra_args or {}).get(SEED)
        if seed is not None and not (isinstance(seed, int) and 0 <= seed < 2**63):
            raise ValueError(f"{SEED} is {seed!r}, but must be an integer from 0 to 2**63 - 1")

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        self._device = device
        self._slots: dict[int, _Slot] = {}
        """Seed, temperature and tokens of each request, by row of the batch."""
        self._groups: list[_Group] = []
        self.logprobs = torch.empty(0, device=device)
        """Log-probability of the token that the last `apply` sampled in each row, float32[rows]. NaN in rows without a
        seed.
        """

    def is_argmax_invariant(self) -> bool:
        """Return False, because the processor must run for greedy requests too."""
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Update the slots by row. vLLM's interface defines the order: removed, then added, then moved."""
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
        # Most steps change no rows, so the groups are built here and not in every step.
        self._groups = [self._build_group(each) for each in {slot.temperature for slot in self._slots.values()}]

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """Set the sampled token's logit in each row to infinity. `logits`, float32[rows, V], is changed in place.

        The host waits for nothing.
        """
        self.logprobs = torch.full((len(logits),), torch.nan, device=logits.device)
        for group in self._groups:
            positions = np.array([len(each) for each in group.tokens], np.uint32)
            chosen = logits if len(positions) == len(logits) else logits[group.rows]
            tokens, self.logprobs[group.rows] = sample(chosen, group.seeds, positions, group.temperature)
            logits[group.rows, tokens] = float("inf")
        return logits

    def _build_group(self, temperature: float) -> _Group:
        rows = sorted(row for row, slot in self._slots.items() if slot.temperature == temperature)
        slots = [self._slots[row] for row in rows]
        return _Group(
            temperature=temperature,
            rows=torch.tensor(rows, device=self._device),
            seeds=torch.tensor([slot.seed for slot in slots], device=self._device),
            tokens=[slot.tokens for slot in slots],
        )
