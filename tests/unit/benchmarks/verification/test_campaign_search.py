"""The benchmark of deterrence: the shipped pools at few campaigns, and pairs of equal cost."""

import numpy as np
import pytest

from benchmarks.measurement import find_misses, set_bars
from benchmarks.verification import campaign_search
from benchmarks.verification.campaign_search import BARS, LINE, PANELS, POOLS, compute_cost, compute_rate, read_pool
from benchmarks.verification.panel_outcomes import compute_fates
from covey.chain.deterrence import compute_deterrence

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("name", ["every_replay", "leaving", "hostile"])
def test_measure_worst__shipped_pools__keep_their_bars(name: str, pool: str):
    terms, params = read_pool(pool)
    fates = compute_fates(params, PANELS[name])
    worst = compute_deterrence(terms, params)
    found, strategy = campaign_search.measure_worst(
        f"{name}.{pool}", worst, fates, params, count=2_000, rng=np.random.default_rng(1)
    )
    assert strategy is not None
    (bounded,) = set_bars([found], BARS)
    assert bounded.bar is not None
    assert find_misses([bounded]) == []
    assert found.value == pytest.approx(worst.factor, rel=0.05)


def test_measure_pool__false_text_of_an_accomplice__costs_more_than_differences_and_says_what_is_caught():
    """The accomplice judges three in ten undrawn submissions alone, so 1 - 0.8 x 0.3 of the large pool are caught."""
    pool, rng = POOLS[1], np.random.default_rng(1)
    measured = list(campaign_search.measure_pool(pool, ["every_replay", "hostile"], 400, rng))
    found = {each.name.partition(".")[0]: each for each in measured}
    assert found["every_replay_text"].peer.startswith("100 % of all-fake submissions caught")
    assert found["hostile_text"].peer.startswith("76 % of all-fake submissions caught")
    assert found["every_replay_text"].value > found["hostile_text"].value > found["hostile"].value
    assert found["found_1_of_12"].value < found["found_1_of_4"].value < found["found_1_of_2"].value
    assert not find_misses(set_bars(measured, BARS))


def test_measure_worst__hostile_and_lazy_of_three__catch_nobody():
    terms, params = read_pool("intellect2-pool")
    fates = compute_fates(params, PANELS["hostile_and_lazy"])
    worst = compute_deterrence(terms, params)
    found, strategy = campaign_search.measure_worst("x", worst, fates, params, count=100, rng=np.random.default_rng(1))
    assert (found.value, strategy) == (0, None)


def test_compute_cost__pair_of_the_large_pool__counts_the_rows_of_all_validators():
    """Two replay 16 rows of a fifth. One, and in a tenth two, replay 3 rows of the rest."""
    _, params = read_pool("intellect2-pool")
    assert compute_cost(params, audit_rate=0.2, drawn_rows=3) == pytest.approx(0.2 * 2 * 16 + 0.8 * 3 * 1.1)
    assert compute_rate(params, cost=9.04, drawn_rows=4) == pytest.approx((9.04 - 4.4) / (32 - 4.4))
    assert compute_rate(params, cost=9.04, drawn_rows=3) == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("ratio", "rows", "chance"),
    [
        (1.0, 16, 0.5),  # Its mean is the limit.
        (0.58, 16, 7e-8),  # Honest work: 5.26 standard deviations.
        (0.78, 16, 0.0029),  # (1 - 0.78) / 0.0799 = 2.75 standard deviations.
        (1.25, 3, 0.051),  # The limit is 0.2906, the mean 0.2344 and the deviation 0.0346.
        (1.25, 0, 0.0),
    ],
)
def test_compute_sum_detection__values_by_hand__are_reproduced(ratio: float, rows: int, chance: float):
    assert campaign_search.compute_sum_detection(ratio, rows) == pytest.approx(chance, rel=0.05)


def test_measure_line__default_pair__is_the_one_with_the_most_rows_that_deters():
    """Decision 075: more rows at the same cost bring the large pool's terms below a factor of 3."""
    terms, params = read_pool("intellect2-pool")
    rules, factors = params.verification, {}
    for drawn in LINE:
        rate = compute_rate(params, cost=9.04, drawn_rows=drawn)
        changed = rules.model_copy(update={"audit_rate": rate, "audit_rows": drawn})
        factors[drawn] = compute_deterrence(terms, params.model_copy(update={"verification": changed})).factor
    assert max(drawn for drawn, factor in factors.items() if factor >= 3) == rules.audit_rows == 3
    lines = list(campaign_search.measure_line("pool", 200, np.random.default_rng(1)))
    names = {each.name: each.value for each in lines}
    assert names["line.pool.rows_3.audit_rate"] == pytest.approx(0.1)
    assert names["line.pool.rows_3.submissions.all_fake"] == 1
    assert names["line.pool.rows_1.submissions.half_fake"] == pytest.approx(1.77, rel=0.2)  # 1 / 0.566
