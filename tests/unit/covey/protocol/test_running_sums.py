"""Running sums of a node: limits worked out by hand, honest and dishonest nodes in a simulation, hostile statements."""

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from covey.protocol.running_sums import (
    REPLAY_ALLOWANCE,
    STATISTICS,
    SUSPENSION_ALLOWANCE,
    WINDOW,
    ItemSum,
    Sums,
    add,
    compare,
    compute_limit,
    compute_room,
    find_possible,
    get_highest,
    get_sums,
    list_differing,
    sum_up,
)
from covey.protocol.thresholds import Pooled, Thresholds

pytestmark = pytest.mark.unit
POOLED = Pooled(mean=0.01, largest=0.05)
LIMITS = Thresholds(logprob=POOLED)


def make_sums(total: float, items: int = 10_000, **others: ItemSum) -> Sums:
    return {"logprob": ItemSum(total=total, items=items), **others}  # type: ignore[dict-item]


def find_total(*totals: float, quorum: int = 2, limits: Thresholds = LIMITS) -> float | None:
    """Return the total that counts if validators state these, each over 10,000 items. None: too few state any."""
    stated = {f"validator-{i}": make_sums(total) for i, total in enumerate(totals)}
    standings = compare(stated, limits, quorum=quorum, allowance=0.05)
    return standings[0].total if standings else None


def test_compute_limit__by_hand__is_bernsteins_bound_for_the_mean_with_error_and_allowance():
    pooled = Pooled(mean=0.5, variance=0.01, largest=0.3, items=4000)
    scale = math.log(2 * 1000 * 5 * 3 / 1e-6)  # a quorum of 3
    assert scale == pytest.approx(24.124, abs=1e-3)
    once = math.log(1e7)
    error = (0.1 * once + math.sqrt((0.1 * once) ** 2 + 2 * 4000 * 0.01 * once)) / 4000
    deviation = 0.1 * scale + math.sqrt((0.1 * scale) ** 2 + 2 * 900 * 0.01 * scale)
    found = compute_limit(pooled, 900, allowance=0.05, quorum=3)
    assert found == pytest.approx(900 * (0.5 + error) * 1.05 + deviation, rel=1e-12)
    exact = compute_limit(pooled.model_copy(update={"items": 0}), 900, allowance=0.05, quorum=3)
    assert exact == pytest.approx(900 * 0.5 * 1.05 + deviation, rel=1e-12)


@pytest.mark.parametrize(
    ("totals", "quorum", "counts"),
    [
        ((100, 103, 120), 2, 103),  # the middle one
        ((0, 103, 104), 2, 103),
        ((104, 103), 2, 103),  # two: one alone cannot raise it
        ((120,), 2, None),
        ((104,), 1, 104),
        ((104, 100), 1, 100),  # with a quorum of 1 each is trusted, and none is added to another
        ((0, 100, 101, 102, 500), 2, 100),
        ((0, 0, 101, 500, 500), 3, 101),
        ((0, 300, 500), 3, 0),
        ((0, 500), 3, None),
    ],
)
def test_compare__validators__the_highest_and_lowest_do_not_count(totals, quorum, counts):
    assert find_total(*totals, quorum=quorum) == counts


@given(st.floats(0, 1000), st.floats(90, 105), st.floats(90, 105))
def test_compare__one_hostile_validator_of_three__neither_raises_honest_work_nor_hides_a_cheat(hostile, one, other):
    stated = {"a": make_sums(one), "b": make_sums(hostile), "c": make_sums(other)}
    assert get_highest(compare(stated, LIMITS, quorum=2, allowance=0.05)) is None
    cheat = {"a": make_sums(one + 15), "b": make_sums(hostile), "c": make_sums(other + 20)}
    found = get_highest(compare(cheat, LIMITS, quorum=2, allowance=0.0))
    assert found is not None
    assert min(one + 15, other + 20) <= found.total <= max(one + 15, other + 20)


