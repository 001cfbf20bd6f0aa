"""Proofs from top values, comparisons of many completions, and the tops of tensors."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from covey.errors import ProtocolError
from covey.toploc import oracle, proofs
from covey.toploc.tensors import compute_top_tensor

pytestmark = pytest.mark.unit


def draw_bits(rows: int, hidden: int, seed: int) -> NDArray[np.uint16]:
    # Eight mantissas and three exponents: many ties.
    rng = np.random.default_rng(seed)
    return rng.choice(np.array([0x3F80, 0x3FC0, 0xBF80, 0xBFC0, 0x4000, 0xC010], np.uint16), (rows, hidden))


def test_build_from_top__tops_of_whole_windows__equals_build() -> None:
    bits = draw_bits(96, 24, seed=1)
    indices, values = oracle.find_top(bits.reshape(3, -1), 128)
    assert proofs.build_from_top(indices, values) == proofs.build(bits)


def test_build_from_top__two_values__is_the_line_by_hand() -> None:
    # (0, 3) and (1, 5): 3 + 2 x; (4, 1) and (6, 3): x - 3
    indices, values = np.array([[0, 1], [4, 6]], np.int64), np.array([[3, 5], [1, 3]], np.uint16)
    assert proofs.build_from_top(indices, values) == [bytes.fromhex("ffd9 0003 0002"), bytes.fromhex("ffd9 ffd6 0001")]


@pytest.mark.parametrize(
    ("indices", "values"),
    [
        (np.zeros((1, 2), np.int64), np.zeros((1, 3), np.uint16)),
        (np.zeros((1, 1), np.int32), np.zeros((1, 1), np.uint16)),
        (np.zeros((1, 1), np.int64), np.zeros((1, 1), np.int16)),
        (np.zeros((1, 0), np.int64), np.zeros((1, 0), np.uint16)),
        (np.zeros(1, np.int64), np.zeros(1, np.uint16)),
        (np.full((1, 1), -1, np.int64), np.zeros((1, 1), np.uint16)),
        (np.array([[3, 3]], np.int64), np.zeros((1, 2), np.uint16)),
    ],
)
def test_build_from_top__no_tops__are_refused(indices: NDArray[np.int64], values: NDArray[np.uint16]) -> None:
    with pytest.raises(ValueError, match=r"top values|negative|modulus"):
        proofs.build_from_top(indices, values)


def test_compare_top__tops_of_whole_windows__equals_compare_all() -> None:
    bits, replayed = draw_bits(64, 24, seed=1), draw_bits(64, 24, seed=2)
    built = proofs.build(bits)
    distances = proofs.compare_top(built, *oracle.find_top(replayed.reshape(2, -1), 128))
    assert distances == proofs.compare_all(built, replayed)
    assert distances[0].sign_exponent_mismatches > 0


def test_compare_top__wrong_number_of_proofs__is_malformed() -> None:
    indices, values = oracle.find_top(draw_bits(2, 24, seed=1), 4)
    with pytest.raises(ProtocolError) as caught:
        proofs.compare_top([b"x" * 10], indices, values)
    assert caught.value.code == "malformed_proof"


def test_compare_many__completions_of_mixed_lengths__equals_one_by_one() -> None:
    claimed = [draw_bits(rows, 16, seed=rows) for rows in (1, 5, 32, 40, 3, 64, 2)]
    replayed = [bits ^ np.uint16(rows % 3) for rows, bits in enumerate(claimed)]
    built = proofs.build_many(claimed)
    found = proofs.compare_many(built, replayed)
    assert found == [proofs.compare_all(sent, bits) for sent, bits in zip(built, replayed, strict=True)]
    assert [len(each) for each in found] == [1, 1, 1, 2, 1, 2, 1]


def test_compare_many__windows_of_another_size__are_told_apart() -> None:
    # Two hidden sizes with the same k = 8: both groups keep their order.
    claimed = [draw_bits(9, 16, seed=1), draw_bits(7, 40, seed=2), draw_bits(4, 16, seed=3)]
    built = proofs.build_many(claimed, window=4, top_k=8)
    found = proofs.compare_many(built, claimed, window=4, top_k=8)
    assert [[d.sign_exponent_mismatches for d in each] for each in found] == [[0, 0, 0], [0, 0], [0]]
    assert all(d.mantissa_mean == 0.0 for each in found for d in each)


def test_compare_many__short_window_before_a_whole_one_of_one_k__keeps_the_places() -> None:
    claimed = [draw_bits(5, 64, seed=1), draw_bits(8, 64, seed=2)]
    built = proofs.build_many(claimed, window=4, top_k=16)
    assert len({len(proof) for each in built for proof in each}) == 1
    changed = [claimed[0].copy(), claimed[1]]
    changed[0][4] ^= 0x8000
    found = proofs.compare_many(built, changed, window=4, top_k=16)
    assert [[d.sign_exponent_mismatches for d in each] for each in found] == [[0, 16], [0, 0]]


def test_compare_many__nothing__is_nothing() -> None:
    assert proofs.compare_many([], []) == []
    assert proofs.compare_all([], np.zeros((0, 4), np.uint16)) == []


@pytest.mark.parametrize("bad", [b"", b"\xff\xd9" + bytes(7), bytes(10), b"\xff\xda" + bytes(8), b"\xff" * 10])
def test_compare_many__one_malformed_proof_of_many__is_refused_before_any_arithmetic(
    bad: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    claimed = [draw_bits(3, 16, seed=seed) for seed in range(4)]
    built = proofs.build_many(claimed, top_k=4)
    built[3] = [bad]

    def fail(*_: object) -> None:
        raise AssertionError("arithmetic ran before all proofs were parsed")

    monkeypatch.setattr(proofs, "choose", fail)
    with pytest.raises(ProtocolError) as caught:
        proofs.compare_many(built, claimed, top_k=4)
    assert caught.value.code == "malformed_proof"


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 4), st.integers(1, 300), st.integers(1, 140), st.booleans())
def test_compute_top_tensor__any_bits__equals_numpy(seed: int, n: int, size: int, k: int, ties: bool) -> None:
    rng = np.random.default_rng(seed)
    bits = draw_bits(n, size, seed) if ties else rng.integers(0, 2**16, (n, size)).astype(np.uint16)
    k = min(k, size)
    indices, values = compute_top_tensor(torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16), k)
    expected_indices, expected_values = oracle.find_top(bits, k)
    assert indices.dtype == np.int64
    assert values.dtype == np.uint16
    assert np.array_equal(indices, expected_indices)
    assert np.array_equal(values, expected_values)


def test_compute_top_tensor__strided_states__give_the_proofs_of_their_bits() -> None:
    states = torch.randn(64, 48, generator=torch.Generator().manual_seed(5)).to(torch.bfloat16)[:, ::2]
    bits = states.contiguous().view(torch.int16).numpy().view(np.uint16)
    top = compute_top_tensor(states.reshape(2, -1), 128)
    assert proofs.build_from_top(*top) == proofs.build(bits)


@pytest.mark.parametrize(
    ("windows", "k"),
    [(torch.zeros(2, 4), 1), (torch.zeros(4, dtype=torch.bfloat16), 1), (torch.zeros(1, 4, dtype=torch.bfloat16), 5)],
)
def test_compute_top_tensor__no_windows__are_refused(windows: torch.Tensor, k: int) -> None:
    with pytest.raises(ValueError, match="windows are bfloat16"):
        compute_top_tensor(windows, k)
