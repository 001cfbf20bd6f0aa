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
from tests.fakes.pool import make_exact
from validator.distance_limits import collect_items, find_breach, list_differing
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
    rules = make_exact(proof_window=4) if mode == "exact" else {}
    return find_breach(found, VerificationParams(thresholds=Thresholds(**limits), **rules))


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


BIT = dataclasses.replace(ZERO, mantissa_mean=1 / 128)


@pytest.mark.parametrize(
    ("distances", "reason", "statistics"),
    [
        (make((ZERO, BIT), (0,) * 8, (0,) * 8), Reason.PROOF, {"window": 1, "exponent": 0, "mantissa": 0.0078125}),
        (make((FAR,)), Reason.PROOF, {"window": 0, "exponent": 4, "mantissa": 0.0}),
        (make(margins=(0, 0, 1e-9, 1)), Reason.TOKEN_MARGIN, {"token": 2, "margin": 1e-9}),
        (make(margins=(0, 0, 0, NAN), finished=True), Reason.FALSE_TERMINATION, {"token": 3, "margin": -1.0}),
        (make(deviations=(0, 1e-7, 0, 0)), Reason.LOGPROB, {"token": 1, "deviation": 1e-7}),
        (make((BIT,), (1.0,) * 4, (1.0,) * 4), Reason.PROOF, {"window": 0, "exponent": 0, "mantissa": 0.0078125}),
    ],
)
def test_find_breach__exact_mode__any_difference_is_hard(
    distances: RolloutDistances, reason: Reason, statistics: dict[str, float]
):
    assert find(make(), mode="exact") is None
    breach = find(make(), distances, mode="exact")
    windows = {"differing": 1, "windows": 1 + len(distances.windows)}
    assert (breach.reason, breach.reason.severity.name, breach.row) == (reason, "HARD", 1)
    assert breach.statistics == statistics | windows


def make_long(windows: int, differing: int, *, lost: int = 0) -> RolloutDistances:
    """Return a rollout whose last `differing` windows differ, the last one in its first `lost` tokens, too."""
    margins = [0.0] * (4 * windows)
    for i in range(lost):
        margins[4 * (windows - 1) + i] = 5e-5
    proofs = (ZERO,) * (windows - differing) + (BIT,) * differing
    return make(proofs, tuple(margins), (0.0,) * (4 * windows))


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        ((make_long(31, 1), make()), Reason.INEXACT),
        ((make_long(31, 1),), Reason.PROOF),  # 1 of 31 windows
        ((make_long(64, 2, lost=1),), Reason.INEXACT),
        ((make_long(64, 2, lost=2),), Reason.PROOF),
        ((make_long(64, 3),), Reason.PROOF),
        ((make_long(64, 1), make_long(64, 1)), Reason.PROOF),  # two rollouts
    ],
)
def test_find_breach__one_fault_of_many_windows__is_soft(found: tuple[RolloutDistances, ...], reason: Reason):
    assert find(*found, mode="exact").reason is reason


@pytest.mark.parametrize(
    ("changes", "reason", "statistics"),
    [
        ({"deviations": 9e-4}, Reason.INEXACT, {"window": 63}),
        ({"deviations": 50.0}, Reason.LOGPROB, {"token": 255, "deviation": 50.0}),
        ({"deviations": NAN}, Reason.LOGPROB, {"token": 255, "deviation": -1.0}),
        ({"margins": 25.0}, Reason.TOKEN_MARGIN, {"token": 255, "margin": 25.0}),
        ({"margins": 25.0, "finished": True}, Reason.FALSE_TERMINATION, {"token": 255, "margin": 25.0}),
        ({"margins": 5e-5}, Reason.INEXACT, {"window": 63}),
        ({"margins": 5e-5, "finished": True}, Reason.FALSE_TERMINATION, {"token": 255}),
        ({"finished": True}, Reason.INEXACT, {"window": 63}),
        ({"windows": FAR}, Reason.INEXACT, {"window": 63, "exponent": 4}),
        ({"windows": FAR, "margins": 25.0}, Reason.PROOF, {"window": 63, "exponent": 4}),
    ],
    ids=range(10),
)
def test_find_breach__one_fault_beyond_the_calibrated_limits__is_hard(
    changes: dict[str, Any], reason: Reason, statistics: dict[str, float]
):
    honest = make_long(64, 1)
    last = {
        name: (*getattr(honest, name)[:-1], value) if name != "finished" else value for name, value in changes.items()
    }
    values = {"windows": honest.windows, "margins": tuple(honest.margins), "deviations": tuple(honest.deviations)}
    breach = find(make(**(values | last)), mode="exact")
    assert (breach.reason, {name: breach.statistics[name] for name in statistics}) == (reason, statistics)


