"""TOPLOC (arXiv 2501.16007): the largest activations of a window of tokens as a polynomial over a small field.

A worker passes the top values from its engine to `build_many`. A validator passes the top values of its own replay to
`compare_many`. `build`, `compare` and `compare_all` take whole hidden states, which calibration and studies have.

Proof bytes equal those of the public package `toploc` 0.1.6 for equal (index, value) input. Ties go to the lower index.
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
"""Number of tokens per proof. The last window of a completion may be shorter."""
TOP_K = 128
"""Maximum number of values per proof. The proof of a window with fewer values contains all of them."""

WHOLE = 4.0
"""Divisor of the distance `mantissa_rest` for a window whose values are all in the proof.

Such windows are noisier. Among honest bfloat16 windows the farthest was one of these (one token of 128 values), at
twice the distance of any other.
"""

MODULUS_STEPS = 256
"""Maximum distance of an honest modulus below the field's size. Each step down has a probability of about 1 in 10."""

Bits = NDArray[np.uint16]
Longs = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ProofPolynomial:
    """A parsed proof: the polynomial whose value at x = i mod `modulus` is the bit pattern of the value at index i."""

    modulus: int
    """Modulus of the indices, k .. 65497."""
    coefficients: Longs
    """Coefficients in ascending order, int64[k], each below 65497."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Distances:
    """Distances between the verifier's top values and those in the proof. All are zero if the values are equal."""

    sign_exponent_mismatches: int
    """Number of values whose sign or exponent bits differ.

    Plain TOPLOC ignores the sign, and constant forgeries pass it.
    """
    mantissa_mean: float
    """Mean absolute difference of the 7-bit mantissas, over values whose sign and exponent agree.

    Infinite if none agree.
    """
    mantissa_median: float
    """Median absolute difference of the same mantissas. Infinite if there are none."""
    mantissa_rest: float
    """Mean absolute difference of the same mantissas without the largest difference. Infinite if none remain.

    The largest is omitted because its sign and exponent may agree by chance (see `compare`). The mean is divided by
    `WHOLE` if every value of the window is in the proof, because values near zero are mostly rounding error.
    """


def compute_k(rows: int, hidden: int, top_k: int = TOP_K) -> int:
    """Return k, the number of values in the proof of a window of `rows` tokens. The proof has 2 + 2k bytes."""
    return min(top_k, rows * hidden)


def find_tops(completions: Sequence[Bits], capture: Capture) -> list[tuple[Top, ...]]:
    """Return the top values of every window of each completion.

    A completion is uint16[rows, hidden]: the bfloat16 bits of its last hidden states.
    """
    find_top, tops_of_all = choose().find_top, []
    for bits in completions:
        flat, hidden = np.ascontiguousarray(bits), bits.shape[1]
        whole, rest = divmod(len(flat), capture.window)
        tops: list[Top] = []
        for first, rows, count in ((0, capture.window, whole), (len(flat) - rest, rest, 1)):
            if rows and count:
                windows = flat[first : first + rows * count].reshape(count, rows * hidden)
                pairs = zip(*find_top(windows, compute_k(rows, hidden, capture.top_k)), strict=True)
                tops += [Top(indices=indices, bits=values) for indices, values in pairs]
        tops_of_all.append(tuple(tops))
    return tops_of_all


def build(hidden_bits: Bits, window: int = WINDOW, top_k: int = TOP_K) -> list[bytes]:
    """Return one proof per window.

    `hidden_bits` is uint16[rows, hidden], the bfloat16 bits of the last hidden states. Raises ValueError for a
    different type or shape, or if there are no rows.
    """
    if hidden_bits.dtype != np.uint16 or hidden_bits.ndim != 2 or hidden_bits.size == 0:
        shape = f"{hidden_bits.dtype}{hidden_bits.shape}"
        raise ValueError(f"hidden bits are {shape}, but must be uint16[rows, hidden] with at least one row")
    return build_many(find_tops([hidden_bits], Capture(window=window, top_k=top_k)))[0]


