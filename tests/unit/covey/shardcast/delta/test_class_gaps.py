"""Changes between arrays of bfloat16 bits, compared with values worked out by hand and with a slow reference."""

import numpy as np
import pytest

from covey.shardcast.delta.class_gaps import CLASSES, get_rank
from covey.shardcast.delta.kernels import compile_all

pytestmark = pytest.mark.unit

ONE, TWO = 0x3F80, 0x4000  # exponents 127 and 128


def find(parent: list[int], child: list[int]) -> list[tuple[int, int, int]]:
    """Return the class, gap and coded difference of each change."""
    n = len(parent)
    classes, gaps, differences = np.empty(n, np.uint8), np.empty(n, np.int64), np.empty(n, np.int64)
    bits = np.array(parent, np.uint16), np.array(child, np.uint16)
    count = compile_all().find_changes(*bits, classes, gaps, differences)
    return list(zip(classes[:count].tolist(), gaps[:count].tolist(), differences[:count].tolist(), strict=True))


@pytest.mark.parametrize(
    ("bits", "rank"),
    [(0x0000, 32768), (0x8000, 32767), (0x0001, 32769), (0x8001, 32766), (0x7FFF, 65535), (0xFFFF, 0)],
)
def test_get_rank__zeros_smallest_values_and_nans__are_in_order(bits: int, rank: int):
    assert get_rank(np.int64(bits)) == rank


def test_get_rank__all_patterns__are_distinct():
    assert {int(get_rank(np.int64(bits))) for bits in range(65536)} == set(range(65536))


def test_count_changes__nan_and_negative_zero__are_compared_as_bits():
    parent = np.array([ONE, 0x7FC0, 0x0000, TWO], np.uint16)
    assert compile_all().count_changes(parent, parent) == 0
    assert compile_all().count_changes(parent, np.array([TWO, 0x7FC0, 0x8000, TWO], np.uint16)) == 2


def test_find_changes__two_classes__gaps_count_unchanged_values_of_the_same_class():
    parent = [ONE, TWO, ONE, ONE, TWO, ONE]
    child = [ONE, TWO + 1, ONE + 2, ONE, TWO, ONE - 1]
    # ONE occurs at 0, 2, 3, 5: one unchanged value before the first change, and one between the changes.
    assert find(parent, child) == [(128, 0, 0), (127, 1, 2), (127, 1, 1)]


def test_find_changes__class_is_the_parents__even_if_the_child_has_another_exponent():
    assert find([ONE], [TWO]) == [(127, 0, 2 * 128 - 2)]


def test_find_changes__zero_becomes_negative_zero__is_a_step_down():
    assert find([0x0000], [0x8000]) == [(0, 0, 1)]


def test_find_changes__random_bits__equal_the_definition():
    rng = np.random.default_rng(1)
    parent = rng.integers(0, 1 << 16, 5000).astype(np.uint16) & 0x80FF  # exponents 0 and 1
    child = np.where(rng.random(5000) < 0.1, rng.integers(0, 1 << 16, 5000), parent).astype(np.uint16)
    expected, unchanged = [], dict.fromkeys(range(CLASSES), 0)
    for before, after in zip(parent.tolist(), child.tolist(), strict=True):
        kind = before >> 7 & 255
        if before == after:
            unchanged[kind] += 1
            continue
        moved = int(get_rank(after)) - int(get_rank(before))
        expected.append((kind, unchanged[kind], 2 * moved - 2 if moved > 0 else -2 * moved - 1))
        unchanged[kind] = 0
    assert find(parent.tolist(), child.tolist()) == expected


def test_sort_by_class__three_classes__keeps_the_order_within_each():
    classes = np.array([2, 0, 2, 1, 0], np.uint8)
    values, ordered = np.arange(10, 15), np.empty(5, np.int64)
    compile_all().sort_by_class(classes, values, np.bincount(classes, minlength=CLASSES), ordered)
    assert ordered.tolist() == [11, 14, 13, 10, 12]


@pytest.mark.parametrize(
    ("gap", "difference", "applied"), [(0, 0, 1), (1, 1, 1), (2, 0, 0), (0, 2 * 65535, -1), (0, 2 * 65535 + 1, -1)]
)
def test_apply_changes__beyond_the_class_or_bfloat16__is_reported(gap: int, difference: int, applied: int):
    counts = np.zeros(CLASSES, np.int64)
    counts[127] = 1
    parent, child = np.array([ONE, ONE], np.uint16), np.empty(2, np.uint16)
    found = compile_all().apply_changes(parent, np.array([gap]), np.array([difference]), counts, child)
    assert found == applied
    if applied == 1:
        assert child.tolist() == ([ONE + 1, ONE] if gap == 0 else [ONE, ONE - 1])
