"""The top values of hidden states that a proof needs: the largest values of each window.

Engines find these values on the device of the states. `proofs` builds proofs from them and compares proofs with them.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from covey.protocol.params import VerificationParams


@dataclass(frozen=True, kw_only=True, slots=True)
class Capture:
    """Which hidden-state values an engine keeps.

    Example: Capture(window=32, top_k=128), as in the paper (section 3).
    """

    window: int
    """Number of tokens per proof, at least 1. The last window of a completion may be shorter."""
    top_k: int
    """Maximum number of values per proof, at least 1."""

    def __post_init__(self) -> None:
        if self.window < 1 or self.top_k < 1:
            raise ValueError(f"window is {self.window} and top_k is {self.top_k}, but both must be at least 1")


EVERYTHING = Capture(window=1, top_k=1 << 31)
"""Captures every value of every state, for calibration and for studies of cheats. `join` restores the states."""


def build_capture(rules: "VerificationParams") -> Capture:
    """Return the capture for a pool's proofs."""
    return Capture(window=rules.proof_window, top_k=rules.proof_top_k)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Top:
    """The k values of largest magnitude in one window. Ties go to the lower index. `proofs.compute_k` returns k."""

    indices: NDArray[np.int64]
    """Indices of the values, int64[k], ascending. An index is (row in the window) x hidden + channel."""
    bits: NDArray[np.uint16]
    """bfloat16 bits of the values, uint16[k]."""


def join(tops: tuple[Top, ...]) -> NDArray[np.uint16]:
    """Return the states of a completion that was captured with `EVERYTHING`, uint16[tokens, hidden]."""
    return np.stack([top.bits for top in tops])