def test_list_differing__proofs_and_tokens__are_mapped_to_their_windows():
    rows = [make(), make((ZERO, BIT), (0, 0, 0, 0, 0, 0), (0, 0, 1, 0, 0, 0)), make((ZERO, ZERO), (0,) * 4 + (NAN, 0))]
    rows[2] = dataclasses.replace(rows[2], deviations=np.zeros(6))
    assert list_differing(rows, 4) == [set(), {0, 1}, {1}]


@pytest.mark.parametrize("rows", [1, 3, 16])
def test_find_breach__some_rows_of_a_submission__limits_of_sums_follow_their_number(rows: int):
    """Each item is exponential, with a mean of 1e-4 for honest work and of twice as much for a cheat.

    An honest sum of 64 items per row exceeds its limit with a probability of at most 0.01, whatever the number of rows.
    A limit for all 16 rows would pass every cheat of 1 or 3 rows, and that of 1 row for each row would pass one of 16.
    """
    rng, trials = np.random.default_rng(5), 200
    pooled = {"mean": 1e-4, "variance": 1e-8, "largest": 1e-3, "items": 1}
    rules = {"logprob": pooled, "logprob_max": 1.0, "false_reject_rate": 0.01}

    def count_breaches(mean: float) -> int:
        deviations = rng.exponential(mean, (trials, rows, 64))
        return sum(find(*(make((), (0.0,) * 64, row) for row in trial), **rules) is not None for trial in deviations)

    assert count_breaches(1e-4) <= 0.01 * trials
    assert count_breaches(2e-4) > 0.8 * trials


def test_find_breach__sum_of_the_drawn_rows_is_beyond__is_named_although_that_of_all_is_within():
    far, honest = make(deviations=(9e-5,) * 4), make()
    rules = VerificationParams()
    assert find_breach([far] * 2, rules).reason is Reason.LOGPROB
    assert find_breach([far] * 2 + [honest] * 30, rules) is None
    breach = find_breach([far] * 2 + [honest] * 30, rules, drawn=2)
    assert (breach.reason, breach.row, breach.statistics["items"], breach.is_drawn) == (Reason.LOGPROB, None, 8, True)
    breach = find_breach([honest, honest, far, make(windows=(FAR,))], rules, drawn=2)
    assert (breach.reason, breach.row, breach.is_drawn) == (Reason.PROOF, 3, False)
    breach = find_breach([honest] + [far] * 2, rules, drawn=1)
    assert (breach.reason, breach.row, breach.is_drawn) == (Reason.LOGPROB, None, False)


@pytest.mark.parametrize(("row", "is_drawn"), [(0, True), (1, True), (2, False)])
def test_find_breach__exact_mode__knows_whether_a_drawn_row_differs(row: int, is_drawn: bool):
    found = [make_long(31, 1) if row == i else make() for i in range(3)]
    breach = find_breach(found, VerificationParams(**make_exact(proof_window=4)), drawn=2)
    assert (breach.row, breach.reason, breach.is_drawn) == (row, Reason.INEXACT, is_drawn)


def test_compute_limit__by_hand__is_bernsteins():
    # L = ln(1e6) = 13.8155; b = 0.3: bL/3 = 1.38155; 2 n v L = 2 * 64 * 0.01 * 13.8155 = 17.6839
    limit = Pooled(mean=0.5, variance=0.01, largest=0.3, items=1).compute_limit(64, 1e-6)
    assert limit == pytest.approx(32 + 1.38155 + math.sqrt(1.38155**2 + 17.6839), abs=1e-4)
    assert Pooled(mean=2e-5).compute_limit(1000, 1e-6) == pytest.approx(0.02)


def test_compute_limit__bounded_items__is_exceeded_at_most_at_the_rate():
    rng = np.random.default_rng(4)
    lost = rng.random((20_000, 200)) < 0.02  # a Bernoulli variable: variance p (1 - p), at most 1 - p above its mean
    limit = Pooled(mean=0.02, variance=0.0196, largest=0.98, items=1).compute_limit(200, 0.01)
    beyond = (lost.sum(axis=1) > limit).mean()
    assert beyond <= 0.01
    assert (lost.sum(axis=1) > limit / 2).any()  # otherwise the limit would be too wide to test anything
