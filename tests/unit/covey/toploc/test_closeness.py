"""Honest jitter is within the limits. Forgeries that pass plain TOPLOC are not."""

import numpy as np
import pytest

from covey.protocol.thresholds import Thresholds
from covey.toploc import proofs
from covey.toploc.closeness import is_within
from covey.toploc.finite_field import evaluate
from covey.toploc.proofs import Distances

pytestmark = pytest.mark.unit

FP32 = Thresholds()
"""The default limits, which are those of float32."""
CALIBRATED = Thresholds(exponent_max=24, mantissa_mean_max=4.0)
PAPER_EXPONENTS, PAPER_MEAN, PAPER_MEDIAN = 38, 10, 8


def to_bits(values: np.ndarray) -> np.ndarray:
    words = values.astype(np.float32).view(np.uint32).astype(np.uint64)
    return ((words + 0x7FFF + ((words >> 16) & 1)) >> 16).astype(np.uint16)


@pytest.mark.parametrize(
    ("mismatches", "rest", "within"),
    [
        (0, 0.0, True),
        (3, 0.0125, True),
        (4, 0.0, False),
        (0, 0.0126, False),
        (0, float("inf"), False),
        (0, float("nan"), False),
    ],
)
def test_is_within__at_and_beyond_the_limits(mismatches: int, rest: float, within: bool) -> None:
    distances = Distances(
        sign_exponent_mismatches=mismatches, mantissa_mean=0.0, mantissa_median=0.0, mantissa_rest=rest
    )
    assert is_within(FP32, distances) is within


def test_is_within__other_signals__do_not_matter_to_a_window() -> None:
    edge = Distances(sign_exponent_mismatches=3, mantissa_mean=9.0, mantissa_median=9.0, mantissa_rest=0.0125)
    assert is_within(Thresholds(margin_max=0.0, logprob_max=0.0, logprob=None), edge)


def gaussian(rows: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(scale=1.4, size=(rows, 1024))


def median_top_value(activations: np.ndarray) -> int:
    """Return the usual size of a window's largest values, which a forger without the model can know."""
    top = np.sort(np.abs(activations.reshape(-1, 32 * 1024)), axis=1)[:, -128:]
    return int(to_bits(np.array([np.quantile(top, 0.45)]))[0])


def test_is_within__constant_forgery__passes_plain_toploc_and_is_rejected_here() -> None:
    value = median_top_value(gaussian(32 * 4, seed=1))
    forged = bytes.fromhex("ffd9") + value.to_bytes(2, "big") + bytes(2 * 127)
    plain_accepts = 0
    for seed in range(2, 14):
        replayed = to_bits(gaussian(32, seed))
        signed, unsigned = proofs.compare(forged, replayed), proofs.compare(forged, replayed & np.uint16(0x7FFF))
        plain_accepts += (
            unsigned.sign_exponent_mismatches <= PAPER_EXPONENTS
            and unsigned.mantissa_mean <= PAPER_MEAN
            and unsigned.mantissa_median <= PAPER_MEDIAN
        )
        assert not is_within(FP32, signed)
        assert not is_within(CALIBRATED, signed)
    assert plain_accepts == 12  # otherwise this test would prove nothing


def test_is_within__static_profile_forgery__is_rejected() -> None:
    rng = np.random.default_rng(5)
    gain, mean = np.exp(rng.normal(scale=0.5, size=1024)), rng.normal(scale=0.7, size=1024)
    gain[rng.permutation(1024)[:8]] *= 12
    profile = gain * mean
    (forged,) = proofs.build(to_bits(np.tile(profile, (32, 1))))
    for _ in range(8):
        replayed = to_bits(gain * (mean + 0.3 * rng.normal(size=(32, 1024))))
        assert not is_within(FP32, proofs.compare(forged, replayed))


@pytest.mark.parametrize(("jitter", "limits"), [(1e-6, FP32), (0.002, CALIBRATED), (0.01, CALIBRATED)])
def test_is_within__honest_jitter__is_accepted(jitter: float, limits: Thresholds) -> None:
    rng = np.random.default_rng(6)
    for seed in range(10, 18):
        activations = gaussian(32, seed) * np.exp(rng.normal(scale=0.5, size=1024))
        (proof,) = proofs.build(to_bits(activations))
        replayed = to_bits(activations * (1 + jitter * rng.normal(size=activations.shape)))
        assert is_within(limits, proofs.compare(proof, replayed))


@pytest.mark.parametrize(("foreign", "within"), [(1, True), (2, False)])
def test_is_within__foreign_values_agree_by_chance__one_per_window_is_honest(foreign: int, within: bool) -> None:
    activations = to_bits(gaussian(32, 30))
    (proof,) = proofs.build(activations)
    parsed = proofs.parse(proof, 128)
    flat = activations.reshape(-1)
    top = proofs.compute_top(flat, 128)
    others = [i for i in range(flat.size) if i not in top]
    # The prover did not have these indices, so its polynomial is arbitrary there. Sign and exponent agree for these.
    claimed = [(i, int(evaluate(parsed.coefficients, np.array([i % parsed.modulus]))[0])) for i in others[:4000]]
    large = [(i, value) for i, value in claimed if 0x4100 <= value & 0x7FFF < 0x4180]
    for i, value in large[:foreign]:
        flat[i] = value ^ 0x70
    for i in top[:foreign]:
        flat[i] = 0
    distances = proofs.compare(proof, activations)
    assert distances.sign_exponent_mismatches == 0
    assert distances.mantissa_mean > 0.1
    assert is_within(FP32, distances) is within


def test_is_within__other_activations__are_rejected() -> None:
    (proof,) = proofs.build(to_bits(gaussian(32, 20)))
    assert not is_within(CALIBRATED, proofs.compare(proof, to_bits(gaussian(32, 21))))
