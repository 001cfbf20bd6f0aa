"""Terms deter if a cheat is expected to lose more than it gains. The shipped pools deter by a factor of three."""

import math
import random
import re
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest

from covey.chain.deterrence import (
    MIN_FACTOR,
    UNDRAWN_PART,
    Deterrence,
    SubmissionCheat,
    compute_deterrence,
    compute_hit,
    compute_undrawn_limit,
    list_remedies,
)
from covey.console.pool_terms import describe_deterrence, measure_deterrence
from covey.demo.participants import DemoOptions, Participants
from covey.local.plan import PoolPlan, build_pool
from covey.protocol.seeding import draw_rows
from tests.fakes.configs import CONFIGS, read_settings
from tests.fakes.pool import make_address, make_hash

pytestmark = pytest.mark.unit
COINS = 10**18


def read_large(**changes: int):
    """Return the terms of the large pool with changes, and its parameters."""
    terms, params = read_settings(CONFIGS / "intellect2-pool.toml")
    return replace(terms, **changes), params


def compute_factor(terms, params, audit_rate: float) -> float:
    """Return the factor at an audit rate other than the pool's."""
    rules = params.verification.model_copy(update={"audit_rate": audit_rate})
    return compute_deterrence(terms, params.model_copy(update={"verification": rules})).factor


HALVES = {"pool.toml": 3.7, "intellect2-pool.toml": 2.0}
"""What a cheat loses relative to its gain if a whole replay finds one small difference in two, by shipped pool."""


@pytest.mark.parametrize("file", sorted(CONFIGS.glob("*pool.toml")), ids=lambda path: path.name)
def test_compute_deterrence__shipped_pools__deter_and_say_what_half_the_detection_gives(file: Path):
    terms, params = read_settings(file)
    assert compute_deterrence(terms, params, detection=1.0).factor >= MIN_FACTOR == 3
    assert f"finds only one in two such differences, it loses {HALVES[file.name]} times" in describe_deterrence(
        terms, params
    )


@pytest.mark.parametrize("validators", [1, 3])
def test_compute_deterrence__pool_of_covey_init__deters(tmp_path: Path, validators: int):
    names = ("trainer", "arbiter", *(f"validator-{i + 1}" for i in range(validators)))
    text = build_pool("mine", PoolPlan(validators=validators), {name: make_address(name) for name in names})
    (tmp_path / "pool.toml").write_text(text)
    assert compute_deterrence(*read_settings(tmp_path / "pool.toml")).factor >= MIN_FACTOR


def test_compute_deterrence__demo__replays_everything(tmp_path: Path):
    assert compute_deterrence(*read_settings(Participants(tmp_path, DemoOptions()).write_pool())).factor == math.inf


