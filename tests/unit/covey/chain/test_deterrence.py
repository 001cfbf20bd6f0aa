"""Terms deter if a cheat is expected to lose more than it gains. The shipped pools deter by a factor of three."""

import math
import random
import re
from dataclasses import replace
from pathlib import Path

import pytest

from covey.chain.deterrence import (
    MIN_FACTOR,
    UNDRAWN_PART,
    Deterrence,
    compute_deterrence,
    compute_undrawn_limit,
    list_remedies,
)
from covey.console.pool_terms import describe_deterrence
from covey.demo.participants import DemoOptions, Participants
from covey.local.plan import PoolPlan, build_pool
from tests.fakes.configs import CONFIGS, read_settings
from tests.fakes.pool import make_address

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


@pytest.mark.parametrize("file", sorted(CONFIGS.glob("*pool.toml")), ids=lambda path: path.name)
def test_compute_deterrence__shipped_pools__deter(file: Path):
    assert compute_deterrence(*read_settings(file)).factor >= MIN_FACTOR


@pytest.mark.parametrize("validators", [1, 3])
def test_compute_deterrence__pool_of_covey_init__deters(tmp_path: Path, validators: int):
    names = ("trainer", "arbiter", *(f"validator-{i + 1}" for i in range(validators)))
    text = build_pool("mine", PoolPlan(validators=validators), {name: make_address(name) for name in names})
    (tmp_path / "pool.toml").write_text(text)
    assert compute_deterrence(*read_settings(tmp_path / "pool.toml")).factor >= MIN_FACTOR


def test_compute_deterrence__demo__replays_everything(tmp_path: Path):
    assert compute_deterrence(*read_settings(Participants(tmp_path, DemoOptions()).write_pool())).factor == math.inf


