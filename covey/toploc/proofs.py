"""TOPLOC (arXiv 2501.16007): the largest activations of a window of tokens as a polynomial over a small field.

The worker calls `build_many` with the tops that its engine found; the validator calls `compare_many` with those of its
own replay.  `build`, `compare` and `compare_all` take whole states, as studies and calibration have them.
Bytes equal those of the public package `toploc` 0.1.6 for equal (index, value) input; ties go to the lower index.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from covey.errors import ProtocolError
from covey.toploc.backend import choose
from covey.toploc.finite_field import PRIME
from covey.toploc.topk import Capture, Top

WINDOW = 32
"""Tokens per proof; the last window of a completion may be short."""
TOP_K = 128
"""Values per proof."""

WHOLE = 4.0
"""Of 15,342 honest bfloat16 windows the farthest was of one token of 128 values, and twice as far as any not whole."""

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
    """How far the verifier's top values are from those the proof holds.  Equal input gives zeros."""

    sign_exponent_mismatches: int
    """Values whose sign or exponent bits differ.  Plain TOPLOC leaves the sign out, and constants pass it."""
    mantissa_mean: float
    """Mean |difference| of the 7-bit mantissas of the other values; infinite if there are none."""
    mantissa_median: float
    """Median of the same."""
    mantissa_rest: float
    """Mean of the same without the largest, which may agree by chance (see `compare`); infinite if there are none.

    Divided by `WHOLE` where every value of the window is in the proof: those near zero are mostly rounding error."""


def compute_k(rows: int, hidden: int, top_k: int = TOP_K) -> int:
    """Values in the proof of one window of `rows` tokens; it takes 2 + 2k bytes."""
    return min(top_k, rows * hidden)


def find_tops(completions: Sequence[Bits], capture: Capture) -> list[tuple[Top, ...]]:
    """The tops of every window of each completion, uint16[rows, hidden]: bfloat16 bits of last hidden states."""
    find_top, found = choose().find_top, []
    for bits in completions:
        flat, hidden = np.ascontiguousarray(bits), bits.shape[1]
        whole, rest = divmod(len(flat), capture.window)
        tops: list[Top] = []
        for first, rows, count in ((0, capture.window, whole), (len(flat) - rest, rest, 1)):
            if rows and count:
                part = flat[first : first + rows * count].reshape(count, rows * hidden)
                pairs = zip(*find_top(part, compute_k(rows, hidden, capture.top_k)), strict=True)
                tops += [Top(indices=indices, bits=values) for indices, values in pairs]
        found.append(tuple(tops))
    return found


def build(hidden_bits: Bits, window: int = WINDOW, top_k: int = TOP_K) -> list[bytes]:
    """One proof per window.  `hidden_bits`: uint16[rows, hidden], bfloat16 bits of last hidden states."""
    if hidden_bits.dtype != np.uint16 or hidden_bits.ndim != 2 or hidden_bits.size == 0:
        given = f"{hidden_bits.dtype}{hidden_bits.shape}"
        raise ValueError(f"hidden bits are uint16[rows, hidden] with at least one row, not {given}")
    return build_many(find_tops([hidden_bits], Capture(window=window, top_k=top_k)))[0]


def build_many(completions: Sequence[tuple[Top, ...]]) -> list[list[bytes]]:
    """One proof per window of each completion; all windows of one k are solved together.

    A proof is the modulus, then k coefficients in ascending order, each as a big-endian u16.
    Raises ValueError for what is no top: other types, a negative index, indices that repeat.
    """
    proofs = [[b""] * len(tops) for tops in completions]
    for group in _group(completions):
        lines, width = choose().solve(group.indices, group.values).astype(">u2").tobytes(), 2 + 2 * group.k
        for i, (c, w) in enumerate(group.places):
            proofs[c][w] = lines[i * width : (i + 1) * width]
    return proofs


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


def find_malformed(proofs: Sequence[bytes], sizes: Sequence[int], top_k: int = TOP_K) -> tuple[int, str] | None:
    """The first proof that no honest prover sends and what is wrong with it, as `parse` and `is_lawful_modulus` say.

    `sizes`: values of each window.  All proofs of one k are read together; one that fails is looked up again alone.
    """
    places: dict[int, list[int]] = {}
    for i, size in enumerate(sizes):
        places.setdefault(min(top_k, size), []).append(i)
    suspects: list[int] = []
    for k, found in places.items():
        try:
            moduli = _parse_all([proofs[i] for i in found], k)[:, 0].tolist()
        except ProtocolError:
            suspects += found
        else:
            suspects += [i for i, each in zip(found, moduli, strict=True) if not is_lawful_modulus(each, sizes[i])]
    for i in sorted(suspects):
        try:
            parsed = parse(proofs[i], min(top_k, sizes[i]))
        except ProtocolError as error:
            return i, error.message
        if not is_lawful_modulus(parsed.modulus, sizes[i]):
            return i, "modulus"
    return None