def build_many(completions: Sequence[tuple[Top, ...]]) -> list[list[bytes]]:
    """Return one proof per window of each completion. All windows with the same k are solved together.

    A proof is the modulus followed by k coefficients in ascending order, each as a big-endian u16.
    Raises ValueError if the top values have the wrong type or shape, or a negative or repeated index.
    """
    proofs = [[b""] * len(tops) for tops in completions]
    for group in _group(completions):
        lines, width = choose().solve(group.indices, group.values).astype(">u2").tobytes(), 2 + 2 * group.k
        for i, (c, w) in enumerate(group.places):
            proofs[c][w] = lines[i * width : (i + 1) * width]
    return proofs


def parse(proof: bytes, k: int) -> ProofPolynomial:
    """Parse a proof of k values from an untrusted peer.

    Raises ProtocolError("malformed_proof") if the length is not exactly 2 + 2k, if the modulus is outside k .. 65497,
    or if a coefficient is not an element of the field. With a modulus below k, k indices cannot stay distinct.
    """
    words = _parse_all([proof], k)[0].astype(np.int64)
    return ProofPolynomial(modulus=int(words[0]), coefficients=words[1:])


def is_lawful_modulus(modulus: int, size: int) -> bool:
    """Return whether an honest prover can have chosen this modulus for a window of `size` values.

    An honest prover chooses the largest modulus for which its k indices are distinct. If the choice were free, a forger
    could choose the hidden size, which reduces an index to its channel. It could then build a proof from the usual
    values of a few channels without a forward pass.
    """
    return modulus == PRIME if size <= PRIME else PRIME - MODULUS_STEPS <= modulus <= PRIME


def find_malformed(proofs: Sequence[bytes], sizes: Sequence[int], top_k: int = TOP_K) -> tuple[int, str] | None:
    """Return the index of the first malformed proof, with the reason. None if there is none.

    The rules are those of `parse` and `is_lawful_modulus`. `sizes` contains the number of values of each window. All
    proofs with the same k are parsed together. If one of them fails, each is parsed again separately.
    """
    indices_by_k: dict[int, list[int]] = {}
    for i, size in enumerate(sizes):
        indices_by_k.setdefault(min(top_k, size), []).append(i)
    suspects: list[int] = []
    for k, indices in indices_by_k.items():
        try:
            moduli = _parse_all([proofs[i] for i in indices], k)[:, 0].tolist()
        except ProtocolError:
            suspects += indices
        else:
            suspects += [i for i, each in zip(indices, moduli, strict=True) if not is_lawful_modulus(each, sizes[i])]
    for i in sorted(suspects):
        try:
            parsed = parse(proofs[i], min(top_k, sizes[i]))
        except ProtocolError as error:
            return i, error.message
        if not is_lawful_modulus(parsed.modulus, sizes[i]):
            return i, "modulus"
    return None


def compare(proof: bytes, replayed_bits: Bits, top_k: int = TOP_K) -> Distances:
    """Return the distances of one window. `replayed_bits` is uint16[rows in the window, hidden].

    The polynomial is evaluated at the verifier's own top values. At an index that the prover did not have, its value is
    arbitrary and counts as a mismatch 511 times in 512. Otherwise the mantissa is arbitrary, and a single one moves the
    mean beyond the limit for honest work. Raises the errors of `parse`.
    """
    values = np.ascontiguousarray(replayed_bits).reshape(1, -1)
    k = min(top_k, values.size)
    words = _parse_all([proof], k)
    return _measure(words, *choose().find_top(values, k))[0]


def compare_all(proofs: list[bytes], replayed_bits: Bits, window: int = WINDOW, top_k: int = TOP_K) -> list[Distances]:
    """Return the distances of each window of a completion, as `compare` does.

    `replayed_bits` is uint16[rows, hidden]. Raises the errors of `compare_many`.
    """
    return compare_many([proofs], find_tops([replayed_bits], Capture(window=window, top_k=top_k)))[0]


