"""TOPLOC (arXiv 2501.16007): the largest activations of a window of tokens as a polynomial over a small field.

The worker calls `build` or `build_many`; the validator calls `compare_all` with the activations of its own replay.
Bytes equal those of the public package `toploc` 0.1.6 for equal (index, value) input; ties go to the lower index.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from covey.errors import ProtocolError
from covey.toploc import field

WINDOW = 32
"""Tokens per proof; the last window of a completion may be short."""
TOP_K = 128
"""Values per proof."""
_SIGN_EXPONENT = 0xFF80
_MANTISSA = 0x7F
_SOLVED_TOGETHER = 16
"""Windows per linear solve: 16 matrices of 128 x 128 take 2 MiB, which a core keeps close."""

Bits = NDArray[np.uint16]
Longs = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ProofPolynomial:
    """A parsed proof: value bits of index i at x = i mod `modulus`."""

    modulus: int
    coefficients: Longs
    """int64[k], ascending powers, each below 65497."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Distances:
    """How far the verifier's top values are from those the proof holds.  Equal input gives 0, 0, 0."""

    sign_exponent_mismatches: int
    """Values whose sign or exponent bits differ.  Plain TOPLOC leaves the sign out, and constants pass it."""
    mantissa_mean: float
    """Mean |difference| of the 7-bit mantissas of the other values; infinite if there are none."""
    mantissa_median: float
    """Median of the same."""


