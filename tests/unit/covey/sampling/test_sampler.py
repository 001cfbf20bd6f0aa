"""The seeded sampler takes the argmax worked out by hand, has the right distribution, and gives the right margins."""

import math
import sys

import numpy as np
import pytest
import structlog
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from covey.sampling import sampler, torch_sampler
from covey.sampling.noise import gumbel
from covey.sampling.sampler import sample, score

pytestmark = pytest.mark.unit


def seeds_and_positions(n: int, seed: int = 3) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 2**63, n).astype(np.uint64), rng.integers(0, 2**15, n).astype(np.uint32)


@pytest.mark.parametrize("temperature", [0.25, 1.0, 1.7])
def test_sample__any_temperature__is_the_argmax_of_logits_over_t_plus_noise(temperature: float) -> None:
    seeds, positions = seeds_and_positions(50)
    logits = torch.randn(50, 37, generator=torch.Generator().manual_seed(0)) * 3
    noise = gumbel(seeds, positions, 37)
    expected = [
        max(range(37), key=lambda v: (np.float32(logits[row, v].item() / temperature) + noise[row, v], -v))
        for row in range(50)
    ]
    assert sample(logits, seeds, positions, temperature).tokens.tolist() == expected


def test_sample__tie__takes_the_lower_index() -> None:
    seeds, positions = seeds_and_positions(3)
    logits = torch.tensor([[1.0, 5.0, 5.0], [5.0, 5.0, 5.0], [0.0, 1.0, 1.0]])
    assert sample(logits, seeds, positions, 0.0).tokens.tolist() == [1, 0, 1]


def test_sample__many_seeds__follow_the_softmax() -> None:
    n = 20_000
    logits = torch.tensor([0.0, 1.0, 2.0, -1.0])
    drawn = sample(logits.expand(n, 4), np.arange(n, dtype=np.uint64), np.full(n, 4, np.uint32), 0.8).tokens
    counts = np.bincount(drawn.numpy(), minlength=4)
    expected = torch.softmax(logits / 0.8, -1).numpy() * n
    # Chi-squared with 3 degrees of freedom exceeds 16.3 with a probability of 1 in 1000. The seeds are fixed.
    assert float(((counts - expected) ** 2 / expected).sum()) < 16.3


def test_sample__other_seed_or_position__draws_other_tokens() -> None:
    logits = torch.zeros(200, 64)
    seeds, positions = np.arange(200, dtype=np.uint64), np.zeros(200, np.uint32)
    first = sample(logits, seeds, positions, 1.0).tokens
    assert (first == sample(logits, seeds + 1, positions, 1.0).tokens).float().mean() < 0.1
    assert (first == sample(logits, seeds, positions + 1, 1.0).tokens).float().mean() < 0.1
    assert torch.equal(first, sample(logits, seeds, positions, 1.0).tokens)


def test_score__claimed_tokens__lose_by_the_margin_by_hand() -> None:
    seeds, positions = seeds_and_positions(1)
    noise = gumbel(seeds, positions, 3)[0]
    logits = torch.tensor([[2.0, 0.0, 4.0]])
    totals = np.array([2.0, 0.0, 4.0], np.float32) / np.float32(2.0) + noise
    for token in range(3):
        margin = score(logits, torch.tensor([token]), seeds, positions, 2.0).margins
        assert margin.item() == pytest.approx(float(totals.max() - totals[token]), abs=1e-6)


@settings(max_examples=30, deadline=None)
@given(st.integers(min_value=0, max_value=2**63 - 1), st.floats(min_value=0.01, max_value=3.0), st.integers(2, 30))
def test_score__sampled_token__is_zero_and_no_other_is_negative(seed: int, temperature: float, size: int) -> None:
    logits = torch.randn(size, size, generator=torch.Generator().manual_seed(seed % 2**31))
    seeds, positions = np.full(size, seed, np.uint64), np.arange(size, dtype=np.uint32)
    tokens = sample(logits, seeds, positions, temperature).tokens
    assert torch.equal(score(logits, tokens, seeds, positions, temperature).margins, torch.zeros(size))
    assert bool((score(logits, torch.arange(size), seeds, positions, temperature).margins >= 0).all())


def test_score__nan_logits__give_no_margin_within_a_limit() -> None:
    seeds, positions = seeds_and_positions(1)
    margin = score(torch.full((1, 4), float("nan")), torch.tensor([0]), seeds, positions, 1.0).margins
    assert not bool(margin <= 1e9)


@pytest.mark.parametrize("temperature", [-1.0, 1e-9, float("nan"), float("inf")])
def test_sample__invalid_temperature__is_refused(temperature: float) -> None:
    with pytest.raises(ValueError, match="temperature"):
        sample(torch.zeros(1, 2), np.zeros(1, np.uint64), np.zeros(1, np.uint32), temperature)


def test_sample_and_score__any_temperature__log_probabilities_are_those_of_the_logits() -> None:
    seeds, positions = seeds_and_positions(3)
    logits = torch.tensor([[0.0, math.log(3.0)], [5.0, 5.0], [float("-inf"), 1.0]])
    for temperature in (0.0, 0.5, 2.0):
        tokens, logprobs = sample(logits, seeds, positions, temperature)
        by_hand = [[math.log(0.25), math.log(0.75)], [math.log(0.5)] * 2, [-math.inf, 0.0]]
        assert logprobs.tolist() == pytest.approx([by_hand[row][token] for row, token in enumerate(tokens.tolist())])
        found = score(logits, torch.zeros(3, dtype=torch.int64), seeds, positions, temperature).logprobs
        assert found.tolist() == pytest.approx([row[0] for row in by_hand])


def test_load_race__device_without_triton__samples_in_torch_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "covey.sampling.triton_sampler", None)  # makes its import fail
    monkeypatch.setattr(sampler, "_load_race", sampler._load_race.__wrapped__)
    with structlog.testing.capture_logs() as logs:
        race = sampler._choose_race(torch.device("meta"), 1.0)
    assert race is torch_sampler.race
    assert ["without Triton" in line["event"] for line in logs] == [True]