def compare_many(proofs: Sequence[Sequence[bytes]], replayed: Sequence[tuple[Top, ...]]) -> list[list[Distances]]:
    """Return the distances of each window of each completion from the top values of its replay.

    All windows are compared together, after every proof is parsed. Raises the errors of `parse`, and
    ProtocolError("malformed_proof") if a completion has a wrong number of proofs.
    """
    for sent, tops in zip(proofs, replayed, strict=True):
        if len(sent) != len(tops):
            raise ProtocolError("malformed_proof", f"a completion with {len(tops)} windows has {len(sent)} proofs")
    groups = _group(replayed)
    parsed = [_parse_all([proofs[c][w] for c, w in group.places], group.k) for group in groups]
    distances: dict[tuple[int, int], Distances] = {}
    for group, words in zip(groups, parsed, strict=True):
        distances.update(zip(group.places, _measure(words, group.indices, group.values), strict=True))
    return [[distances[c, w] for w in range(len(tops))] for c, tops in enumerate(replayed)]


def compute_top(values: Bits, k: int) -> Longs:
    """Return the ascending indices of the k largest absolute values, int64[k]. Ties go to the lower index.

    bfloat16 magnitudes are compared as bit patterns without the sign bit.
    """
    indices, _ = choose().find_top(np.ascontiguousarray(values).reshape(1, -1), k)
    return indices.reshape(k)


class _Group(NamedTuple):
    """All windows with the same k."""

    k: int
    """Number of values in each proof."""
    places: list[tuple[int, int]]
    """For each of the n windows, the index of its completion and its index in the completion."""
    indices: Longs
    """Indices of the top values, int64[n, k], in the order of `places`."""
    values: Bits
    """Bits of the top values, uint16[n, k], in the order of `places`."""


def _group(completions: Sequence[tuple[Top, ...]]) -> list[_Group]:
    places_by_k: dict[int, list[tuple[int, int]]] = {}
    for c, tops in enumerate(completions):
        for w, top in enumerate(tops):
            places_by_k.setdefault(top.bits.size, []).append((c, w))
    groups = []
    for k, places in places_by_k.items():
        windows = [completions[c][w] for c, w in places]
        indices, values = np.stack([top.indices for top in windows]), np.stack([top.bits for top in windows])
        _require_top(indices, values)
        groups.append(_Group(k=k, places=places, indices=indices, values=values))
    return groups


def _parse_all(proofs: list[bytes], k: int) -> Bits:
    """Return the modulus and coefficients of each proof, uint16[n, k + 1]. Sizes are checked before parsing."""
    for proof in proofs:
        if len(proof) != 2 + 2 * k:
            raise ProtocolError(
                "malformed_proof", f"a proof of {k} values has {len(proof)} bytes instead of {2 + 2 * k}"
            )
    words = np.frombuffer(b"".join(proofs), dtype=">u2").astype(np.uint16).reshape(len(proofs), k + 1)
    outside = (words[:, 0] < k) | (words[:, 0] > PRIME)
    if outside.any():
        raise ProtocolError(
            "malformed_proof", f"the proof has the modulus {words[outside, 0][0]}, which is outside {k} .. {PRIME}"
        )
    if (words[:, 1:] >= PRIME).any():
        raise ProtocolError("malformed_proof", "a coefficient of the proof is not an element of the field")
    return words


def _measure(words: Bits, indices: Longs, values: Bits) -> list[Distances]:
    mismatches, means, medians, rests = choose().measure(words, indices, values)
    # Indices ascend, so the last one is k - 1 exactly if all values of the window are in the proof.
    is_whole = indices[:, -1] < indices.shape[1]
    columns = (mismatches, means, medians, np.where(is_whole, rests / WHOLE, rests))
    return [
        Distances(sign_exponent_mismatches=mismatch, mantissa_mean=mean, mantissa_median=median, mantissa_rest=rest)
        for mismatch, mean, median, rest in zip(*(column.tolist() for column in columns), strict=True)
    ]


def _require_top(indices: Longs, values: Bits) -> None:
    good = indices.ndim == 2 and indices.shape == values.shape and indices.shape[1] > 0
    if not good or indices.dtype != np.int64 or values.dtype != np.uint16:
        raise ValueError(
            f"top values are {indices.dtype}{indices.shape} and {values.dtype}{values.shape}, but "
            "must be int64[n, k] and uint16[n, k]"
        )
    if (indices < 0).any():
        raise ValueError(f"a top value has the negative index {indices.min()}")
