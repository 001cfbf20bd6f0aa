"""Hand-written distances against hand-written limits."""

import dataclasses
import math
from typing import Any

import numpy as np
import pytest

from covey.protocol.params import VerificationParams
from covey.protocol.thresholds import Pooled, Thresholds
from covey.protocol.verdict import Reason
from covey.toploc.proofs import Distances
from validator.distance_limits import collect_items, find_breach
from validator.replay import RolloutDistances

pytestmark = pytest.mark.unit

NAN = float("nan")
ZERO = Distances(sign_exponent_mismatches=0, mantissa_mean=0.0, mantissa_median=0.0, mantissa_rest=0.0)
FAR = Distances(sign_exponent_mismatches=4, mantissa_mean=0.0, mantissa_median=0.0, mantissa_rest=0.0)
NEAR = Distances(sign_exponent_mismatches=1, mantissa_mean=0.01, mantissa_median=0.0, mantissa_rest=0.0)
UNPOOLED = Thresholds(logprob=None)


def make(
    windows: tuple[Distances, ...] = (ZERO,),
    margins: tuple[float, ...] = (0.0, 0.0, 0.0, 0.0),
    deviations: tuple[float, ...] = (0.0, 0.0, 0.0, 0.0),
    finished: bool = False,
) -> RolloutDistances:
    """Build the distances of a rollout with four tokens."""
    return RolloutDistances(
        windows=windows,
        margins=np.array(margins, np.float32),
        deviations=np.array(deviations, np.float64),
        finished=finished,
    )


def find(*found: RolloutDistances, mode: str = "calibrated", **limits: Any):
    engines = {"worker_engine": "hf", "validator_engine": "hf", "hardware": "cpu", "build": "b"}
    return find_breach(found, VerificationParams(mode=mode, thresholds=Thresholds(**limits), **engines))


@pytest.mark.parametrize(
    ("distances", "reason", "statistics"),
    [
        (make(), None, {}),
        (make(margins=(0, 9e-5, 0, 0), deviations=(0, 7e-5, 0, 0)), None, {}),
        (make(windows=(ZERO, FAR), margins=(1,) * 4, deviations=(1,) * 4), Reason.PROOF, {"window": 1, "exponent": 4}),
        (make(margins=(0, 0, 2e-4, 1.0), deviations=(1,) * 4), Reason.TOKEN_MARGIN, {"token": 2}),
        (make(margins=(0, 0, 0, 1.0), finished=True), Reason.FALSE_TERMINATION, {"token": 3, "margin": 1.0}),
        (make(margins=(0, 0, 0, 1.0)), Reason.TOKEN_MARGIN, {"token": 3, "margin": 1.0}),
        (make(margins=(0, 1.0, 0, 1.0), finished=True), Reason.TOKEN_MARGIN, {"token": 1}),
        (make(deviations=(0, 0, 0.0011, 0)), Reason.LOGPROB, {"token": 2, "deviation": 0.0011}),
        # 4 x 2e-5 and 2 x 1e-5 x ln(1e6) / 3
        (make(deviations=(9e-5,) * 4), Reason.LOGPROB, {"logprob_sum": 3.6e-4, "limit": 1.72103e-4, "items": 4}),
        (make(windows=(dataclasses.replace(ZERO, mantissa_mean=1.0),)), None, {}),
        (make(windows=(dataclasses.replace(ZERO, mantissa_rest=NAN),)), Reason.PROOF, {"mantissa_rest": -1.0}),
        (make(margins=(NAN, 0, 0, 0)), Reason.TOKEN_MARGIN, {"token": 0, "margin": -1.0}),
        (make(deviations=(0, NAN, 0, 0)), Reason.LOGPROB, {"token": 1, "deviation": -1.0}),
    ],
)  # fmt: skip
def test_find_breach__float32_limits__proof_then_token_then_logprob_then_sums(
    distances: RolloutDistances, reason: Reason | None, statistics: dict[str, float]
):
    breach = find(distances)
    if reason is None:
        assert breach is None
        return
    assert (breach.reason, {name: breach.statistics[name] for name in statistics}) == (reason, statistics)


def test_find_breach__second_rollout_is_beyond__it_is_named():
    breach = find(make(), make(windows=(FAR,)))
    assert (breach.row, breach.reason) == (1, Reason.PROOF)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("exponent", Reason.PROOF),
        ("mantissa", Reason.PROOF),
        ("lost", Reason.TOKEN_MARGIN),
        ("margin", Reason.TOKEN_MARGIN),
        ("logprob", Reason.LOGPROB),
    ],
)
def test_find_breach__each_sum_beyond_its_limit__earns_its_reason(name: str, reason: Reason):
    near = make((NEAR,), (5e-5, 0, 0, 0), (5e-5, 0, 0, 0))
    assert find(near, near, logprob=None) is None
    breach = find(near, near, **({"logprob": None} | {name: {"mean": 0.0}}))
    assert (breach.reason, breach.row, breach.statistics["limit"]) == (reason, None, 0.0)


def test_collect_items__two_rollouts__every_window_and_token_once():
    found = [make((NEAR, ZERO), (0, 0.5, 0, 0)), make((FAR,), (0.25, 0, 0, 0), (1, 2, 3, 4))]
    items = {name: values.tolist() for name, _, values in collect_items(found)}
    assert items == {
        "exponent": [1, 0, 4],
        "mantissa": [0.01, 0, 0],
        "lost": [0, 1, 0, 0, 1, 0, 0, 0],
        "margin": [0, 0.5, 0, 0, 0.25, 0, 0, 0],
        "logprob": [0, 0, 0, 0, 1, 2, 3, 4],
    }


@pytest.mark.parametrize(
    "distances",
    [make((NEAR,)), make(margins=(0, 0, 0, 1e-6)), make(deviations=(1e-7, 0, 0, 0))],
)
def test_find_breach__exact_mode__any_difference_is_soft_and_beyond_the_limits_hard(distances: RolloutDistances):
    assert find(distances) is None
    breach = find(distances, mode="exact")
    assert (breach.reason, breach.reason.severity.name) == (Reason.INEXACT, "SOFT")
    assert find(make(), mode="exact") is None
    assert find(make((FAR,)), mode="exact").reason is Reason.PROOF


def test_compute_limit__by_hand__is_bernsteins():
    # L = ln(1e6) = 13.8155; b = 0.3: bL/3 = 1.38155; 2 n v L = 2 * 64 * 0.01 * 13.8155 = 17.6839
    limit = Pooled(mean=0.5, variance=0.01, largest=0.3).compute_limit(64, 1e-6)
    assert limit == pytest.approx(32 + 1.38155 + math.sqrt(1.38155**2 + 17.6839), abs=1e-4)
    assert Pooled(mean=2e-5).compute_limit(1000, 1e-6) == pytest.approx(0.02)


def test_compute_limit__bounded_items__is_exceeded_at_most_at_the_rate():
    rng = np.random.default_rng(4)
    lost = rng.random((20_000, 200)) < 0.02  # a Bernoulli variable: variance p (1 - p), at most 1 - p above its mean
    limit = Pooled(mean=0.02, variance=0.0196, largest=0.98).compute_limit(200, 0.01)
    beyond = (lost.sum(axis=1) > limit).mean()
    assert beyond <= 0.01
    assert (lost.sum(axis=1) > limit / 2).any()  # otherwise the limit would be too wide to test anything