@pytest.mark.parametrize(("validators", "quorum"), [(3, 1), (4, 2), (7, 3)])
def test_compare__same_submissions_of_all_validators__count_once(validators: int, quorum: int):
    """Each validator's sum is just below its limit. Added as if independent, they would be above that of all items."""
    total = compute_limit(POOLED, 10_000, allowance=0.05, quorum=quorum) - 1e-6
    stated = {str(i): make_sums(total) for i in range(validators)}
    assert get_highest(compare(stated, LIMITS, quorum=quorum, allowance=0.05)) is None
    alone = {str(i): make_sums(total + 2e-6) for i in range(validators)}
    assert get_highest(compare(alone, LIMITS, quorum=quorum, allowance=0.05)) is not None


def test_compute_room__by_hand__is_a_part_of_that_of_no_sums():
    """Without variance the limit is 105 for 10,000 items plus twice bL / 3, which is the limit of no items."""
    start = 2 * 0.05 / 3 * math.log(2 * 1000 * 5 * 2 / 1e-6)
    assert compute_limit(POOLED, 0, allowance=0.05, quorum=2) == pytest.approx(start)
    limits = LIMITS.model_copy(update={"margin": POOLED, "lost": Pooled(mean=0.01)})
    for total, margin, room in ((100, 100, 1), (105, 100, 1), (105, 105 + start / 4, 0.75), (105 + 2 * start, 0, -1)):
        sums = make_sums(total, margin=ItemSum(total=margin, items=10_000), lost=ItemSum(total=900.0, items=10_000))
        assert compute_room({"a": sums, "b": sums}, limits, quorum=2) == pytest.approx(room)
    assert compute_room({}, limits, quorum=2) == 1


def test_compare__validators_with_few_items__do_not_let_one_hostile_validator_decide():
    """By their means the honest validator with few items would be the highest, and the hostile one would count."""
    stated = {"many": make_sums(100), "few": make_sums(0.15, 10), "hostile": make_sums(130)}
    assert get_highest(compare(stated, LIMITS, quorum=2, allowance=0.05)) is None


def test_compare__statistics_without_a_limit_or_items__are_left_out():
    nothing = ItemSum(total=0.0, items=0)
    stated = {str(i): make_sums(100, margin=ItemSum(total=9e9, items=5), lost=nothing) for i in range(3)}
    found = compare(stated, LIMITS, quorum=2, allowance=0.05)
    assert [(each.statistic, each.total, each.items, each.is_above) for each in found] == [
        ("logprob", 100, 10_000, False)
    ]
    limited = LIMITS.model_copy(update={"lost": POOLED, "logprob": None})
    assert compare(stated, limited, quorum=2, allowance=0.05) == []


def test_get_highest__several_above__is_the_farthest_in_proportion():
    limits = LIMITS.model_copy(update={"margin": POOLED, "lost": Pooled(mean=0.0)})
    stated = {"a": make_sums(150, margin=ItemSum(total=300.0, items=10_000), lost=ItemSum(total=0.0, items=10_000))}
    found = get_highest(compare(stated, limits, quorum=1, allowance=0.05))
    assert found is not None
    assert (found.statistic, found.total) == ("margin", 300)


def test_sum_up__any_order__is_rounded_once():
    values = [1e16, 1.0, -0.0, 1.0, 1e-3]
    expected = {"margin": ItemSum(total=1e16 + 2, items=5)}
    assert sum_up({"margin": values}) == sum_up({"margin": values[::-1]}) == expected


def test_add__missing_statistic__counts_zero():
    one, other = make_sums(1.5, 3), make_sums(2.0, 4, lost=ItemSum(total=1.0, items=4))
    both = {"logprob": ItemSum(total=3.5, items=7), "lost": ItemSum(total=1.0, items=4)}
    assert add(one, other) == add(other, one) == both
    assert add({}, one) == one


# -- a simulation of nodes

COMPLETIONS, TOKENS = 16, 90
"""Completions of a submission, and tokens of a completion."""
SHAPE = 12.0
"""Shape of the gamma distribution of a completion's mean. Its coefficient of variation is 0.29."""


def draw_submissions(rng: np.random.Generator, *shape: int, ratio: float = 1.0) -> np.ndarray:
    """Return sums of submissions. The sum of a completion has the mean 1, times `ratio`."""
    return rng.gamma(SHAPE * COMPLETIONS, ratio / SHAPE, size=shape)