def test_compute_deterrence__large_pool_with_a_stake_of_two_submissions__rewards_cheating():
    """16 completions of 30,720 tokens at 10^12 pay 0.49 tokens. One draw in ten takes one token."""
    terms, params = read_large(min_stake=COINS, slash_amount=COINS, max_slashes=1)
    rules = params.verification.model_copy(update={"audit_rate": 0.1})
    deterrence = compute_deterrence(terms, params.model_copy(update={"verification": rules}))
    assert (deterrence.pay, deterrence.slash, deterrence.cases, deterrence.tasks) == (COINS // 4, COINS, 1, 1)
    assert deterrence.factor == pytest.approx(0.1 * 1 / (0.9 * 0.25))


def test_compute_deterrence__cheat_stakes_more_than_the_minimum__may_submit_work_that_pays_more():
    """A quarter of 50 slashes lets one submission pay 0.49 tokens, and 0.1 are slashed in seven of ten.

    Computed by hand: with the minimum stake, at most 0.025 tokens are paid undrawn, and the factor is over 3.
    """
    terms, params = read_large(min_stake=COINS // 10, slash_amount=COINS // 10, max_slashes=50)
    rules = params.verification.model_copy(update={"audit_rate": 0.7})
    deterrence = compute_deterrence(terms, params.model_copy(update={"verification": rules}))
    assert (deterrence.cases, deterrence.tasks) == (50, 8)  # 1.25 / 0.49152 / 0.3
    paid = 0.3 * 0.49152 * (1 / 0.7 + 7)
    assert deterrence.factor == pytest.approx(0.1 * (1 + 7 * 0.7) / paid, rel=1e-6)


def test_large_pool__stake__covers_the_largest_number_of_cases_in_a_span():
    terms, params = read_large()
    assert terms.min_stake >= terms.max_slashes * terms.slash_amount
    # A false case costs its signers about the amount that it would take.
    assert terms.signer_penalty >= terms.slash_amount / 2
    assert terms.validator_bond >= terms.max_slashes * terms.signer_penalty
    deterrence = compute_deterrence(terms, params)
    assert (deterrence.cases, deterrence.tasks) == (4, int(10 / (16 * 30_720e-6) / 0.8))


@pytest.mark.parametrize(
    ("deterrence", "factor"),
    [
        (Deterrence(audit_rate=0.5, pay=10, slash=60, cases=1, tasks=1), 6.0),  # 0.5 x 60 over 0.5 x 10.
        (Deterrence(audit_rate=0.1, pay=10, slash=60, cases=4, tasks=1), 6 / 9),
        (Deterrence(audit_rate=0.5, pay=10, slash=60, cases=1, tasks=2), 4.0),  # One more task with the same stake.
        (Deterrence(audit_rate=0.5, pay=10, slash=60, cases=2, tasks=2), 6.0),  # 1.5 cases over 1.5 submissions.
        (Deterrence(audit_rate=0.5, pay=10, slash=60, cases=2, tasks=3), 60 * 1.75 / 20),  # K = 0 in 1 of 4.
        (Deterrence(audit_rate=1.0, pay=10, slash=0, cases=0, tasks=1), math.inf),
        (Deterrence(audit_rate=0.5, pay=0, slash=60, cases=1, tasks=1), math.inf),
        (Deterrence(audit_rate=0.0, pay=10, slash=60, cases=1, tasks=1), 0.0),
        (Deterrence(audit_rate=0.5, pay=10, slash=0, cases=0, tasks=1), 0.0),
    ],
)
def test_factor__values_by_hand__are_reproduced(deterrence: Deterrence, factor: float):
    assert deterrence.factor == pytest.approx(factor)


@pytest.mark.parametrize("detection", [1.0, 0.5])
@pytest.mark.parametrize(("rate", "cases", "tasks"), [(0.1, 1, 1), (0.2, 4, 25), (0.3, 3, 7), (0.05, 2, 60)])
def test_factor__many_simulated_cheats__equals_their_loss_over_their_gain(
    rate: float, cases: int, tasks: int, detection: float
):
    play, gain, loss = random.Random(7), 0, 0

    def is_caught() -> bool:
        return play.random() < rate and play.random() < detection

    for _ in range(20_000):
        while not is_caught():
            gain += 3
        caught = [is_caught() for _ in range(tasks - 1)]
        gain += 3 * caught.count(False)
        loss += 50 * min(cases, 1 + caught.count(True))
    deterrence = Deterrence(audit_rate=rate, detection=detection, pay=3, slash=50, cases=cases, tasks=tasks)
    assert deterrence.factor == pytest.approx(loss / gain, rel=0.03)


def test_compute_deterrence__replays_that_find_few_cheats__deter_less_and_are_said():
    """The large pool's factor of 3.4 holds only if each replay finds the cheat."""
    terms, params = read_large()
    factors = [compute_deterrence(terms, params, detection=rate).factor for rate in (1, 1 / 2, 1 / 4, 1 / 12)]
    assert factors == pytest.approx([3.37, 2.04, 1.05, 0.34], abs=0.01)
    assert describe_deterrence(terms, params) == (
        "a cheat is expected to lose 3.4 times its gain, or 2.0 times if a replay finds one in two"
    )


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
    assert set(remedies) == {("audit_rate",), ("slash_amount", "min_stake"), ("reward_per_unit",)}
    changes = [remedy.change for remedy in list_remedies(terms, params)]
    assert changes == sorted(changes)
    rate = remedies["audit_rate",].values["audit_rate"]
    assert compute_factor(terms, params, rate) >= MIN_FACTOR > compute_factor(terms, params, rate - 0.01)
    slashes = remedies["slash_amount", "min_stake"].values
    assert slashes["min_stake"] == 4 * slashes["slash_amount"]
    assert compute_deterrence(replace(terms, **slashes), params).factor >= MIN_FACTOR
    reward = remedies["reward_per_unit",].values["reward_per_unit"]
    assert compute_deterrence(replace(terms, reward_per_unit=reward), params).factor >= MIN_FACTOR
    assert all(re.fullmatch(r"\d{1,2}0*", str(n)) for n in (reward, slashes["slash_amount"]))


def test_list_remedies__nothing_is_drawn__only_a_higher_audit_rate_helps():
    terms, params = read_large()
    rules = params.verification.model_copy(update={"audit_rate": 0.0})
    (remedy,) = list_remedies(terms, params.model_copy(update={"verification": rules}))
    assert set(remedy.values) == {"audit_rate"}
