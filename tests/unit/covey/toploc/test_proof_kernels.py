"""The compiled arithmetic equals numpy's to the bit: top values with ties, proofs, and distances."""

import importlib.util

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from covey.toploc import backend, finite_field, proof_kernels, proofs, reference

pytestmark = pytest.mark.unit

PRIME = 65497
# The largest finite value, infinities, NaNs of both signs and the patterns that wrap. 0xffd9 is 65497.
SPECIAL = [0, 0x8000, 0x7F7F, 0x7F80, 0xFF80, 0x7FC0, 0x7FFF, 0xFFD8, 0xFFD9, 0xFFFF]


def draw_windows(seed: int, n: int, size: int, kind: str) -> NDArray[np.uint16]:
    rng = np.random.default_rng(seed)
    if kind == "normal":
        return (rng.standard_normal((n, size)).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    if kind == "few":  # nearly all values tie
        return rng.choice(np.array([0x3F80, 0xBF80, 0x3F81, 0], np.uint16), (n, size))
    if kind == "special":
        return rng.choice(np.array(SPECIAL, np.uint16), (n, size))
    if kind == "level":  # one value everywhere, and a few above it
        windows = np.full((n, size), 0x3F80, np.uint16)
        windows[:, rng.integers(0, size, 5)] = 0xC000
        return windows
    return rng.integers(0, 2**16, (n, size)).astype(np.uint16)


KINDS = ["normal", "few", "special", "level", "any"]


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2**32),
    st.integers(1, 3),
    # Block maxima are used from 2 x 64 k values on. The last block may be short, and 4 need not divide the size.
    st.one_of(st.integers(1, 300), st.integers(2_000, 4_500)),
    st.integers(1, 24),
    st.sampled_from(KINDS),
)
def test_find_top__any_bits__equals_numpy(seed: int, n: int, size: int, k: int, kind: str) -> None:
    windows, k = draw_windows(seed, n, size, kind), min(k, size)
    indices, values = proof_kernels.find_top(windows, k)
    expected_indices, expected_values = reference.find_top(windows, k)
    assert np.array_equal(indices, expected_indices)
    assert np.array_equal(values, expected_values)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [16_384, 16_447, 32 * 5120])
def test_find_top__default_size__equals_numpy(kind: str, size: int) -> None:
    windows = draw_windows(11, 3, size, kind)
    assert np.array_equal(proof_kernels.find_top(windows, 128)[0], reference.find_top(windows, 128)[0])


def test_find_top__values_above_in_one_block__are_all_found() -> None:
    # The other blocks set the level. All of the first block lies above it, and more values do than k.
    windows = np.full((1, 64 * 300), 0x3F80, np.uint16)
    windows[0, 640:704] = np.arange(0x4000, 0x4040)
    windows[0, 6400:6464] = 0x4000
    indices, _ = proof_kernels.find_top(windows, 100)
    # All 64 values of the first block, of which one ties at 0x4000 with the second block, and 36 of the second block.
    assert indices[0].tolist() == [*range(640, 704), *range(6400, 6436)]