def calibrate(rng: np.random.Generator, submissions: int = 128) -> Pooled:
    """Return what a calibration with these submissions would estimate, per token."""
    sums = rng.gamma(SHAPE, 1 / SHAPE, size=submissions * COMPLETIONS)
    return Pooled(
        mean=float(sums.mean()) / TOKENS,
        variance=float(sums.var()) / TOKENS,
        largest=30 / TOKENS,
        items=TOKENS * len(sums),
    )


def list_limits(pooled: Pooled, allowance: float, count: int = WINDOW) -> np.ndarray:
    """Return the limits after 1 to `count` submissions that are replayed whole."""
    items = range(COMPLETIONS * TOKENS, (count + 1) * COMPLETIONS * TOKENS, COMPLETIONS * TOKENS)
    return np.array([compute_limit(pooled, each, allowance=allowance, quorum=2) for each in items])


def test_simulation__honest_nodes_over_2000_submissions__are_never_above_the_limit():
    """Each of 20 calibrations has 50 nodes, whose means are up to 5 percent above the calibrated work's."""
    rng, above = np.random.default_rng(1), 0
    for _ in range(20):
        limits = list_limits(calibrate(rng), REPLAY_ALLOWANCE)
        ratios = rng.uniform(0.95, 1 + REPLAY_ALLOWANCE, size=(50, 1, 1))
        nodes = draw_submissions(rng, 50, 2, WINDOW) * ratios
        above += int((nodes.cumsum(axis=2) > limits).sum())
    assert above == 0


@pytest.mark.parametrize(("ratio", "most"), [(1.3, 15), (1.2, 40), (1.12, 600)])
def test_simulation__larger_mean__is_above_the_limit_soon(ratio: float, most: int):
    rng = np.random.default_rng(2)
    for _ in range(20):
        limits = list_limits(calibrate(rng, 1000), REPLAY_ALLOWANCE, most)
        sums = draw_submissions(rng, 50, most, ratio=ratio).cumsum(axis=1)
        assert (sums > limits).any(axis=1).all()


def test_simulation__mean_outside_of_the_calibration__suspends_only_far_above():
    rng = np.random.default_rng(3)
    limits = list_limits(calibrate(rng, 1000), SUSPENSION_ALLOWANCE)
    for ratio, is_suspended in ((1.0, False), (1.12, False), (1.2, False), (1.4, True)):
        sums = draw_submissions(rng, 50, WINDOW, ratio=ratio).cumsum(axis=1)
        assert (sums > limits).any(axis=1).all() == (sums > limits).any() == is_suspended


# -- statements of validators


def make_bundle(**changes: Any) -> dict[str, Any]:
    """Return the sums of a bundle: 20 tokens in 4 windows."""
    values = {name: {"items": 4 if name in ("exponent", "mantissa") else 20, "total": 0.25} for name in STATISTICS}
    return {"sums": values | changes}


def test_get_sums__of_a_replay__are_read():
    assert get_sums(make_bundle()) == {
        name: ItemSum(total=0.25, items=4 if name in ("exponent", "mantissa") else 20) for name in STATISTICS
    }
    assert get_sums(make_bundle(margin={"items": 20, "total": 0})) is not None


@pytest.mark.parametrize(
    "bundle",
    [
        {},
        {"sums": None},
        {"sums": {}},
        {"sums": []},
        {"sums": [["logprob", {"items": 1, "total": 1.0}]]},
        {"sums": {"logprob": {"items": 20, "total": 0.25}}},
        make_bundle(extra={"items": 20, "total": 0.25}),
        *(
            make_bundle(logprob=value)
            for value in (
                None,
                0.25,
                [0.25, 20],
                {"items": 20},
                {"items": 20, "total": -0.25},
                {"items": 20, "total": math.nan},
                {"items": 20, "total": math.inf},
                {"items": 20, "total": 10**400},
                {"items": 20, "total": "0.25"},
                {"items": 20, "total": True},
                {"items": -20, "total": 0.25},
                {"items": 20.0, "total": 0.25},
                {"items": True, "total": 0.25},
                {"items": 1 << 63, "total": 0.25},
                {"items": 19, "total": 0.25},
                {"items": 20, "total": 0.25, "more": 1},
            )
        ),
        make_bundle(exponent={"items": 5, "total": 0.25}),
    ],
    ids=range(24),
)
def test_get_sums__hostile_or_missing__is_none(bundle: dict[str, Any]):
    assert get_sums(bundle) is None


