"""The race that computes only a little noise has the same winner and score, to the bit, as one with all noise."""

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from covey.sampling import noise_kernels, torch_sampler
from covey.sampling.noise import gumbel
from covey.sampling.sampler import sample, score

pytestmark = pytest.mark.unit

KINDS = ["flat", "normal", "wide", "peaked", "ties", "falling", "rising", "masked", "huge", "bf16"]


def draw_logits(seed: int, n: int, size: int, kind: str) -> NDArray[np.float32]:
    rng = np.random.default_rng(seed)
    normal = rng.standard_normal((n, size)).astype(np.float32)
    if kind == "flat":
        normal[:] = 1.5
    elif kind == "wide":
        normal *= 30
    elif kind == "peaked":
        normal[:, rng.integers(0, size)] += 40
    elif kind == "ties":
        # One unit in the last place is 8, so every token whose noise is 4 to 12 ties with the token that starts ahead.
        normal[:] = 2**26
        normal[:, rng.integers(0, size)] += 8
    elif kind == "falling":
        normal = np.sort(normal * 8, axis=1)[:, ::-1]
    elif kind == "rising":
        normal = np.sort(normal * 8, axis=1)
    elif kind == "masked":
        normal[:, rng.random(size) < 0.9] = -np.inf
    elif kind == "huge":
        normal *= 1e30
    elif kind == "bf16":
        normal = torch.from_numpy(normal * 4).to(torch.bfloat16).to(torch.float32).numpy()
    return np.ascontiguousarray(normal.astype(np.float32))


def race_in_full(
    logits: NDArray[np.float32], seeds: NDArray[np.uint64], positions: NDArray[np.uint32], temperature: float
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    scores = logits / np.float32(temperature) + gumbel(seeds, positions, logits.shape[1])
    return scores.argmax(axis=1), scores.max(axis=1)


@settings(max_examples=150, deadline=None)
@given(
    st.integers(0, 2**32),
    st.integers(1, 3),
    # All noise is computed for up to 1024 tokens. Chunks have 256 tokens, and the last chunk may be short.
    st.one_of(st.integers(1, 1_100), st.integers(1_020, 5_000)),
    st.sampled_from(KINDS),
    st.sampled_from([0.01, 0.3, 1.0, 1.7, 50.0]),
)
@example(1, 2, 152_001, "normal", 1.0)
@example(2, 2, 32_000, "ties", 1.0)
@example(3, 3, 1_025, "ties", 0.3)
@example(4, 3, 5_000, "ties", 1.0)
@example(5, 3, 20_000, "ties", 1.0)
def test_race__any_logits__equals_all_noise(seed: int, n: int, size: int, kind: str, temperature: float) -> None:
    logits = draw_logits(seed, n, size, kind)
    rng = np.random.default_rng(seed + 1)
    seeds, positions = rng.integers(0, 2**64, n, np.uint64), rng.integers(0, 2**32, n).astype(np.uint32)
    winners, best = np.empty(n, np.int64), np.empty(n, np.float32)
    noise_kernels.compile_all().race(logits, np.float32(temperature), seeds, positions, winners, best)
    expected_winners, expected_best = race_in_full(logits, seeds, positions, temperature)
    assert np.array_equal(best, expected_best)
    assert np.array_equal(winners, expected_winners)


@pytest.mark.parametrize("size", [300, 3_000])
@pytest.mark.parametrize("place", [0, 255, 256, 299])
def test_sample__nan_or_infinite_logits__takes_the_token_that_torch_takes(size: int, place: int) -> None:
    seeds, positions = np.array([5], np.uint64), np.array([9], np.uint32)
    logits = torch.zeros(1, size)
    for value in (float("nan"), float("inf")):
        logits[0, place:] = value
        assert sample(logits, seeds, positions, 0.7).tokens.tolist() == [place]
        assert bool(score(logits, torch.tensor([place]), seeds, positions, 0.7).margins.isnan().all())
    logits[0, 280] = float("nan")
    logits[0, :280] = float("inf")
    assert sample(logits, seeds, positions, 0.7).tokens.tolist() == [min(280, max(place, 280))]


def test_sample__negative_nan__wins() -> None:
    logits = torch.zeros(1, 2_000)
    logits.view(torch.int32)[0, 700] = -1
    assert sample(logits, np.zeros(1, np.uint64), np.zeros(1, np.uint32), 1.0).tokens.tolist() == [700]


@pytest.mark.parametrize("size", [2, 2_000])
def test_score__all_logits_minus_infinity__is_nan(size: int) -> None:
    logits = torch.full((1, size), -float("inf"))
    seeds, positions = np.zeros(1, np.uint64), np.zeros(1, np.uint32)
    assert sample(logits, seeds, positions, 1.0).tokens.tolist() == [0]
    assert not bool(score(logits, torch.tensor([1]), seeds, positions, 1.0).margins <= 1e9)


@pytest.mark.parametrize("size", [40, 4_000])
def test_score__token_with_a_logit_of_minus_infinity__loses_by_infinity(size: int) -> None:
    logits = torch.zeros(1, size)
    logits[0, 7] = -float("inf")
    assert score(logits, torch.tensor([7]), np.zeros(1, np.uint64), np.zeros(1, np.uint32), 1.0).margins.tolist() == [
        float("inf")
    ]


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 3_000), st.sampled_from(["normal", "ties", "masked"]))
def test_score__any_token__is_the_difference_of_the_full_scores(seed: int, size: int, kind: str) -> None:
    logits = draw_logits(seed, 2, size, kind)
    seeds, positions = np.array([seed, 3], np.uint64), np.array([1, 2], np.uint32)
    tokens = np.random.default_rng(seed).integers(0, size, 2)
    scores = logits / np.float32(0.9) + gumbel(seeds, positions, size)
    with np.errstate(invalid="ignore"):
        expected = scores.max(axis=1) - scores[[0, 1], tokens]
    margins = score(torch.from_numpy(logits), torch.from_numpy(tokens), seeds, positions, 0.9).margins
    assert np.array_equal(margins.numpy(), expected, equal_nan=True)


