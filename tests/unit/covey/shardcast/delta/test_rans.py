"""Entropy coding: symbols and tables worked out by hand, round trips of all pairs of numbers, and sizes near the
entropy.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from covey.shardcast.delta import rans
from covey.shardcast.delta.kernels import compile_all

pytestmark = pytest.mark.unit


def code(
    first: list[int], second: list[int], counts: list[int]
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return words, raw bits, states and tables. Each class has its own context."""
    kernels = compile_all()
    pairs, sizes = (np.array(first, np.int64), np.array(second, np.int64)), np.array(counts, np.int64)
    seen, tables = (np.zeros((2, len(counts), rans.SYMBOLS), np.int64) for _ in range(2))
    for half in range(2):
        for k, part in enumerate(np.split(pairs[half], np.cumsum(sizes)[:-1])):
            kernels.count_symbols(part, seen[half, k])
            if len(part):
                kernels.scale(seen[half, k], tables[half, k])
            else:
                tables[half, k, 0] = rans.TOTAL
    words, states = np.empty(2 * len(first), np.uint16), np.empty(rans.STATES, np.int64)
    place = kernels.encode_pairs(*pairs, sizes, np.arange(len(counts)), tables, words, states)
    bits = np.empty(6 * len(first) + 1, np.uint8)
    return words[place:], bits[: kernels.write_bits(*pairs, bits)], states, tables


def restore(words: np.ndarray, bits: np.ndarray, states: np.ndarray, tables: np.ndarray, counts: list[int]):
    """Return both lists of numbers, or None if the input is truncated or too long."""
    kernels, sizes = compile_all(), np.array(counts, np.int64)
    first, second = (np.empty(sum(counts), np.int64) for _ in range(2))
    if not kernels.decode_symbols(words, states.copy(), sizes, np.arange(len(counts)), tables, first, second):
        return None
    return (first.tolist(), second.tolist()) if kernels.read_bits(bits, first, second) else None


@pytest.mark.parametrize(
    ("value", "symbol", "extra"),
    [(0, 0, 0), (7, 7, 0), (8, 8, 1), (9, 8, 1), (15, 11, 1), (16, 12, 2), (2**22, 84, 20), (2**24 - 1, 91, 21)],
)
def test_split__by_hand(value: int, symbol: int, extra: int):
    assert rans.split(value) == (symbol, extra)


@pytest.mark.parametrize(
    "counts", [[1], [1, 1], [3, 1], [10**6, 1, 1, 1], [1] * 96, [5000] + [1] * 90, [7, 0, 0, 9], [10**9, 10**9, 1]]
)
def test_scale__any_counts__sum_to_the_total_and_keep_every_symbol(counts: list[int]):
    seen, frequencies = np.zeros(rans.SYMBOLS, np.int64), np.empty(rans.SYMBOLS, np.int64)
    seen[: len(counts)] = counts
    compile_all().scale(seen, frequencies)
    assert frequencies.sum() == rans.TOTAL
    assert ((frequencies > 0) == (seen > 0)).all()


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2**22), st.integers(0, 2**17)), max_size=200))
def test_decode__any_pairs_in_three_classes__are_restored(pairs: list[tuple[int, int, int]]):
    ordered = sorted(pairs, key=lambda pair: pair[0])
    counts = [sum(pair[0] == k for pair in pairs) for k in range(3)]
    first, second = [pair[1] for pair in ordered], [pair[2] for pair in ordered]
    assert restore(*code(first, second, counts), counts) == (first, second)


def test_encode_pairs__geometric_gaps__take_the_entropy_and_less_than_a_percent():
    rng = np.random.default_rng(0)
    gaps = rng.geometric(0.3, 50_000) - 1
    words, bits, _, _ = code(gaps.tolist(), [0] * 50_000, [50_000])
    entropy = -(0.3 * np.log2(0.3) + 0.7 * np.log2(0.7)) / 0.3 * 50_000
    assert 16 * len(words) + 8 * len(bits) < 1.01 * entropy


@pytest.mark.parametrize("cut", [1, 2])
def test_decode_symbols__words_missing_or_left__is_not_whole(cut: int):
    counts, rng = [400], np.random.default_rng(0)
    first, second = rng.integers(0, 200, 400).tolist(), rng.integers(0, 3, 400).tolist()
    words, bits, states, tables = code(first, second, counts)
    assert restore(words[:-cut], bits, states, tables, counts) is None
    assert restore(np.append(words, words[:cut]), bits, states, tables, counts) is None


def test_read_bits__bits_missing_left_or_not_zero_at_the_end__is_not_whole():
    counts = [1]
    words, bits, states, tables = code([9], [0], counts)
    assert bits.tolist() == [1]
    assert restore(words, bits, states, tables, counts) == ([9], [0])
    for wrong in ([], [1, 0], [3]):
        assert restore(words, np.array(wrong, np.uint8), states, tables, counts) is None
