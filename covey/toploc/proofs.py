"""TOPLOC (arXiv 2501.16007): the largest activations of a window of tokens as a polynomial over a small field.

The worker calls `build` or `build_many`; the validator calls `compare_all` or `compare_many` with the activations of
its own replay.  With states on an accelerator, `tensors` finds the top there, for `build_from_top` and `compare_top`.
Bytes equal those of the public package `toploc` 0.1.6 for equal (index, value) input; ties go to the lower index.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from covey.errors import ProtocolError
from covey.toploc.arithmetic import choose
from covey.toploc.field import PRIME

WINDOW = 32
"""Tokens per proof; the last window of a completion may be short."""
TOP_K = 128
"""Values per proof."""

MODULUS_STEPS = 256
"""How far below the field's size an honest modulus may be: each step down has a chance of about one in ten."""

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


_NOT_YET = Distances(sign_exponent_mismatches=0, mantissa_mean=float("nan"), mantissa_median=float("nan"))


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
    """`build` of each completion; faster than one by one, because all windows are solved together."""
    for bits in completions:
        _require_bits(bits)
    proofs: list[list[bytes]] = [[b""] * count_proofs(len(bits), window) for bits in completions]
    for places, indices, values in _find_tops(completions, window, top_k):
        for (c, w), proof in zip(places, build_from_top(indices, values), strict=True):
            proofs[c][w] = proof
    return proofs


def build_from_top(indices: Longs, values: Bits) -> list[bytes]:
    """Proofs of n windows from their top values, [n, k]: `indices` int64, distinct in a row, `values` uint16 bits.

    Raises ValueError for indices that repeat.
    """
    _require_top(indices, values)
    lines, width = choose().solve(indices, values).astype(">u2").tobytes(), 2 + 2 * indices.shape[1]
    return [lines[start : start + width] for start in range(0, len(lines), width)]


def parse(proof: bytes, k: int) -> ProofPolynomial:
    """A stranger's proof.  Raises ProtocolError("malformed_proof") unless the length is exactly 2 + 2k, the modulus
    keeps k indices apart and fits the field (k .. 65497) and every coefficient is an element of the field."""
    words = _parse_all([proof], k)[0].astype(np.int64)
    return ProofPolynomial(modulus=int(words[0]), coefficients=words[1:])


def is_lawful_modulus(modulus: int, size: int) -> bool:
    """Whether an honest prover of a window of `size` values may have chosen it: the largest that keeps its k indices
    apart.  A free one could be the hidden size: then the index is the channel, and what is usual in a few channels
    would be a proof without a forward pass."""
    return modulus == PRIME if size <= PRIME else PRIME - MODULUS_STEPS <= modulus <= PRIME


def compare(proof: bytes, replayed_bits: Bits, top_k: int = TOP_K) -> Distances:
    """Distances of one window.  `replayed_bits`: uint16[rows in the window, hidden].

    The polynomial is read at the verifier's own top values; an index that the prover did not have gives an
    arbitrary value there, which counts as a mismatch 511 times in 512.  Raises as `parse`.
    """
    values = np.ascontiguousarray(replayed_bits).reshape(1, -1)
    k = min(top_k, values.size)
    words = _parse_all([proof], k)
    return _measure(words, *choose().find_top(values, k))[0]


def compare_all(proofs: list[bytes], replayed_bits: Bits, window: int = WINDOW, top_k: int = TOP_K) -> list[Distances]:
    """`compare` of each window of a completion.  `replayed_bits`: uint16[rows, hidden].

    Raises ProtocolError("malformed_proof") also for a wrong number of proofs.
    """
    return compare_many([proofs], [replayed_bits], window, top_k)[0]


def compare_many(
    proofs: list[list[bytes]], replayed_bits: list[Bits], window: int = WINDOW, top_k: int = TOP_K
) -> list[list[Distances]]:
    """`compare_all` of each completion, all windows together.  Nothing is computed before every proof is parsed."""
    found: list[list[Distances]] = []
    by_k: dict[int, list[bytes]] = {}
    for sent, bits in zip(proofs, replayed_bits, strict=True):
        expected = count_proofs(len(bits), window)
        if len(sent) != expected:
            raise ProtocolError("malformed_proof", f"{len(bits)} tokens have {expected} proofs, not {len(sent)}")
        for w, proof in enumerate(sent):
            k = compute_k(min(window, len(bits) - w * window), bits.shape[1], top_k)
            by_k.setdefault(k, []).append(proof)
        found.append([_NOT_YET] * expected)
    parsed = {k: _parse_all(group, k) for k, group in by_k.items()}
    for places, indices, values in _find_tops(replayed_bits, window, top_k):
        words = parsed[indices.shape[1]]
        for (c, w), distances in zip(places, _measure(words, indices, values), strict=True):
            found[c][w] = distances
    return found


