"""Simulated campaigns against campaigns played one submission at a time, and against the formula."""

import random
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.verification.campaigns import (
    Strategy,
    compute_chances,
    find_worst,
    list_strategies,
    run_campaigns,
)
from benchmarks.verification.panel_outcomes import Fate, JudgedSubmission
from covey.chain.deterrence import Deterrence, SubmissionCheat

pytestmark = pytest.mark.unit
TERMS = Deterrence(rows=4, drawn_rows=1, audit_rate=0.25, detection=0.5, pay=3, slash=50, cases=3, submissions=5)
TEXT, DIFFERENCE = TERMS.list_false_texts()[0], TERMS.build_difference()
CHANCES = {Fate.UNDRAWN: 0.5, Fate.REPLAYED: 0.2, Fate.VOID: 0.1, Fate.CASE: 0.15, Fate.UNSIGNED: 0.05}
AFTER = {Fate.UNDRAWN: 0.4, Fate.REPLAYED: 0.1, Fate.VOID: 0.0, Fate.CASE: 0.5, Fate.UNSIGNED: 0.0}


def play(strategy: Strategy, count: int) -> tuple[float, float]:
    """Return the mean gain and loss of campaigns in which each submission is drawn alone."""
    dice, gain, loss = random.Random(3), 0.0, 0.0

    def submit(chances: dict[Fate, float]) -> Fate:
        return dice.choices(list(chances), list(chances.values()))[0]

    def pay(cheat: SubmissionCheat, fate: Fate) -> float:
        return TERMS.pay * cheat.share * (fate in (Fate.UNDRAWN, Fate.REPLAYED))

    for _ in range(count):
        caught, wave = 0, [Fate.VOID]
        while not {Fate.CASE, Fate.UNSIGNED} & set(wave):
            wave = [submit(CHANCES) for _ in range(strategy.wave)]
            gain += sum(pay(strategy.first, fate) for fate in wave)
        caught += wave.count(Fate.CASE)
        room = TERMS.submissions - wave.count(Fate.UNDRAWN) if strategy.then else 0
        while strategy.then and room > 0:
            fate = submit(AFTER)
            caught, room = caught + (fate is Fate.CASE), room - (fate is Fate.UNDRAWN)
            gain += pay(strategy.then, fate)
        loss += TERMS.slash * min(TERMS.cases, caught)
    return gain / count, loss / count


@pytest.mark.parametrize("wave", [1, 4])
@pytest.mark.parametrize("then", [None, DIFFERENCE])
def test_run_campaigns__many__gain_and_lose_as_those_that_are_played(wave: int, then: SubmissionCheat | None):
    strategy = Strategy(first=TEXT, wave=wave, then=then)
    chances = {TEXT: CHANCES, DIFFERENCE: AFTER}
    totals = run_campaigns(strategy, TERMS, chances, count=40_000, rng=np.random.default_rng(1))
    assert totals is not None
    assert (totals.gain.mean(), totals.loss.mean()) == pytest.approx(play(strategy, 8_000), rel=0.06)
    assert totals.factor == pytest.approx(totals.loss.mean() / totals.gain.mean())


def test_run_campaigns__nothing_is_ever_caught__does_not_end():
    strategy = Strategy(first=TEXT, wave=1, then=None)
    free = {TEXT: {**dict.fromkeys(Fate, 0.0), Fate.UNDRAWN: 1.0}}
    assert run_campaigns(strategy, TERMS, free, count=10, rng=np.random.default_rng(1)) is None


def test_run_campaigns__everything_is_caught__gains_nothing():
    strategy = Strategy(first=TEXT, wave=3, then=None)
    lost = {TEXT: {**dict.fromkeys(Fate, 0.0), Fate.CASE: 1.0}}
    totals = run_campaigns(strategy, TERMS, lost, count=10, rng=np.random.default_rng(1))
    assert totals is not None
    assert (totals.gain.sum(), set(totals.loss), totals.factor, totals.ahead) == (0, {150.0}, float("inf"), 0)


def test_compute_chances__of_one_false_row__are_sums_over_draws_and_confirmations():
    """A quarter is drawn whole. A drawn row shows it in a quarter, to one validator that finds it in half."""
    fates = {
        JudgedSubmission(audited=True, confirmed=False, is_visible=True): {Fate.CASE: 1.0},
        JudgedSubmission(audited=True, confirmed=False, is_visible=False): {Fate.REPLAYED: 1.0},
        JudgedSubmission(audited=False, confirmed=False, is_visible=True): {Fate.CASE: 0.5, Fate.UNDRAWN: 0.5},
        JudgedSubmission(audited=False, confirmed=True, is_visible=True): {Fate.CASE: 1.0},
        JudgedSubmission(audited=False, confirmed=False, is_visible=False): {Fate.UNDRAWN: 1.0},
        JudgedSubmission(audited=False, confirmed=True, is_visible=False): {Fate.UNDRAWN: 1.0},
    }
    chances = compute_chances(fates, TEXT, audit_rate=0.25, confirm_rate=0.2)
    assert chances[Fate.CASE] == pytest.approx(0.25 + 0.75 * 0.25 * (0.2 + 0.8 * 0.5))
    assert chances[Fate.UNDRAWN] == pytest.approx(0.75 * (0.75 + 0.25 * 0.8 * 0.5))
    assert sum(chances.values()) == pytest.approx(1)
    hidden = compute_chances(fates, DIFFERENCE, audit_rate=0.25, confirm_rate=0.2)
    assert (hidden[Fate.CASE], hidden[Fate.REPLAYED]) == pytest.approx((0.125, 0.125))


@pytest.mark.parametrize("detection", [1.0, 0.5])
def test_find_worst__honest_validators__agrees_with_the_formula(detection: float):
    terms = replace(TERMS, detection=detection)
    chances = {
        cheat: {
            **dict.fromkeys(Fate, 0.0),
            Fate.CASE: cheat.compute_caught(0.25),
            Fate.REPLAYED: 0.25 * (1 - cheat.by_replay),
            Fate.UNDRAWN: 0.75 * (1 - cheat.by_rows),
        }
        for cheat in terms.list_cheats()
    }
    strategies = list_strategies(terms, (1, 5))
    worst, totals = find_worst(strategies, terms, chances, count=20_000, rng=np.random.default_rng(2))
    assert (worst.first, worst.wave) == (terms.build_difference(), 1)
    assert totals.factor == pytest.approx(terms.factor, rel=0.03)
