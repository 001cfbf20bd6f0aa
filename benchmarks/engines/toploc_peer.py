"""The public package `toploc` 0.1.6, called the way that suits it best; used by `benchmarks.engines.activation_proofs`.

Its wheel is built for another torch, so it comes from source and lies in a folder of its own.
"""

import importlib
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import torch
from numpy.typing import NDArray

VERSION = "0.1.6"
FOLDER = Path("build/peers")
INSTALL = (
    f"{sys.executable} -m pip install --no-build-isolation --no-deps --no-binary toploc --target {FOLDER} "
    f'"toploc=={VERSION}"'
)
"""It needs a C++ compiler and setuptools, and takes two to three minutes."""

Bits = NDArray[np.uint16]


def load() -> ModuleType:
    """The package, from the environment or from `FOLDER`.  Raises ImportError saying how to install it."""
    sys.path.append(str(FOLDER.resolve()))
    try:
        peer = importlib.import_module("toploc")
    except ImportError as error:
        raise ImportError(
            f"toploc {VERSION} does not import ({error}); install it from source:\n  {INSTALL}"
        ) from error
    if peer.__version__ != VERSION:
        raise ImportError(f"toploc is {peer.__version__}, not {VERSION}; install it from source:\n  {INSTALL}")
    return peer


def to_tensor(bits: Bits) -> torch.Tensor:
    """The same memory as bfloat16."""
    return torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16)


def build(peer: ModuleType, windows: torch.Tensor, top_k: int) -> list[bytes]:
    """A proof of each row of `windows`, bfloat16[n, values of a window]; one tensor a window spares it joining."""
    proofs: list[bytes] = peer.build_proofs_bytes(list(windows), 1, top_k, True)
    return proofs


def build_from_top(peer: ModuleType, indices: NDArray[np.int64], values: Bits) -> list[bytes]:
    """Proofs of equal (index, value) input, [n, k]."""
    from_points = peer.ProofPoly.from_points_tensor
    pairs = zip(torch.from_numpy(indices), to_tensor(values), strict=True)
    return [from_points(index, value).to_bytes() for index, value in pairs]


def verify(
    peer: ModuleType, states: torch.Tensor, proofs: list[bytes], window: int, top_k: int
) -> list[tuple[int, float, float]]:
    """Exponent mismatches, mantissa mean and median of each window.  `states`: bfloat16[rows, hidden], whole windows.

    A tensor takes the compiled path, which is the faster one and the one that reads the modulus.
    """
    results = peer.verify_proofs_bytes(states, proofs, window, top_k, True)
    return [(each.exp_mismatches, each.mant_err_mean, each.mant_err_median) for each in results]