def compare_top(proofs: list[bytes], indices: Longs, values: Bits) -> list[Distances]:
    """`compare` of n windows whose top values the verifier has: `indices` int64[n, k], `values` uint16[n, k] bits.

    Raises as `parse`, and for a wrong number of proofs.
    """
    _require_top(indices, values)
    if len(proofs) != len(indices):
        raise ProtocolError("malformed_proof", f"{len(indices)} windows have as many proofs, not {len(proofs)}")
    return _measure(_parse_all(proofs, indices.shape[1]), indices, values)


def compute_top(values: Bits, k: int) -> Longs:
    """int64[k], ascending: indices of the k values largest by absolute value, ties to the lower index.

    For bfloat16 the order of absolute values is that of the bits without the sign.
    """
    indices, _ = choose().find_top(np.ascontiguousarray(values).reshape(1, -1), k)
    return indices.reshape(k)


def _find_tops(completions: list[Bits], window: int, top_k: int) -> list[tuple[list[tuple[int, int]], Longs, Bits]]:
    """Of all windows with one k: their places (completion, window), and the tops [n, k] in the same order."""
    find_top = choose().find_top
    groups: dict[int, tuple[list[tuple[int, int]], list[Longs], list[Bits]]] = {}
    for c, bits in enumerate(completions):
        flat, hidden = np.ascontiguousarray(bits), bits.shape[1]
        whole = len(flat) // window
        # The short window comes last, so the places of a k follow the order of completions and windows.
        for first, rows, count in ((0, window, whole), (whole, len(flat) - whole * window, 1)):
            if rows == 0 or count == 0:
                continue
            k = compute_k(rows, hidden, top_k)
            part = flat[first * window : first * window + rows * count].reshape(count, rows * hidden)
            indices, values = find_top(part, k)
            group = groups.setdefault(k, ([], [], []))
            group[0].extend((c, w) for w in range(first, first + count))
            group[1].append(indices)
            group[2].append(values)
    return [(places, np.concatenate(indices), np.concatenate(values)) for places, indices, values in groups.values()]


def _parse_all(proofs: list[bytes], k: int) -> Bits:
    """uint16[n, k + 1]: modulus and coefficients; sizes are checked before anything is read."""
    for proof in proofs:
        if len(proof) != 2 + 2 * k:
            raise ProtocolError("malformed_proof", f"a proof of {k} values has {2 + 2 * k} bytes, not {len(proof)}")
    words = np.frombuffer(b"".join(proofs), dtype=">u2").astype(np.uint16).reshape(len(proofs), k + 1)
    outside = (words[:, 0] < k) | (words[:, 0] > PRIME)
    if outside.any():
        raise ProtocolError("malformed_proof", f"modulus {words[outside, 0][0]} is outside {k} .. {PRIME}")
    if (words[:, 1:] >= PRIME).any():
        raise ProtocolError("malformed_proof", "a coefficient is no element of the field")
    return words


def _measure(words: Bits, indices: Longs, values: Bits) -> list[Distances]:
    mismatches, means, medians = choose().measure(words, indices, values)
    return [
        Distances(sign_exponent_mismatches=mismatch, mantissa_mean=mean, mantissa_median=median)
        for mismatch, mean, median in zip(mismatches.tolist(), means.tolist(), medians.tolist(), strict=True)
    ]


def _require_bits(bits: Bits) -> None:
    if bits.dtype != np.uint16 or bits.ndim != 2 or bits.size == 0:
        raise ValueError(f"hidden bits are uint16[rows, hidden] with at least one row, not {bits.dtype}{bits.shape}")


def _require_top(indices: Longs, values: Bits) -> None:
    good = indices.ndim == 2 and indices.shape == values.shape and indices.shape[1] > 0
    if not good or indices.dtype != np.int64 or values.dtype != np.uint16:
        raise ValueError(
            f"top values are int64[n, k] and uint16[n, k], not {indices.dtype}{indices.shape} and "
            f"{values.dtype}{values.shape}"
        )
    if (indices < 0).any():
        raise ValueError("an index is negative")
