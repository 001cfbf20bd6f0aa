"""What of a completion's last hidden states a proof needs: the largest values of each window.

Engines find them where the states are; `proofs` builds from them and compares with them.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from covey.protocol.params import VerificationParams


@dataclass(frozen=True, kw_only=True, slots=True)
class Capture:
    """What an engine shall keep of the states.  Example: Capture(window=32, top_k=128), the paper's (section 3)."""

    window: int
    """Tokens per proof; the last window of a completion may be short."""
    top_k: int
    """Values per proof at most."""

    def __post_init__(self) -> None:
        if self.window < 1 or self.top_k < 1:
            raise ValueError(f"a proof is of at least one token and one value, not {self.window} and {self.top_k}")


EVERYTHING = Capture(window=1, top_k=1 << 31)
"""Every value of every state, for calibration and for who studies cheats; `join` makes them whole."""


def build_capture(rules: "VerificationParams") -> Capture:
    """What a pool's proofs need."""
    return Capture(window=rules.proof_window, top_k=rules.proof_top_k)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Top:
    """The k values of largest magnitude of one window, ties to the lower index; k as in `proofs.compute_k`."""

    indices: NDArray[np.int64]
    """int64[k], ascending: row in the window x hidden + channel."""
    bits: NDArray[np.uint16]
    """uint16[k]: bfloat16 bits of the values."""


def join(tops: tuple[Top, ...]) -> NDArray[np.uint16]:
    """uint16[tokens, hidden]: the states of a completion of which `EVERYTHING` was captured."""
    return np.stack([top.bits for top in tops])