def test_find_top__guess_from_another_window__does_not_matter() -> None:
    windows = np.stack(
        [draw_windows(1, 1, 4096, "any")[0], np.zeros(4096, np.uint16), np.full(4096, 0x7FFF, np.uint16)]
    )
    for order in ([0, 1, 2], [2, 1, 0], [1, 2, 0]):
        assert np.array_equal(proof_kernels.find_top(windows[order], 9)[0], reference.find_top(windows[order], 9)[0])


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 3), st.integers(1, 140), st.integers(0, 20), st.sampled_from(KINDS))
def test_solve__any_points__equals_numpy(seed: int, n: int, k: int, colliding: int, kind: str) -> None:
    rng = np.random.default_rng(seed)
    indices = np.sort(np.stack([rng.choice(200_000, k, replace=False) for _ in range(n)]), axis=1).astype(np.int64)
    # Pairs that are one modulus apart make the search continue. Pairs that would repeat an index are left out.
    for row in indices:
        for j in range(min(colliding, k // 2)):
            if row[j] + PRIME - j not in row:
                row[k - 1 - j] = row[j] + PRIME - j
        if len(set(row.tolist())) < k:
            row[:] = np.arange(k)
    values = draw_windows(seed, n, k, kind)
    assert np.array_equal(proof_kernels.solve(indices, values), reference.solve(indices, values))


def test_solve__pairs_that_collide__take_the_modulus_by_hand() -> None:
    # 65497 divides the difference of the first and fourth index, 65496 that of the second and fifth, and 65495 that of
    # the third and sixth.
    indices = np.array([[0, 1, 2, 65497, 1 + 2 * 65496, 2 + 2 * 65495]], np.int64)
    values = np.arange(6, dtype=np.uint16)[None]
    for function in (proof_kernels.solve, reference.solve):
        assert function(indices, values)[0, 0] == 65494


@pytest.mark.parametrize("function", [proof_kernels.solve, reference.solve])
def test_solve__indices_that_repeat__are_refused(function) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match="no modulus"):
        function(np.array([[5, 5]], np.int64), np.array([[1, 2]], np.uint16))


def test_solve__more_values_than_fit_the_sums__uses_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = np.zeros((1, 1_026), np.uint16)
    monkeypatch.setattr(reference, "solve", lambda indices, values: expected)
    assert proof_kernels.solve(np.arange(1_025, dtype=np.int64)[None], np.zeros((1, 1_025), np.uint16)) is expected


@pytest.mark.parametrize("k", [128, 1024])
def test_solve__largest_elements__equals_numpy(k: int) -> None:
    # The sums and products are largest here.
    indices = np.arange(PRIME - k, PRIME, dtype=np.int64)[None]
    values = np.full((1, k), PRIME - 1, np.uint16)
    assert proof_kernels.solve(indices, values).tolist() == [[PRIME, PRIME - 1] + [0] * (k - 1)]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 3), st.integers(1, 140), st.integers(0, 140), st.sampled_from(KINDS))
def test_measure__any_proof_and_values__equals_numpy(seed: int, n: int, k: int, changed: int, kind: str) -> None:
    rng = np.random.default_rng(seed)
    indices = np.sort(np.stack([rng.choice(200_000, k, replace=False) for _ in range(n)]), axis=1).astype(np.int64)
    values = draw_windows(seed, n, k, kind)
    words = reference.solve(indices, values)
    values[:, :changed] ^= rng.integers(0, 16, values[:, :changed].shape).astype(np.uint16)
    for proof in (words, rng.integers(max(k, 1), PRIME, words.shape).astype(np.uint16)):
        for measured, expected in zip(
            proof_kernels.measure(proof, indices, values), reference.measure(proof, indices, values), strict=True
        ):
            assert np.array_equal(measured, expected)


def test_measure__even_and_odd_counts__have_the_median_by_hand() -> None:
    indices = np.arange(4, dtype=np.int64)[None]
    claimed = np.array([[0x4080, 0x4080, 0x4080, 0x4080]], np.uint16)
    words = reference.solve(indices, claimed)
    # The mantissas differ by 1, 4, 9 and 16: mean 7.5, median (4 + 9) / 2, and 14 / 3 without the largest. If the last
    # value has another sign, these are 14 / 3, 4 and 2.5.
    replayed = claimed + np.array([[1, 4, 9, 16]], np.uint16)
    assert [each.tolist() for each in proof_kernels.measure(words, indices, replayed)] == [[0], [7.5], [6.5], [14 / 3]]
    replayed[0, 3] ^= 0x8000
    assert [each.tolist() for each in proof_kernels.measure(words, indices, replayed)] == [[1], [14 / 3], [4.0], [2.5]]


def test_choose__numba_installed__is_compiled() -> None:
    assert backend.choose() is backend.COMPILED


def test_choose__no_numba__is_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    backend.choose.cache_clear()
    try:
        assert backend.choose() is backend.NUMPY
        bits = draw_windows(4, 33, 96, "normal")
        plain = proofs.build(bits)
        distances = proofs.compare_all(plain, bits ^ np.uint16(1))
    finally:
        monkeypatch.undo()
        backend.choose.cache_clear()
    assert proofs.build(bits) == plain
    assert proofs.compare_all(plain, bits ^ np.uint16(1)) == distances


def test_reduce__ends_of_the_range__are_remainders() -> None:
    # Two folds and one subtraction suffice up to the largest product and sum.
    words = np.array([0, 1, PRIME - 1, PRIME, 2 * PRIME, (PRIME - 1) ** 2 + PRIME - 1, 2**32 - 1], np.uint32)
    with np.errstate(over="ignore"):
        assert [int(proof_kernels._reduce(word)) for word in words] == [
            int(word) % finite_field.PRIME for word in words
        ]