def count_proofs(rows: int, window: int = WINDOW) -> int:
    """Proofs of a completion of `rows` tokens."""
    return -(-rows // window)


def compute_k(rows: int, hidden: int, top_k: int = TOP_K) -> int:
    """Values in the proof of one window of `rows` tokens; it takes 2 + 2k bytes."""
    return min(top_k, rows * hidden)


def build(hidden_bits: Bits, window: int = WINDOW, top_k: int = TOP_K) -> list[bytes]:
    """One proof per window.  `hidden_bits`: uint16[rows, hidden], bfloat16 bits of last hidden states.

    A proof is the modulus, then k coefficients in ascending order, each as a big-endian u16.
    """
    return build_many([hidden_bits], window, top_k)[0]


def build_many(completions: list[Bits], window: int = WINDOW, top_k: int = TOP_K) -> list[list[bytes]]:
    """`build` of each completion; faster than one by one, because windows of one size are solved together."""
    proofs: list[list[bytes]] = [[b""] * count_proofs(len(bits), window) for bits in completions]
    by_k: dict[int, list[tuple[int, int, Longs, Bits]]] = {}
    for c, bits in enumerate(completions):
        for w, values in enumerate(_split(bits, window)):
            indices = compute_top(values, min(top_k, values.size))
            by_k.setdefault(len(indices), []).append((c, w, indices, values[indices]))
    for group in by_k.values():
        for start in range(0, len(group), _SOLVED_TOGETHER):
            part = group[start : start + _SOLVED_TOGETHER]
            indices = np.stack([each[2] for each in part])
            solved = _solve(indices, np.stack([each[3] for each in part]))
            for (c, w, _, _), proof in zip(part, solved, strict=True):
                proofs[c][w] = proof
    return proofs


def parse(proof: bytes, k: int) -> ProofPolynomial:
    """A stranger's proof.  Raises ProtocolError("malformed_proof") unless the length is exactly 2 + 2k, the modulus
    keeps k indices apart and fits the field (k .. 65497) and every coefficient is an element of the field."""
    if len(proof) != 2 + 2 * k:
        raise ProtocolError("malformed_proof", f"a proof of {k} values has {2 + 2 * k} bytes, not {len(proof)}")
    words = np.frombuffer(proof, dtype=">u2").astype(np.int64)
    modulus, coefficients = int(words[0]), words[1:]
    if not k <= modulus <= field.PRIME:
        raise ProtocolError("malformed_proof", f"modulus {modulus} is outside {k} .. {field.PRIME}")
    if (coefficients >= field.PRIME).any():
        raise ProtocolError("malformed_proof", "a coefficient is no element of the field")
    return ProofPolynomial(modulus=modulus, coefficients=coefficients)


def compare(proof: bytes, replayed_bits: Bits, top_k: int = TOP_K) -> Distances:
    """Distances of one window.  `replayed_bits`: uint16[rows in the window, hidden].

    The polynomial is read at the verifier's own top values; an index that the prover did not have gives an
    arbitrary value there, which counts as a mismatch 511 times in 512.  Raises as `parse`.
    """
    values = np.ascontiguousarray(replayed_bits).reshape(-1)
    k = min(top_k, values.size)
    polynomial = parse(proof, k)
    indices = compute_top(values, k)
    claimed = field.evaluate(polynomial.coefficients, indices % polynomial.modulus)
    replayed = values[indices].astype(np.int64) % field.PRIME
    mismatch = ((claimed ^ replayed) & _SIGN_EXPONENT) != 0
    differences = np.abs((claimed & _MANTISSA) - (replayed & _MANTISSA))[~mismatch]
    return Distances(
        sign_exponent_mismatches=int(mismatch.sum()),
        mantissa_mean=float(differences.mean()) if differences.size else float("inf"),
        mantissa_median=float(np.median(differences)) if differences.size else float("inf"),
    )


def compare_all(proofs: list[bytes], replayed_bits: Bits, window: int = WINDOW, top_k: int = TOP_K) -> list[Distances]:
    """`compare` of each window of a completion.  `replayed_bits`: uint16[rows, hidden].

    Raises ProtocolError("malformed_proof") also for a wrong number of proofs.
    """
    expected = count_proofs(len(replayed_bits), window)
    if len(proofs) != expected:
        raise ProtocolError("malformed_proof", f"{len(replayed_bits)} tokens have {expected} proofs, not {len(proofs)}")
    return [compare(proof, replayed_bits[w * window : (w + 1) * window], top_k) for w, proof in enumerate(proofs)]


def compute_top(values: Bits, k: int) -> Longs:
    """int64[k], ascending: indices of the k values largest by absolute value, ties to the lower index.

    For bfloat16 the order of absolute values is that of the bits without the sign.
    """
    magnitudes = values & np.uint16(0x7FFF)
    limit = np.partition(magnitudes, magnitudes.size - k)[magnitudes.size - k]
    above = np.flatnonzero(magnitudes > limit)
    level = np.flatnonzero(magnitudes == limit)[: k - above.size]
    return np.sort(np.concatenate([above, level]))


def _split(bits: Bits, window: int) -> list[Bits]:
    if bits.dtype != np.uint16 or bits.ndim != 2 or bits.size == 0:
        raise ValueError(f"hidden bits are uint16[rows, hidden] with at least one row, not {bits.dtype}{bits.shape}")
    flat = np.ascontiguousarray(bits)
    return [flat[start : start + window].reshape(-1) for start in range(0, len(flat), window)]


def _solve(indices: Longs, values: Bits) -> list[bytes]:
    """Proof bytes of n windows.  `indices`, `values`: [n, k]."""
    moduli = _compute_moduli(indices)
    # The field has 65497 elements: the 39 patterns from 65497 up (negative NaNs) wrap, as in the public package.
    coefficients = field.interpolate(indices % moduli[:, None], values.astype(np.int64) % field.PRIME)
    words = np.concatenate([moduli[:, None], coefficients], axis=1).astype(">u2")
    return [row.tobytes() for row in words]


def _compute_moduli(indices: Longs) -> Longs:
    """int64[n]: the largest modulus up to 65497 that keeps the k indices of a window distinct."""
    moduli = np.full(len(indices), field.PRIME, np.int64)
    for n, row in enumerate(indices):
        while np.unique(row % moduli[n]).size < row.size:
            moduli[n] -= 1
    return moduli
