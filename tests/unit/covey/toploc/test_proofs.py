"""Proof bytes equal those of an independent slow implementation, parsing is strict, and distances match by hand."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from covey.errors import ProtocolError
from covey.toploc import proofs
from covey.toploc.topk import Capture

pytestmark = pytest.mark.unit

PRIME = 65497


def slow_top(values: list[int], k: int) -> list[int]:
    return sorted(sorted(range(len(values)), key=lambda i: (-(values[i] & 0x7FFF), i))[:k])


def slow_proof(values: list[int], top_k: int) -> bytes:
    """Compute Lagrange interpolation over Python integers, one basis polynomial at a time."""
    indices = slow_top(values, min(top_k, len(values)))
    modulus = next(m for m in range(PRIME, 0, -1) if len({i % m for i in indices}) == len(indices))
    points = [i % modulus for i in indices]
    total = [0] * len(points)
    for i, x in zip(indices, points, strict=True):
        basis, scale = [1], 1
        for other in points:
            if other != x:
                basis = [(low - other * high) % PRIME for low, high in zip([0, *basis], [*basis, 0], strict=True)]
                scale = scale * (x - other) % PRIME
        factor = values[i] * pow(scale, -1, PRIME)
        total = [(t + factor * b) % PRIME for t, b in zip(total, basis, strict=True)]
    return b"".join(word.to_bytes(2, "big") for word in [modulus, *total])


def random_bits(rows: int, hidden: int, seed: int = 0, scale: float = 1.0) -> np.ndarray:
    return to_bits(np.random.default_rng(seed).normal(scale=scale, size=(rows, hidden)))


def to_bits(values: np.ndarray) -> np.ndarray:
    """Return the bfloat16 bits of values, rounded to nearest even."""
    words = values.astype(np.float32).view(np.uint32).astype(np.uint64)
    return ((words + 0x7FFF + ((words >> 16) & 1)) >> 16).astype(np.uint16)


def test_build__two_values__is_the_line_by_hand() -> None:
    # The line through (0, 3) and (1, 5) is 3 + 2 x.
    assert proofs.build(np.array([[3, 5]], np.uint16)) == [bytes.fromhex("ffd9 0003 0002")]


def test_build__sign_bit__is_in_the_value_and_not_in_the_order() -> None:
    # The largest by magnitude are index 1 (0x8004) and index 2 (3), so the line runs through (1, 0x8004 = 32772) and
    # (2, 3). Its slope is 3 - 32772 = -32769 = 32728 and its constant is 32772 - 32728 = 44.
    assert proofs.build(np.array([[2, 0x8004, 3]], np.uint16), top_k=2) == [bytes.fromhex("ffd9 002c 7fd8")]


def test_build__bit_patterns_beyond_the_field__wrap() -> None:
    assert proofs.build(np.array([[0xFFFF]], np.uint16)) == [bytes.fromhex("ffd9 0026")]


@settings(max_examples=25, deadline=None)
@given(
    st.integers(min_value=1, max_value=9),
    st.integers(min_value=1, max_value=7),
    st.integers(min_value=1, max_value=12),
    st.integers(min_value=1, max_value=4),
    st.data(),
)
def test_build__any_bits__equals_the_slow_implementation(
    rows: int, hidden: int, top_k: int, window: int, data: st.DataObject
) -> None:
    # Few distinct values make ties likely.
    values = st.one_of(st.integers(min_value=0, max_value=0xFFFF), st.sampled_from([0, 1, 0x8001, 0x3F80]))
    flat = data.draw(st.lists(values, min_size=rows * hidden, max_size=rows * hidden))
    bits = np.array(flat, np.uint16).reshape(rows, hidden)
    step = window * hidden
    expected = [slow_proof(flat[start : start + step], top_k) for start in range(0, len(flat), step)]
    assert proofs.build(bits, window, top_k) == expected


def test_build__full_window_of_the_default_size__equals_the_slow_implementation() -> None:
    bits = random_bits(33, 96)
    flat = bits.reshape(-1).tolist()
    built = proofs.build(bits)
    assert built == [slow_proof(flat[: 32 * 96], 128), slow_proof(flat[32 * 96 :], 128)]
    assert [len(each) for each in built] == [258, 2 + 2 * 96]


def test_build__indices_that_collide__take_a_smaller_modulus() -> None:
    # Indices 0 and 65497 are equal modulo 65497, but not modulo 65496.
    bits = np.zeros((1, 65498), np.uint16)
    bits[0, [0, 65497]] = [7, 9]
    (proof,) = proofs.build(bits, top_k=2)
    # The line through (0, 7) and (1, 9) is 7 + 2 x.
    assert proof == bytes.fromhex("ffd8 0007 0002")


def test_build_many__mixed_lengths__equals_one_by_one() -> None:
    completions = [random_bits(rows, 16, seed=rows) for rows in (1, 5, 32, 40, 3, 64)] + [
        random_bits(2, 16, seed=100 + i) for i in range(40)
    ]
    tops = proofs.find_tops(completions, Capture(window=32, top_k=128))
    assert proofs.build_many(tops) == [proofs.build(each) for each in completions]


@pytest.mark.parametrize("bits", [np.zeros((0, 4), np.uint16), np.zeros(4, np.uint16), np.zeros((2, 2), np.int16)])
def test_build__not_rows_of_bits__is_refused(bits: np.ndarray) -> None:
    with pytest.raises(ValueError, match="hidden bits"):
        proofs.build(bits)


@given(st.lists(st.integers(min_value=0, max_value=0xFFFF), min_size=1, max_size=60), st.data())
def test_compute_top__any_values__equals_a_stable_sort(values: list[int], data: st.DataObject) -> None:
    k = data.draw(st.integers(min_value=1, max_value=len(values)))
    assert proofs.compute_top(np.array(values, np.uint16), k).tolist() == slow_top(values, k)


def test_parse__good_proof__gives_modulus_and_coefficients() -> None:
    parsed = proofs.parse(bytes.fromhex("ffd8 0007 ffd8"), 2)
    assert (parsed.modulus, parsed.coefficients.tolist()) == (65496, [7, 65496])


@pytest.mark.parametrize(
    "proof",
    [
        b"",
        bytes.fromhex("ffd9 0001"),
        bytes.fromhex("ffd9 0001 0002 00"),
        bytes.fromhex("ffd9 0001 0002 0003"),
        bytes.fromhex("ffda 0001 0002"),
        bytes.fromhex("ffff 0001 0002"),
        bytes.fromhex("0001 0001 0002"),
        bytes.fromhex("0000 0001 0002"),
        bytes.fromhex("ffd9 ffd9 0002"),
        bytes.fromhex("ffd9 0001 ffff"),
    ],
)
def test_parse__anything_else__is_malformed(proof: bytes) -> None:
    with pytest.raises(ProtocolError) as caught:
        proofs.parse(proof, 2)
    assert caught.value.code == "malformed_proof"


@given(st.binary(max_size=12), st.integers(min_value=1, max_value=4))
def test_parse__any_bytes__parse_or_are_refused(proof: bytes, k: int) -> None:
    words = [int.from_bytes(proof[i : i + 2], "big") for i in range(0, len(proof), 2)]
    good = len(proof) == 2 + 2 * k and k <= words[0] <= PRIME and all(word < PRIME for word in words[1:])
    if good:
        parsed = proofs.parse(proof, k)
        assert [parsed.modulus, *parsed.coefficients.tolist()] == words
    else:
        with pytest.raises(ProtocolError):
            proofs.parse(proof, k)


@settings(max_examples=20, deadline=None)
@given(st.integers(min_value=1, max_value=70), st.integers(min_value=0, max_value=1000))
def test_compare_all__equal_activations__are_at_distance_zero(rows: int, seed: int) -> None:
    bits = random_bits(rows, 12, seed)
    distances = proofs.compare_all(proofs.build(bits), bits)
    assert len(distances) == (rows + 31) // 32
    assert set(distances) == {
        proofs.Distances(sign_exponent_mismatches=0, mantissa_mean=0.0, mantissa_median=0.0, mantissa_rest=0.0)
    }


def test_compare__changed_bits__are_counted_by_hand() -> None:
    claimed = np.array([[0x4080, 0x4081, 0x4082, 0x4083, 0x4084]], np.uint16)
    # The values differ in sign, in exponent, by 8 in the mantissa, by 1 in the mantissa, and not at all.
    replayed = np.array([[0xC080, 0x4101, 0x408A, 0x4084, 0x4084]], np.uint16)
    (proof,) = proofs.build(claimed)
    assert proofs.compare(proof, replayed) == proofs.Distances(
        sign_exponent_mismatches=2, mantissa_mean=3.0, mantissa_median=1.0, mantissa_rest=0.125
    )  # all five values are in the proof, so the rest is a quarter of (1 + 0) / 2

    smaller = np.zeros((1, 1), np.uint16)  # adds one value that is not among the top five
    (proof,) = proofs.build(np.hstack([smaller, claimed]), top_k=5)
    distances = proofs.compare(proof, np.hstack([smaller, replayed]), 5)
    assert (distances.mantissa_mean, distances.mantissa_rest) == (3.0, 0.5)


def test_compare__nothing_agrees__is_infinitely_far() -> None:
    (proof,) = proofs.build(np.array([[0x4080, 0x4081]], np.uint16))
    distances = proofs.compare(proof, np.array([[0xC080, 0xC081]], np.uint16))
    assert distances == proofs.Distances(
        sign_exponent_mismatches=2, mantissa_mean=np.inf, mantissa_median=np.inf, mantissa_rest=np.inf
    )


def test_compare__activations_in_another_place__mismatch() -> None:
    claimed, replayed = np.zeros((1, 600), np.uint16), np.zeros((1, 600), np.uint16)
    claimed[0, :128] = replayed[0, 300:428] = random_bits(1, 128)[0]
    (proof,) = proofs.build(claimed)
    assert proofs.compare(proof, replayed).sign_exponent_mismatches > 100


def test_compare__strided_activations__equal_contiguous_ones() -> None:
    bits = random_bits(32, 24)
    strided = np.repeat(bits, 2, axis=1)[:, ::2]
    (proof,) = proofs.build(strided)
    assert proofs.compare(proof, strided) == proofs.compare(proof, bits)


@pytest.mark.parametrize("proofs_sent", [[], [b"x"] * 3])
def test_compare_all__wrong_number_of_proofs__is_malformed(proofs_sent: list[bytes]) -> None:
    with pytest.raises(ProtocolError) as caught:
        proofs.compare_all(proofs_sent, random_bits(33, 4))
    assert caught.value.code == "malformed_proof"


@pytest.mark.parametrize(
    ("modulus", "size", "lawful"),
    [
        (65497, 32 * 96, True),
        (65496, 32 * 96, False),  # indices below the prime never collide
        (65497, 65497, True),
        (65496, 65497, False),
        (65497, 65498, True),
        (65241, 163_840, True),
        (65240, 163_840, False),
        (5120, 163_840, False),
        (65498, 163_840, False),
    ],
)
def test_is_lawful_modulus__by_hand(modulus: int, size: int, lawful: bool) -> None:
    assert proofs.is_lawful_modulus(modulus, size) is lawful


@settings(deadline=None, max_examples=200)
@given(st.data())
def test_find_malformed__many_at_once__is_the_first_that_alone_is_malformed(data: st.DataObject) -> None:
    """Windows of several sizes have a k of 2 or 3, and good proofs are mixed with each kind of bad proof."""
    proofs_of = {
        # size: (good proof, bad proofs) of top_k 3. 65521 is not an element of the field, whose largest is 65496.
        2: ("ffd9 0007 ffd8", ["ffd8 0007 ffd8", "ffd9 0007", "ffd9 0007 ffd9", "ffda 0007 0001", ""]),
        4: ("ffd9 0001 0002 0003", ["ffd9 0001 0002", "0002 0001 0002 0003", "ffd9 0001 0002 fff1"]),
    }
    drawn = [
        (size, data.draw(st.sampled_from([proofs_of[size][0]] * 8 + proofs_of[size][1])))
        for size in data.draw(st.lists(st.sampled_from([2, 4]), max_size=12))
    ]
    bad = [i for i, (size, proof) in enumerate(drawn) if proof in proofs_of[size][1]]
    malformed = proofs.find_malformed(
        [bytes.fromhex(proof) for _, proof in drawn], [size for size, _ in drawn], top_k=3
    )
    assert (malformed[0] if malformed else None) == (bad[0] if bad else None)


def test_is_lawful_modulus__honest_windows_of_a_large_model__are_within() -> None:
    rng = np.random.default_rng(3)
    for _ in range(300):
        bits = rng.integers(0, 1 << 15, (32, 5120), dtype=np.uint16)
        modulus = int.from_bytes(proofs.build(bits)[0][:2], "big")
        assert proofs.is_lawful_modulus(modulus, bits.size)
