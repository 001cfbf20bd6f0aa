"""Top values, proofs and comparisons of many completions together equal those of one at a time."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from covey.errors import ProtocolError
from covey.protocol.params import VerificationParams
from covey.toploc import proofs, reference
from covey.toploc.topk import EVERYTHING, Capture, Top, build_capture, join
from covey.toploc.topk_torch import compute_top_tensor, compute_tops_tensor, find_tops

pytestmark = pytest.mark.unit

PAPER = Capture(window=32, top_k=128)


def draw_bits(rows: int, hidden: int, seed: int) -> NDArray[np.uint16]:
    # Few distinct values make many ties.
    rng = np.random.default_rng(seed)
    return rng.choice(np.array([0x3F80, 0x3FC0, 0xBF80, 0xBFC0, 0x4000, 0xC010], np.uint16), (rows, hidden))


def draw_top(*pairs: tuple[int, int]) -> Top:
    return Top(indices=np.array([i for i, _ in pairs], np.int64), bits=np.array([v for _, v in pairs], np.uint16))


def list_tops(tops: tuple[Top, ...]) -> list[tuple[list[int], list[int]]]:
    return [(top.indices.tolist(), top.bits.tolist()) for top in tops]


def as_tensor(bits: NDArray[np.uint16]) -> torch.Tensor:
    return torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16)


@pytest.mark.parametrize(("window", "top_k"), [(0, 1), (1, 0), (-1, 128), (32, -1)])
def test_capture__nothing_to_keep__is_refused(window: int, top_k: int) -> None:
    with pytest.raises(ValueError, match="both must be at least 1"):
        Capture(window=window, top_k=top_k)


def test_build_capture__rules_of_a_pool__are_its_window_and_k() -> None:
    assert build_capture(VerificationParams()) == PAPER
    assert build_capture(VerificationParams(proof_window=7, proof_top_k=3)) == Capture(window=7, top_k=3)


def test_find_tops__two_windows__by_hand() -> None:
    bits = np.array([[1, 0x8005], [3, 3], [9, 0x8009]], np.uint16)
    (tops,) = proofs.find_tops([bits], Capture(window=2, top_k=3))
    # The first window keeps all of 1, -5, 3, 3 but the 1. The second keeps both 9 and -9.
    assert list_tops(tops) == [([1, 2, 3], [0x8005, 3, 3]), ([0, 1], [9, 0x8009])]


@pytest.mark.parametrize("capture", [EVERYTHING, Capture(window=3, top_k=4), Capture(window=40, top_k=7)])
def test_find_tops__any_window__is_compute_top_of_its_rows(capture: Capture) -> None:
    completions = [draw_bits(rows, 16, seed=rows) for rows in (1, 3, 4, 6, 41)]
    for bits, tops in zip(completions, proofs.find_tops(completions, capture), strict=True):
        windows = [bits[start : start + capture.window] for start in range(0, len(bits), capture.window)]
        for window, top in zip(windows, tops, strict=True):
            values = window.reshape(-1)
            expected = proofs.compute_top(values, min(capture.top_k, values.size))
            assert (top.indices.tolist(), top.bits.tolist()) == (expected.tolist(), values[expected].tolist())


def test_join__everything_captured__is_the_states() -> None:
    bits = draw_bits(5, 24, seed=1)
    (tops,) = proofs.find_tops([bits], EVERYTHING)
    assert np.array_equal(join(tops), bits)


def test_build_many__two_values__is_the_line_by_hand() -> None:
    # The line through (0, 3) and (1, 5) is 3 + 2 x. The line through (4, 1) and (6, 3) is x - 3.
    lines = proofs.build_many([(draw_top((0, 3), (1, 5)), draw_top((4, 1), (6, 3))), ()])
    assert lines == [[bytes.fromhex("ffd9 0003 0002"), bytes.fromhex("ffd9 ffd6 0001")], []]


@pytest.mark.parametrize(
    ("indices", "bits"),
    [
        (np.zeros(2, np.int64), np.zeros(3, np.uint16)),
        (np.zeros(1, np.int32), np.zeros(1, np.uint16)),
        (np.zeros(1, np.int64), np.zeros(1, np.int16)),
        (np.zeros(0, np.int64), np.zeros(0, np.uint16)),
        (np.zeros((1, 1), np.int64), np.zeros((1, 1), np.uint16)),
        (np.full(1, -1, np.int64), np.zeros(1, np.uint16)),
        (np.array([3, 3], np.int64), np.zeros(2, np.uint16)),
    ],
)
def test_build_many__invalid_tops__are_refused(indices: NDArray[np.int64], bits: NDArray[np.uint16]) -> None:
    with pytest.raises(ValueError, match=r"top values|negative|modulus"):
        proofs.build_many([(Top(indices=indices, bits=bits),)])


def test_compare_many__another_line__by_hand() -> None:
    # 3 + 2 x is 5 and 7 at 1 and 2, so the mantissas differ by 1 and 4.
    (distances,) = proofs.compare_many([[bytes.fromhex("ffd9 0003 0002")]], [(draw_top((1, 6), (2, 11)),)])
    assert distances == [
        proofs.Distances(sign_exponent_mismatches=0, mantissa_mean=2.5, mantissa_median=2.5, mantissa_rest=1.0)
    ]


@pytest.mark.parametrize("sent", [[], [bytes.fromhex("ffd9 0003 0002")] * 2])
def test_compare_many__wrong_number_of_proofs__is_malformed(sent: list[bytes]) -> None:
    with pytest.raises(ProtocolError) as caught:
        proofs.compare_many([sent], [(draw_top((0, 3), (1, 5)),)])
    assert caught.value.code == "malformed_proof"


def test_compare_many__completions_of_mixed_lengths__equals_one_by_one() -> None:
    claimed = [draw_bits(rows, 16, seed=rows) for rows in (1, 5, 32, 40, 3, 64, 2)]
    replayed = [bits ^ np.uint16(rows % 3) for rows, bits in enumerate(claimed)]
    built = proofs.build_many(proofs.find_tops(claimed, PAPER))
    distances = proofs.compare_many(built, proofs.find_tops(replayed, PAPER))
    assert distances == [proofs.compare_all(sent, bits) for sent, bits in zip(built, replayed, strict=True)]
    assert [len(each) for each in distances] == [1, 1, 1, 2, 1, 2, 1]


def test_compare_many__windows_of_several_sizes__keep_their_order() -> None:
    # Two hidden sizes have the same k of 8, so their windows are in one group.
    claimed = [draw_bits(9, 16, seed=1), draw_bits(7, 40, seed=2), draw_bits(4, 16, seed=3)]
    tops = proofs.find_tops(claimed, Capture(window=4, top_k=8))
    distances = proofs.compare_many(proofs.build_many(tops), tops)
    assert [[d.sign_exponent_mismatches for d in each] for each in distances] == [[0, 0, 0], [0, 0], [0]]
    assert all(d.mantissa_mean == 0.0 for each in distances for d in each)


def test_compare_many__short_window_before_a_whole_one_with_the_same_k__keeps_the_order() -> None:
    claimed, capture = [draw_bits(5, 64, seed=1), draw_bits(8, 64, seed=2)], Capture(window=4, top_k=16)
    built = proofs.build_many(proofs.find_tops(claimed, capture))
    assert len({len(proof) for each in built for proof in each}) == 1
    changed = [claimed[0].copy(), claimed[1]]
    changed[0][4] ^= 0x8000
    distances = proofs.compare_many(built, proofs.find_tops(changed, capture))
    assert [[d.sign_exponent_mismatches for d in each] for each in distances] == [[0, 16], [0, 0]]


def test_compare_many__nothing__is_nothing() -> None:
    assert proofs.compare_many([], []) == []
    assert proofs.compare_all([], np.zeros((0, 4), np.uint16)) == []


@pytest.mark.parametrize("bad", [b"", b"\xff\xd9" + bytes(7), bytes(10), b"\xff\xda" + bytes(8), b"\xff" * 10])
def test_compare_many__one_malformed_proof_of_many__is_refused_before_any_arithmetic(
    bad: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The first windows have another k than the last window, whose proof is bad.
    claimed = [draw_bits(rows, 2, seed=rows) for rows in (1, 2, 3, 3)]
    tops = proofs.find_tops(claimed, Capture(window=32, top_k=4))
    built = proofs.build_many(tops)
    built[3] = [bad]

    def fail(*_: object) -> None:
        raise AssertionError("arithmetic ran before all proofs were parsed")

    monkeypatch.setattr(proofs, "choose", fail)
    with pytest.raises(ProtocolError) as caught:
        proofs.compare_many(built, tops)
    assert caught.value.code == "malformed_proof"


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 4), st.integers(1, 300), st.integers(1, 140), st.booleans())
def test_compute_top_tensor__any_bits__equals_numpy(seed: int, n: int, size: int, k: int, ties: bool) -> None:
    rng = np.random.default_rng(seed)
    bits = draw_bits(n, size, seed) if ties else rng.integers(0, 2**16, (n, size)).astype(np.uint16)
    k = min(k, size)
    indices, values = compute_top_tensor(as_tensor(bits), k)
    expected_indices, expected_values = reference.find_top(bits, k)
    assert indices.dtype == np.int64
    assert values.dtype == np.uint16
    assert np.array_equal(indices, expected_indices)
    assert np.array_equal(values, expected_values)


@pytest.mark.parametrize("find", [find_tops, compute_tops_tensor])
@pytest.mark.parametrize("capture", [PAPER, EVERYTHING, Capture(window=5, top_k=9)])
def test_find_tops__states_of_ragged_completions__are_those_of_their_bits(find, capture: Capture) -> None:  # type: ignore[no-untyped-def]
    completions = [draw_bits(rows, 12, seed=rows) for rows in (1, 64, 5, 33, 32, 4, 1)]
    tops_of_all = find(as_tensor(np.concatenate(completions)), [len(each) for each in completions], capture)
    expected = proofs.find_tops(completions, capture)
    assert [list_tops(tops) for tops in tops_of_all] == [list_tops(tops) for tops in expected]


@pytest.mark.parametrize("find", [find_tops, compute_tops_tensor])
def test_find_tops__strided_float32_states__are_rounded_first(find) -> None:  # type: ignore[no-untyped-def]
    # 1 + 2**-9 rounds to 1 and 1 + 3 * 2**-9 to 1 + 2**-7. The tie at 1 goes to the lower index.
    rows = torch.tensor([[1.0, 1 + 2**-9, 1 + 3 * 2**-9, 0.5]]).repeat_interleave(2, dim=1)[:, ::2]
    assert list_tops(find(rows, [1], Capture(window=1, top_k=2))[0]) == [([0, 2], [0x3F80, 0x3F81])]


@pytest.mark.parametrize("find", [find_tops, compute_tops_tensor])
def test_find_tops__no_completions__have_none(find) -> None:  # type: ignore[no-untyped-def]
    assert find(torch.zeros(0, 4), [], PAPER) == []


@pytest.mark.parametrize(
    ("windows", "k"),
    [(torch.zeros(2, 4), 1), (torch.zeros(4, dtype=torch.bfloat16), 1), (torch.zeros(1, 4, dtype=torch.bfloat16), 5)],
)
def test_compute_top_tensor__invalid_windows__are_refused(windows: torch.Tensor, k: int) -> None:
    with pytest.raises(ValueError, match="must be bfloat16"):
        compute_top_tensor(windows, k)
