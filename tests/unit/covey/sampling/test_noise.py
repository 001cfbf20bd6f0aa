"""The generator gives the published known answers, and its implementations agree."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from covey.sampling.noise import gumbel, philox_words
from covey.sampling.noise_kernels import compile_all
from covey.sampling.torch_sampler import compute_gumbel, compute_words

pytestmark = pytest.mark.unit

seeds_of = st.integers(min_value=0, max_value=2**64 - 1)
positions_of = st.integers(min_value=0, max_value=2**32 - 1)


def slow_philox(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """Compute Philox 4x32-10 as the paper defines it, in Python integers."""
    (a, b, c, d), (k, m) = counter, key
    for _ in range(10):
        left, right = 0xD2511F53 * a, 0xCD9E8D57 * c
        a, b, c, d = (right >> 32) ^ b ^ k, right % 2**32, (left >> 32) ^ d ^ m, left % 2**32
        k, m = (k + 0x9E3779B9) % 2**32, (m + 0xBB67AE85) % 2**32
    return a, b, c, d


# Random123, kat_vectors, "philox4x32 10": counter, key, result.
KNOWN = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


def words(text: str) -> tuple[int, ...]:
    return tuple(int(word, 16) for word in text.split())


@pytest.mark.parametrize(("counter", "key", "result"), KNOWN)
def test_slow_philox__published_vectors__are_met(counter: str, key: str, result: str) -> None:
    assert slow_philox(words(counter), words(key)) == words(result)  # type: ignore[arg-type]


def philox_words_compiled(seeds: np.ndarray, positions: np.ndarray, vocabulary: int) -> np.ndarray:
    out = np.empty((len(seeds), vocabulary), np.uint32)
    compile_all().fill_words(seeds, positions, out)
    return out


def as_tensors(seeds: np.ndarray, positions: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.from_numpy(seeds.view(np.int64)), torch.from_numpy(positions.astype(np.int64))


def words_of_tensor(seeds: np.ndarray, positions: np.ndarray, vocabulary: int) -> np.ndarray:
    return compute_words(*as_tensors(seeds, positions), vocabulary).numpy()


@pytest.mark.parametrize("function", [philox_words, philox_words_compiled, words_of_tensor])
def test_philox_words__published_vector__is_met(function) -> None:  # type: ignore[no-untyped-def]
    computed = function(np.array([0], np.uint64), np.array([0], np.uint32), 4)
    assert tuple(computed[0].tolist()) == words(KNOWN[0][2])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(seeds_of, positions_of), min_size=1, max_size=4), st.integers(min_value=1, max_value=23))
def test_philox_words__any_seed_and_position__all_implementations_agree(
    rows: list[tuple[int, int]], vocabulary: int
) -> None:
    seeds = np.array([seed for seed, _ in rows], np.uint64)
    positions = np.array([position for _, position in rows], np.uint32)
    expected = [
        [slow_philox((v // 4, position, 0, 0), (seed % 2**32, seed >> 32))[v % 4] for v in range(vocabulary)]
        for seed, position in rows
    ]
    assert philox_words(seeds, positions, vocabulary).tolist() == expected
    assert philox_words_compiled(seeds, positions, vocabulary).tolist() == expected
    assert words_of_tensor(seeds, positions, vocabulary).tolist() == expected


@pytest.mark.parametrize("vocabulary", [256, 257, 511, 32_000, 151_937, 256_000])
def test_philox_words__vocabularies_of_models__implementations_agree(vocabulary: int) -> None:
    seeds, positions = np.array([2**64 - 1, 12345], np.uint64), np.array([2**32 - 1, 0], np.uint32)
    plain, compiled = philox_words(seeds, positions, vocabulary), philox_words_compiled(seeds, positions, vocabulary)
    assert plain.dtype == compiled.dtype == np.uint32
    assert plain.shape == (2, vocabulary)
    assert np.array_equal(plain, compiled)
    assert np.array_equal(plain, words_of_tensor(seeds, positions, vocabulary))


@pytest.mark.parametrize("function", [philox_words, philox_words_compiled, words_of_tensor])
def test_philox_words__block_of_a_known_key__is_the_one_by_hand(function) -> None:  # type: ignore[no-untyped-def]
    # The case covers both halves of the key, the position and a block that is not the first of its chunk.
    computed = function(np.array([0x299F31D0A4093822], np.uint64), np.array([0x85A308D3], np.uint32), 4 * 67)
    assert tuple(computed[0, 4 * 66 :].tolist()) == slow_philox((66, 0x85A308D3, 0, 0), (0xA4093822, 0x299F31D0))


def test_gumbel__any_word__is_the_formula() -> None:
    seeds, positions = np.array([7, 2**62 + 9], np.uint64), np.array([0, 5], np.uint32)
    noise = gumbel(seeds, positions, 259)
    raw = philox_words(seeds, positions, 259)
    expected = [[-math.log(-math.log((int(word) + 0.5) / 2**32)) for word in row] for row in raw]
    # The tolerance is one unit in the last place, because libraries may round a logarithm differently.
    np.testing.assert_array_max_ulp(noise, np.array(expected, np.float32), maxulp=1)


def test_gumbel__batch__does_not_change_a_row() -> None:
    seeds, positions = np.arange(6, dtype=np.uint64) * 977, np.arange(6, dtype=np.uint32)
    together = gumbel(seeds, positions, 40)
    for row in range(6):
        assert np.array_equal(gumbel(seeds[row : row + 1], positions[row : row + 1], 40)[0], together[row])


def test_gumbel__many_values__have_the_mean_and_variance_of_the_distribution() -> None:
    values = gumbel(np.arange(100, dtype=np.uint64), np.zeros(100, np.uint32), 2000).astype(np.float64)
    # The mean is 0.5772 (Euler) and the variance pi^2 / 6. With 200,000 values the standard errors are 0.003 and 0.008.
    assert abs(values.mean() - 0.57722) < 0.012
    assert abs(values.var() - math.pi**2 / 6) < 0.04


@pytest.mark.parametrize("vocabulary", [256, 32_000, 256_000])
def test_gumbel__compiled_and_tensor_versions__are_equal_and_the_formula(vocabulary: int) -> None:
    seeds, positions = np.array([2**64 - 1, 5], np.uint64), np.array([3, 70_000], np.uint32)
    compiled = gumbel(seeds, positions, vocabulary)
    tensor = compute_gumbel(*as_tensors(seeds, positions), vocabulary)
    assert tensor.dtype == torch.float32
    assert np.array_equal(compiled, tensor.numpy())
    uniform = (philox_words(seeds, positions, vocabulary) + 0.5) * 2.0**-32
    np.testing.assert_array_max_ulp(compiled, (-np.log(-np.log(uniform))).astype(np.float32), maxulp=1)


def test_gumbel__fewer_positions_than_seeds__is_refused() -> None:
    with pytest.raises(ValueError, match="2 seeds were given for 1 positions"):
        gumbel(np.zeros(2, np.uint64), np.zeros(1, np.uint32), 4)