@given(st.recursive(st.none() | st.booleans() | st.floats() | st.integers() | st.text(), st.lists, max_leaves=4))
def test_get_sums__any_json__is_none(value: Any):
    assert get_sums({"sums": value}) is None
    assert get_sums(make_bundle(margin=value)) is None


def make_statement(*, tokens: int = 20, windows: int = 4, total: float = 0.2) -> Sums:
    return {
        name: ItemSum(total=total, items=windows if name in ("exponent", "mantissa") else tokens) for name in STATISTICS
    }


@pytest.mark.parametrize(
    ("statement", "rows", "is_whole", "is_possible"),
    [
        (make_statement(), 4, True, True),
        (make_statement(), 3, True, False),  # 3 rows of 20 tokens have at most 3 windows of 32
        (make_statement(windows=1), 4, True, True),
        (make_statement(windows=5), 4, True, False),
        (make_statement(windows=0), 4, True, False),
        (make_statement(tokens=19), 4, True, False),  # not all tokens, although all rows were replayed
        (make_statement(tokens=19), 4, False, True),
        (make_statement(tokens=21), 4, False, False),
        (make_statement(tokens=3), 4, False, False),  # each row has a token
        (make_statement(tokens=0, windows=0, total=0.0), 0, False, False),
        (make_statement(tokens=0, windows=0, total=0.0), 3, False, False),
        (make_statement(total=0.66), 4, True, True),  # the limit of a submission is 0.2 + 2 x 0.2303
        (make_statement(total=0.67), 4, True, False),  # its validator would have rejected the work
        (make_statement(total=1e308), 4, True, False),
    ],
    ids=range(14),
)
def test_find_possible__statement__counts_if_an_accepting_validator_may_have_found_it(
    statement: Sums, rows: int, is_whole: bool, is_possible: bool
):
    found = find_possible(statement, LIMITS, rows=rows, proof_window=32, units=20, is_whole=is_whole)
    assert found == ({"logprob": statement["logprob"]} if is_possible else {})


def test_list_differing__same_engine__by_any_bit_or_count():
    one = make_statement()
    assert list_differing(one, make_statement(), LIMITS, is_same_engine=True) == []
    other = {**one, "margin": ItemSum(total=math.nextafter(0.2, 1), items=20)}
    assert list_differing(one, other, LIMITS, is_same_engine=True) == ["margin"]
    assert list_differing(one, {}, LIMITS, is_same_engine=True) == list(STATISTICS)
    assert list_differing({}, {}, LIMITS, is_same_engine=True) == []


@pytest.mark.parametrize(
    ("total", "items", "names"),
    [(0.289, 20, []), (0.291, 20, ["logprob"]), (0.111, 20, []), (0.109, 20, ["logprob"]), (0.2, 19, ["logprob"])],
)
def test_list_differing__another_engine__by_a_fifth_of_the_mean_and_one_item(total, items, names):
    """The tolerance of logprob is 0.2 x 0.01 x 20 + 0.05. The others have no limit, and only items are compared."""
    one = make_statement()
    other = {**make_statement(total=9.0), "logprob": ItemSum(total=total, items=items)}
    assert list_differing(one, other, LIMITS, is_same_engine=False) == names
    fewer = make_statement(windows=3)
    assert list_differing(one, fewer, LIMITS, is_same_engine=False) == ["exponent", "mantissa"]


def test_item_sum__json__round_trips_bit_for_bit():
    for total in (0.1 + 0.2, 5e-324, 1.7976931348623157e308, 0.0):
        each = ItemSum(total=total, items=3)
        assert ItemSum(**json.loads(json.dumps(each.model_dump()))) == each