@pytest.mark.parametrize("tokens", [[-1, 0], [0, 4], [0], [[0, 1]]])
def test_score__invalid_tokens__are_refused(tokens: list[int]) -> None:
    with pytest.raises(ValueError, match="the tokens are not one per row"):
        score(torch.zeros(2, 4), torch.tensor(tokens), np.zeros(2, np.uint64), np.zeros(2, np.uint32), 1.0)


@pytest.mark.parametrize(
    ("shape", "seeds", "positions"), [((2, 0), 2, 2), ((2, 4), 1, 2), ((2, 4), 2, 3), ((4,), 4, 4)]
)
def test_sample__rows_that_do_not_match__are_refused(shape: tuple[int, ...], seeds: int, positions: int) -> None:
    with pytest.raises(ValueError, match="do not match logits"):
        sample(torch.zeros(shape), np.zeros(seeds, np.uint64), np.zeros(positions, np.uint32), 1.0)


def test_sample__no_rows__gives_no_tokens() -> None:
    assert sample(torch.zeros(0, 9), np.zeros(0, np.uint64), np.zeros(0, np.uint32), 1.0).tokens.tolist() == []


def test_sample__rows_of_another_layout__equal_contiguous_ones() -> None:
    logits = torch.randn(40, 2_000, generator=torch.Generator().manual_seed(2))[::2, ::2]
    seeds, positions = np.arange(40, dtype=np.uint64)[::2], np.arange(40, dtype=np.uint32)[::2]
    plain = sample(logits.contiguous(), seeds.copy(), positions.copy(), 1.0).tokens
    assert torch.equal(sample(logits, seeds, positions, 1.0).tokens, plain)


@pytest.mark.parametrize("kind", [*KINDS, "nan"])
@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
def test_race__in_torch_operations__equals_the_compiled_one(
    monkeypatch: pytest.MonkeyPatch, kind: str, temperature: float
) -> None:
    # The code for GPUs runs on the CPU here. 34 rows of this vocabulary are computed in two batches.
    n, vocabulary = 34, 8_009
    monkeypatch.setattr(torch_sampler, "_TOGETHER", 1 << 18)
    logits = torch.from_numpy(draw_logits(4, n, vocabulary, "normal" if kind == "nan" else kind))
    if kind == "nan":
        logits[::2, 5_000::7] = torch.nan
    seeds, positions = np.arange(n, dtype=np.uint64) * 2**58, np.arange(n, dtype=np.uint32)
    claims = torch.randint(0, vocabulary, (n,), generator=torch.Generator().manual_seed(1))
    keys = torch.from_numpy(seeds.view(np.int64)), torch.from_numpy(positions.astype(np.int64))
    drawn = torch_sampler.race(logits, *keys, temperature)
    scored = torch_sampler.race(logits, *keys, temperature, claims=claims)
    for found, expected in [
        ((drawn.tokens, drawn.logprobs), sample(logits, seeds, positions, temperature)),
        ((scored.margins, scored.logprobs), score(logits, claims, seeds, positions, temperature)),
        ((drawn.tokens, drawn.logprobs), sample(logits, *keys, temperature)),
    ]:
        for ours, theirs in zip(found, expected, strict=True):
            assert torch.equal(ours.nan_to_num(7e30), theirs.nan_to_num(7e30))


def test_race__in_torch_operations__claims_that_are_not_tokens_get_nan() -> None:
    numbers = torch.arange(4)
    found = torch_sampler.race(torch.zeros(4, 5), numbers, numbers, 0.7, claims=torch.tensor([-1, 4, 5, 2**40]))
    assert found.margins.isnan().tolist() == found.logprobs.isnan().tolist() == [True, False, True, True]


def test_most_noise__largest_word__is_below() -> None:
    # u = 1 - 2**-33, so the noise is 33 log 2 = 22.87; the smallest word gives -log(33 log 2) = -3.13.
    assert 33 * np.log(2) < noise_kernels._MAX_NOISE
