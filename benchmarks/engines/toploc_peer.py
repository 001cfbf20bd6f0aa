"""The public package `toploc` 0.1.6, called in the way that serves it best.

Its wheel is built for another version of PyTorch, so that it is built from source, in a separate folder.
"""

import importlib
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import torch
from numpy.typing import NDArray

from covey.toploc.proofs import Bits

VERSION = "0.1.6"
FOLDER = Path("build/peers")
INSTALL = (
    f"{sys.executable} -m pip install --no-build-isolation --no-deps --no-binary toploc --target {FOLDER} "
    f'"toploc=={VERSION}"'
)
"""Command that installs the package.  It needs a C++ compiler and setuptools, and takes two to three minutes."""


def load() -> ModuleType:
    """Load the package from the environment or from `FOLDER`.

    Raises ImportError, which says how to install it, if it is absent or of another version.
    """
    sys.path.append(str(FOLDER.resolve()))
    try:
        peer = importlib.import_module("toploc")
    except ImportError as error:
        raise ImportError(
            f"toploc {VERSION} cannot be imported ({error}). Install it from source:\n  {INSTALL}"
        ) from error
    if peer.__version__ != VERSION:
        raise ImportError(f"toploc is {peer.__version__}, not {VERSION}. Install it from source:\n  {INSTALL}")
    return peer


def to_tensor(bits: Bits) -> torch.Tensor:
    """View the same memory as bfloat16."""
    return torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16)


def build(peer: ModuleType, windows: torch.Tensor, top_k: int) -> list[bytes]:
    """Build a proof of each row of `windows`, bfloat16[n, values of a window].

    One tensor per window spares the package from joining tensors.
    """
    proofs: list[bytes] = peer.build_proofs_bytes(list(windows), 1, top_k, True)
    return proofs


def build_from_top(peer: ModuleType, indices: NDArray[np.int64], values: Bits) -> list[bytes]:
    """Build proofs from given indices and values, [n, k] each."""
    from_points = peer.ProofPoly.from_points_tensor
    pairs = zip(torch.from_numpy(indices), to_tensor(values), strict=True)
    return [from_points(index, value).to_bytes() for index, value in pairs]


def verify(
    peer: ModuleType, states: torch.Tensor, proofs: list[bytes], window: int, top_k: int
) -> list[tuple[int, float, float]]:
    """Return exponent mismatches, mantissa mean and mantissa median of each window.

    `states` is bfloat16[rows, hidden] and holds whole windows.  A tensor takes the compiled path of the package, which
    is the faster one and the one that reads the modulus.
    """
    results = peer.verify_proofs_bytes(states, proofs, window, top_k, True)
    return [(each.exp_mismatches, each.mant_err_mean, each.mant_err_median) for each in results]
