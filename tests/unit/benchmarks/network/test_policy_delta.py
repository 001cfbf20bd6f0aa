"""The benchmark of policy deltas: sizes of the peers' forms, and the bound, worked out by hand."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from benchmarks.network import policy_delta
from benchmarks.network.policy_delta import compress, compute_bound, measure_covey, measure_gaps, measure_indices

pytestmark = pytest.mark.unit
ONE = 0x3F80


def change(n: int, *places: int) -> tuple[np.ndarray, np.ndarray]:
    """Return n ones, and the same with the next value at some places."""
    parent = np.full(n, ONE, np.uint16)
    child = parent.copy()
    child[list(places)] += 1
    return parent, child


def test_compress__two_arrays__are_compressed_on_their_own():
    codec = pa.Codec("zstd", compression_level=1)
    arrays = np.zeros(100, np.uint8), np.arange(50, dtype=np.int32)
    assert compress(*arrays) == sum(len(codec.compress(array.tobytes(), asbytes=True)) for array in arrays)


def test_measure_gaps__gap_over_65535__takes_a_continuation():
    values = np.full(2, ONE + 1, np.uint16)
    assert measure_gaps(*change(70_000, 3, 69_999)) == compress(np.array([65535, 3, 69_995 - 65535], np.uint16), values)


def test_measure_indices__two_changes__are_their_places_and_values():
    assert measure_indices(*change(10, 2, 9)) == compress(np.array([2, 9], np.int32), np.full(2, ONE + 1, np.uint16))


def test_measure_covey__decoder_gives_something_else__is_an_error(monkeypatch: pytest.MonkeyPatch):
    assert measure_covey(*change(1000, 7)) > 0
    monkeypatch.setattr(policy_delta.DeltaFile, "apply", lambda *_: None)
    with pytest.raises(RuntimeError, match="differs from the child"):
        measure_covey(*change(1000, 7))


def test_compute_bound__half_of_one_class_changes__counts_places_and_differences():
    """Two of four values change: 4 bits for the places, and 1 bit for each of the two different differences."""
    parent, child = np.full(4, ONE, np.uint16), np.array([ONE + 1, ONE, ONE - 1, ONE], np.uint16)
    assert compute_bound(parent, child) == (4 + 2) / 8


def test_compute_bound__all_values_of_a_class_change_alike__is_zero():
    parent, child = np.full(4, ONE, np.uint16), np.full(4, ONE + 1, np.uint16)
    assert compute_bound(parent, child) == 0


def test_load__two_tensors__are_one_array_in_the_order_of_their_names(tmp_path: Path):
    np.savez(tmp_path / "8.npz", b=np.array([[3], [4]], np.uint16), a=np.array([1, 2], np.uint16))
    assert policy_delta.load(tmp_path / "8.npz").tolist() == [1, 2, 3, 4]