def test_compute_deterrence__large_pool_with_a_stake_of_two_submissions__rewards_cheating():
    """16 completions of 30,720 tokens at 10^12 pay 0.49 tokens. One draw in ten takes one token.

    Nine submissions are paid before the first one that is drawn, and one more while it is replayed.
    """
    terms, params = read_large(min_stake=COINS, slash_amount=COINS, max_slashes=1)
    rules = params.verification.model_copy(update={"audit_rate": 0.1})
    deterrence = compute_deterrence(terms, params.model_copy(update={"verification": rules}))
    found = (deterrence.pay, deterrence.slash, deterrence.cases, deterrence.submissions)
    assert found == (COINS // 4, COINS, 1, 1)
    assert deterrence.factor == pytest.approx(1 / ((9 + 1) * 0.25))


def test_compute_deterrence__cheat_stakes_more_than_the_minimum__may_submit_work_that_pays_more():
    """A quarter of 50 slashes lets two submissions pay 0.49 tokens each, and 0.1 are slashed in seven of ten.

    Computed by hand: with the minimum stake, at most 0.025 tokens are paid undrawn, and the factor is 2.8.
    """
    terms, params = read_large(min_stake=COINS // 10, slash_amount=COINS // 10, max_slashes=50)
    rules = params.verification.model_copy(update={"audit_rate": 0.7})
    deterrence = compute_deterrence(terms, params.model_copy(update={"verification": rules}))
    assert (deterrence.cases, deterrence.submissions) == (50, 2)  # 1.25 / 0.49152
    paid = 0.49152 * (0.3 / 0.7 + 2)
    assert deterrence.factor == pytest.approx(0.1 * (1 + 2 * 0.7 / 0.3) / paid, rel=1e-6)


def test_large_pool__stake__covers_the_largest_number_of_cases_in_a_span():
    terms, params = read_large()
    assert terms.min_stake >= terms.max_slashes * terms.slash_amount
    # A false case costs its signers about the amount that it would take.
    assert terms.signer_penalty >= terms.slash_amount / 2
    assert terms.validator_bond >= terms.max_slashes * terms.signer_penalty
    deterrence = compute_deterrence(terms, params)
    assert (deterrence.cases, deterrence.submissions) == (4, int(10 / (16 * 30_720e-6)))


def build(**values: float) -> Deterrence:
    """Build a deterrence of 16 rows, of which none is drawn unless `values` say so."""
    return Deterrence(**({"rows": 16, "drawn_rows": 0} | values))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("deterrence", "factor"),
    [
        # One is paid before the first that is drawn, and one after: 60 over 20.
        (build(audit_rate=0.5, pay=10, slash=60, cases=1, submissions=1), 3.0),
        (build(audit_rate=0.1, pay=10, slash=60, cases=4, submissions=1), 60 * 1.111 / 100),  # K = i: 0.9 x 0.1^i.
        (build(audit_rate=0.5, pay=10, slash=60, cases=2, submissions=1), 4.5),  # 1.5 cases, as K = 0 in 1 of 2.
        (build(audit_rate=0.5, pay=10, slash=60, cases=2, submissions=2), 3.5),  # K = 0 in 1 of 4.
        # A replay finds one in two: 3 are paid before, and of those after, 2 undrawn and 1 replayed. K = 0 in 4 of 9.
        (build(audit_rate=0.5, detection=0.5, pay=10, slash=60, cases=2, submissions=2), 60 * (2 - 4 / 9) / 60),
        (build(audit_rate=1.0, pay=10, slash=0, cases=0, submissions=1), math.inf),
        (build(audit_rate=0.5, pay=0, slash=60, cases=1, submissions=1), math.inf),
        (build(audit_rate=0.0, pay=10, slash=60, cases=1, submissions=1), 0.0),
        (build(audit_rate=0.5, pay=10, slash=0, cases=0, submissions=1), 0.0),
        (build(drawn_rows=16, audit_rate=0.0, pay=10, slash=60, cases=1, submissions=1), math.inf),
        (build(drawn_rows=3, audit_rate=0.0, pay=10, slash=60, cases=1, submissions=1), 0.0),  # a small difference
    ],
)
def test_factor__values_by_hand__are_reproduced(deterrence: Deterrence, factor: float):
    assert deterrence.factor == pytest.approx(factor)


def test_find_worst__one_of_two_rows_is_drawn__text_in_one_row_gains_half():
    """Half a submission's pay is gained before the first catch and half after it. Two false rows are always seen."""
    deterrence = build(rows=2, drawn_rows=1, audit_rate=0.0, pay=10, slash=15, cases=1, submissions=1)
    one, two = deterrence.list_false_texts()
    assert (one.share, one.by_rows, two.share, two.by_rows) == (0.5, 0.5, 1.0, 1.0)
    plan = deterrence.find_worst([one, two])
    assert (plan.first, plan.then, plan.factor) == (one, one, 1.5)
    assert deterrence.find_worst([two]).factor == math.inf


def test_find_worst__first_and_then__are_chosen_apart():
    """Few false rows until the first catch, then as many as may stay unseen: cases beyond the stake cost nothing."""
    terms, params = read_large()
    deterrence = compute_deterrence(terms, params)
    plan = deterrence.find_worst(deterrence.list_false_texts())
    assert plan.then is not None
    assert (plan.first.false_rows, plan.then.false_rows) == (2, 13)
    assert plan.factor == pytest.approx(4.97, abs=0.01)
    for cheat in deterrence.list_false_texts():
        assert deterrence.find_worst([cheat]).factor >= plan.factor


@pytest.mark.parametrize(("rows", "drawn"), [(1, 0), (1, 1), (5, 2), (8, 3), (9, 9)])
def test_compute_hit__all_draws_are_counted__is_the_share_with_a_false_row(rows: int, drawn: int):
    draws = list(combinations(range(rows), drawn))
    for false in range(rows + 1):
        hits = sum(any(row < false for row in draw) for draw in draws)
        assert compute_hit(rows=rows, false_rows=false, drawn_rows=drawn) == pytest.approx(hits / len(draws))


def test_compute_hit__draws_of_the_protocol__hit_as_often():
    """Of 16 rows, 3 are drawn. One false row is found in 18.75 % of submissions, and eight false rows in 90 %."""
    draws = [draw_rows(make_hash(f"receipt {i}"), make_hash("block"), count=3, rows=16) for i in range(2000)]
    for false, expected in ((1, 3 / 16), (8, 1 - 56 / 560), (13, 1 - 1 / 560)):
        assert compute_hit(rows=16, false_rows=false, drawn_rows=3) == pytest.approx(expected)
        hits = sum(min(draw) < false for draw in draws) / len(draws)
        assert hits == pytest.approx(expected, abs=4 * math.sqrt(expected * (1 - expected) / len(draws)))


def test_list_false_texts__very_many_rows__tries_some_and_the_most_that_may_stay_unseen():
    deterrence = build(rows=100_000, drawn_rows=5, audit_rate=0.1, pay=10, slash=60, cases=1, submissions=1)
    counts = [cheat.false_rows for cheat in deterrence.list_false_texts()]
    assert counts == sorted(counts)
    assert len(counts) < 80
    assert {1, 2, 99_995, 100_000} <= set(counts)


@pytest.mark.parametrize("false_rows", [None, 1, 4, 13])
@pytest.mark.parametrize(("rate", "cases", "submissions"), [(0.1, 1, 1), (0.2, 4, 20), (0.3, 3, 7)])
def test_find_worst__many_simulated_cheats__equals_their_loss_over_their_gain(
    rate: float, cases: int, submissions: int, false_rows: int | None
):
    """Rows are drawn one by one here, and a small difference is found by one in two replays."""
    play, gain, loss, detection, drawn = random.Random(7), 0.0, 0, 0.5, 3
    share = 1.0 if false_rows is None else false_rows / 16

    def submit() -> str:
        if play.random() < rate:
            return "caught" if false_rows is not None or play.random() < detection else "replayed"
        is_hit = false_rows is not None and any(row < false_rows for row in play.sample(range(16), drawn))
        return "caught" if is_hit else "undrawn"

    for _ in range(6_000):
        while submit() != "caught":
            gain += 3 * share
        caught, undrawn = 1, 0
        while undrawn < submissions and (caught < cases or false_rows is None):
            fate = submit()
            caught, undrawn = caught + (fate == "caught"), undrawn + (fate == "undrawn")
            gain += 3 * share * (fate != "caught")
        gain += 3 * share * (submissions - undrawn)  # Cases beyond the stake cost nothing.
        loss += 50 * min(cases, caught)
    deterrence = build(
        drawn_rows=drawn,
        audit_rate=rate,
        detection=detection,
        pay=3,
        slash=50,
        cases=cases,
        submissions=submissions,
    )
    (cheat,) = (each for each in deterrence.list_cheats() if each.false_rows == false_rows)
    assert compute_plan(deterrence, cheat) == pytest.approx(loss / gain, rel=0.05)


def compute_plan(deterrence: Deterrence, cheat: SubmissionCheat) -> float:
    """Return the factor of a cheat that goes on after the first catch, which is worse for all cheats of the test."""
    plan = deterrence.find_worst([cheat])
    assert plan.then == cheat
    return plan.factor


def test_compute_deterrence__replays_that_find_few_cheats__deter_less_and_are_said():
    """The large pool's factor of 3.2 holds only if each whole replay finds the cheat."""
    terms, params = read_large()
    factors = [compute_deterrence(terms, params, detection=rate).factor for rate in (1, 1 / 2, 1 / 4, 1 / 12)]
    assert factors == pytest.approx([3.20, 1.97, 1.04, 0.34], abs=0.01)
    assert describe_deterrence(terms, params) == (
        "a cheat is expected to lose 3.2 times its gain by the worst plan: small differences in all rows, which only a "
        "whole replay finds. If a whole replay finds only one in two such differences, it loses 2.0 times its gain. By "
        "the worst plan with false text it loses 5.0 times: false text in 2 of 16 rows until one is caught, then false "
        "text in 13 of 16 rows"
    )
    assert measure_deterrence(terms, params, detection=1.0) == pytest.approx(3.20, abs=0.01)


def test_describe_deterrence__all_rows_are_drawn__never_pays_if_replays_find_it():
    terms, params = read_large()
    rules = params.verification.model_copy(update={"audit_rows": 16})
    # It is paid 1 before a replay finds it, and 20 x 0.5 / 0.4 until the verdict; nearly always 4 cases take 10 each.
    by_hand = 4 * 10 / (0.49152 * (1 + 25))
    all_rows = params.model_copy(update={"verification": rules})
    half = measure_deterrence(terms, all_rows, detection=0.5)
    assert (measure_deterrence(terms, all_rows, detection=1.0), half) == (None, pytest.approx(by_hand, abs=0.01))
    assert describe_deterrence(terms, all_rows) == (
        "cheating never pays if a whole replay finds every small difference, because all work is replayed. If a whole "
        f"replay finds only one in two such differences, it loses {by_hand:.1f} times its gain"
    )
    free = replace(terms, reward_per_million=0)
    assert describe_deterrence(free, all_rows) == "cheating never pays, because nothing is paid for work"


def test_list_weak_terms__row_draws_alone__do_not_deter_small_differences():
    """Without whole replays false text does not pay, but what drawn rows do not find costs nothing."""
    terms, params = read_large()
    rules = params.verification.model_copy(update={"audit_rate": 0.0})
    deterrence = compute_deterrence(terms, params.model_copy(update={"verification": rules}))
    assert deterrence.find_worst(deterrence.list_false_texts()).factor > MIN_FACTOR
    assert deterrence.factor == 0


def test_factor__cheat_uses_the_limit_of_undrawn_pay__approaches_undrawn_part():
    terms, params = read_large(min_stake=4 * 10**6 * COINS, slash_amount=10**6 * COINS)
    assert 0.999 * UNDRAWN_PART < compute_deterrence(terms, params).factor < UNDRAWN_PART
    assert MIN_FACTOR < UNDRAWN_PART


def test_compute_deterrence__first_cases_are_light__counts_the_light_amount():
    terms, params = read_large()
    light = compute_deterrence(replace(terms, strikes=1, light_slash_bps=100), params)
    assert light.slash == terms.slash_amount // 100
    assert compute_deterrence(replace(terms, strikes=1, light_slash_bps=0), params).factor == 0.0


@pytest.mark.parametrize(("free", "limit"), [(400, 60), (239, 59), (100, 25), (0, 0)])
def test_compute_undrawn_limit__is_a_quarter_of_the_stake_that_cases_can_take(free: int, limit: int):
    """In one span of the cap, cases take at most 4 x 60, even if more is staked."""
    terms, _ = read_large(min_stake=100, slash_amount=60, max_slashes=4)
    assert compute_undrawn_limit(terms, free) == limit


def test_list_remedies__weak_terms__gives_the_smallest_sufficient_change_of_each_term():
    terms, params = read_large(min_stake=4 * COINS, slash_amount=COINS)
    remedies = {tuple(remedy.values): remedy for remedy in list_remedies(terms, params)}
    assert set(remedies) == {("audit_rate",), ("slash_amount", "min_stake"), ("reward_per_million",)}
    changes = [remedy.change for remedy in list_remedies(terms, params)]
    assert changes == sorted(changes)
    rate = remedies["audit_rate",].values["audit_rate"]
    assert compute_factor(terms, params, rate) >= MIN_FACTOR > compute_factor(terms, params, rate - 0.01)
    slashes = remedies["slash_amount", "min_stake"].values
    assert slashes["min_stake"] == 4 * slashes["slash_amount"]
    assert compute_deterrence(replace(terms, **slashes), params).factor >= MIN_FACTOR
    reward = remedies["reward_per_million",].values["reward_per_million"]
    assert compute_deterrence(replace(terms, reward_per_million=reward), params).factor >= MIN_FACTOR
    assert all(re.fullmatch(r"\d{1,2}0*", str(n)) for n in (reward, slashes["slash_amount"]))


def test_list_remedies__many_slashes__few_sums_are_computed(monkeypatch: pytest.MonkeyPatch):
    """Each sum has up to 1,000 terms, and hundreds of amounts with dozens of cheats are tried."""
    terms, params = read_large(min_stake=4 * COINS, slash_amount=COINS, max_slashes=1000)
    compute, sums = Deterrence._compute_expected_cases, list[float]()

    def count(deterrence: Deterrence, undrawn: float) -> float:
        sums.append(undrawn)
        return compute(deterrence, undrawn)

    monkeypatch.setattr(Deterrence, "_compute_expected_cases", count)
    remedies = list_remedies(terms, params)
    assert len(remedies) == 3
    assert len(sums) < 1000


@pytest.mark.parametrize("audit_rate", [0.01, 0.2, 0.7])
@pytest.mark.parametrize("submissions", [1, 7, 400])
def test_reaches__agrees_with_the_factor(audit_rate: float, submissions: int):
    """The bound by which it is decided early is above the exact value, so no plan is judged otherwise."""
    deterrence = Deterrence(
        rows=8, drawn_rows=2, audit_rate=audit_rate, pay=10, slash=40, cases=50, submissions=submissions
    )
    for ratio in (0.5, 0.999, 1.001, 2.0):
        assert deterrence.reaches(deterrence.factor * ratio) is (ratio < 1)


def test_list_remedies__nothing_is_drawn__only_a_higher_audit_rate_helps():
    terms, params = read_large()
    rules = params.verification.model_copy(update={"audit_rate": 0.0})
    (remedy,) = list_remedies(terms, params.model_copy(update={"verification": rules}))
    assert set(remedy.values) == {"audit_rate"}