def compare(proof: bytes, replayed_bits: Bits, top_k: int = TOP_K) -> Distances:
    """Distances of one window.  `replayed_bits`: uint16[rows in the window, hidden].

    The polynomial is read at the verifier's own top values; an index that the prover did not have gives an
    arbitrary value there, which counts as a mismatch 511 times in 512; else its mantissa is arbitrary too, and alone
    moves the mean further than honest work may be.  Raises as `parse`.
    """
    values = np.ascontiguousarray(replayed_bits).reshape(1, -1)
    k = min(top_k, values.size)
    words = _parse_all([proof], k)
    return _measure(words, *choose().find_top(values, k))[0]


def compare_all(proofs: list[bytes], replayed_bits: Bits, window: int = WINDOW, top_k: int = TOP_K) -> list[Distances]:
    """`compare` of each window of a completion.  `replayed_bits`: uint16[rows, hidden].  Raises as `compare_many`."""
    return compare_many([proofs], find_tops([replayed_bits], Capture(window=window, top_k=top_k)))[0]


def compare_many(proofs: Sequence[Sequence[bytes]], replayed: Sequence[tuple[Top, ...]]) -> list[list[Distances]]:
    """`compare` of each window of each completion with the tops of its replay, all windows together.

    Nothing is computed before every proof is parsed.  Raises as `parse`, and ProtocolError("malformed_proof") for a
    wrong number of proofs.
    """
    for sent, tops in zip(proofs, replayed, strict=True):
        if len(sent) != len(tops):
            raise ProtocolError("malformed_proof", f"a completion of {len(tops)} windows has not {len(sent)} proofs")
    groups = _group(replayed)
    parsed = [_parse_all([proofs[c][w] for c, w in group.places], group.k) for group in groups]
    found: dict[tuple[int, int], Distances] = {}
    for group, words in zip(groups, parsed, strict=True):
        found.update(zip(group.places, _measure(words, group.indices, group.values), strict=True))
    return [[found[c, w] for w in range(len(tops))] for c, tops in enumerate(replayed)]


def compute_top(values: Bits, k: int) -> Longs:
    """int64[k], ascending: indices of the k values largest by absolute value, ties to the lower index.

    For bfloat16 the order of absolute values is that of the bits without the sign.
    """
    indices, _ = choose().find_top(np.ascontiguousarray(values).reshape(1, -1), k)
    return indices.reshape(k)


class _Group(NamedTuple):
    """All windows of one k."""

    k: int
    places: list[tuple[int, int]]
    """Completion and window."""
    indices: Longs
    values: Bits
    """[n, k], in the order of the places."""


def _group(completions: Sequence[tuple[Top, ...]]) -> list[_Group]:
    places: dict[int, list[tuple[int, int]]] = {}
    for c, tops in enumerate(completions):
        for w, top in enumerate(tops):
            places.setdefault(top.bits.size, []).append((c, w))
    groups = []
    for k, found in places.items():
        alike = [completions[c][w] for c, w in found]
        indices, values = np.stack([top.indices for top in alike]), np.stack([top.bits for top in alike])
        _require_top(indices, values)
        groups.append(_Group(k=k, places=found, indices=indices, values=values))
    return groups


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
    mismatches, means, medians, rests = choose().measure(words, indices, values)
    is_whole = indices[:, -1] < indices.shape[1]  # they ascend
    columns = (mismatches, means, medians, np.where(is_whole, rests / WHOLE, rests))
    return [
        Distances(sign_exponent_mismatches=mismatch, mantissa_mean=mean, mantissa_median=median, mantissa_rest=rest)
        for mismatch, mean, median, rest in zip(*(column.tolist() for column in columns), strict=True)
    ]


def _require_top(indices: Longs, values: Bits) -> None:
    good = indices.ndim == 2 and indices.shape == values.shape and indices.shape[1] > 0
    if not good or indices.dtype != np.int64 or values.dtype != np.uint16:
        raise ValueError(
            f"top values are int64[n, k] and uint16[n, k], not {indices.dtype}{indices.shape} and "
            f"{values.dtype}{values.shape}"
        )
    if (indices < 0).any():
        raise ValueError("an index is negative")
