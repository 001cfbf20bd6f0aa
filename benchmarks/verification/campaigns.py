"""Simulated campaigns of a cheat: submissions until it is caught, and what it submits from then until the verdict."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.verification.panel_outcomes import Fate, Fates
from covey.chain.deterrence import Deterrence, SubmissionCheat

Chances = Mapping[Fate, float]
"""Probabilities of the fates of a submission of a cheat."""
ENDS = (Fate.CASE, Fate.UNSIGNED)
"""Fates that end a campaign, because the contributor is suspended."""
CANDIDATES = 5
"""Number of strategies whose factors are computed with all campaigns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """What a cheat submits.  Example: one submission at a time until one is caught, and nothing afterwards."""

    first: SubmissionCheat
    """Cheat in each submission until the draw shows that at least one of them will be caught."""
    wave: int
    """Number of submissions in progress at a time before that, from any number of nodes."""
    then: SubmissionCheat | None
    """Cheat in each submission from then until the verdict.  None: the cheat stops."""

    def __str__(self) -> str:
        after = f", then {describe(self.then)}" if self.then else ", then nothing"
        return f"{describe(self.first)} in waves of {self.wave}{after}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CampaignTotals:
    """Gain and loss of each campaign, in the token's smallest unit."""

    gain: NDArray[np.float64]
    loss: NDArray[np.float64]

    @property
    def factor(self) -> float:
        """Sum of the losses over the sum of the gains.  Infinite if nothing was gained."""
        gain = float(self.gain.sum())
        return float(self.loss.sum()) / gain if gain else float("inf")

    @property
    def ahead(self) -> float:
        """Share of the campaigns in which the cheat gained more than it lost."""
        return float((self.gain > self.loss).mean())


def describe(cheat: SubmissionCheat) -> str:
    """Describe a cheat in a cell of a table."""
    return "small differences" if cheat.false_rows is None else f"{cheat.false_rows} false rows"


def compute_chances(
    fates: Fates, cheat: SubmissionCheat, *, audit_rate: float, confirm_rate: float
) -> dict[Fate, float]:
    """Compute the probability of each fate of a submission, over its draws and the orders of the validators."""
    draws = {True: audit_rate, False: 1 - audit_rate}
    confirmations = {True: confirm_rate, False: 1 - confirm_rate}
    chances = dict.fromkeys(Fate, 0.0)
    for kind, by_fate in fates.items():
        seen = cheat.by_replay if kind.audited else cheat.by_rows
        weight = draws[kind.audited] * (seen if kind.is_visible else 1 - seen)
        weight *= 1.0 if kind.audited else confirmations[kind.confirmed]
        for fate, chance in by_fate.items():
            chances[fate] += weight * chance
    return chances


def run_campaigns(
    strategy: Strategy,
    terms: Deterrence,
    chances: Mapping[SubmissionCheat, Chances],
    *,
    count: int,
    rng: np.random.Generator,
) -> CampaignTotals | None:
    """Run campaigns of one strategy. Return None if it cannot end because nothing is ever caught.

    Before the draw shows a catch, earlier waves are in epochs, so that nothing takes their pay back. From then on, what
    is accepted without a whole replay is bounded by `terms.submissions`, the last wave included.
    """
    before = chances[strategy.first]
    caught = sum(before[fate] for fate in ENDS)
    if caught <= 0:
        return None
    wave = min(strategy.wave, terms.submissions)
    clean = rng.geometric(-np.expm1(wave * np.log1p(-min(caught, 1 - 1e-16))), count) - 1
    first = _draw_first(caught, wave, count, rng)
    more = rng.binomial(wave - first, min(1.0, caught))
    survivors = clean * wave + wave - 1 - more
    last = wave - 1 - more
    share = 1 - caught
    paid = rng.binomial(survivors - last, _divide(before[Fate.UNDRAWN] + before[Fate.REPLAYED], share))
    undrawn = rng.binomial(last, _divide(before[Fate.UNDRAWN], share))
    replayed = rng.binomial(last - undrawn, _divide(before[Fate.REPLAYED], share - before[Fate.UNDRAWN]))
    gain = strategy.first.share * (paid + undrawn + replayed).astype(np.float64)
    catches = rng.binomial(1 + more, _divide(before[Fate.CASE], caught))
    if strategy.then is not None:
        after = chances[strategy.then]
        if after[Fate.UNDRAWN] <= 0:
            return None
        room = np.maximum(0, terms.submissions - undrawn)
        gain += strategy.then.share * (room + _draw_until(room, after[Fate.REPLAYED], after[Fate.UNDRAWN], rng))
        catches = catches + _draw_until(room, after[Fate.CASE], after[Fate.UNDRAWN], rng)
    return CampaignTotals(gain=terms.pay * gain, loss=terms.slash * np.minimum(terms.cases, catches).astype(np.float64))


def _draw_first(caught: float, wave: int, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Draw the place, from 1, of the first submission that is caught in a wave in which at least one is."""
    log = np.log1p(-min(caught, 1 - 1e-16))
    places: NDArray[np.float64] = np.ceil(np.log1p(rng.random(count) * np.expm1(wave * log)) / log)
    return np.minimum(np.maximum(1, places), wave).astype(np.int64)


def _draw_until(room: NDArray[np.int64], rate: float, survival: float, rng: np.random.Generator) -> NDArray[np.int64]:
    """Draw how many submissions of one fate come before `room` ones have survived undrawn."""
    drawn = rng.negative_binomial(np.maximum(1, room), survival / (survival + rate)) if rate > 0 else 0 * room
    return np.where(room > 0, drawn, 0)


def _divide(part: float, whole: float) -> float:
    return min(1.0, max(0.0, part / whole)) if whole > 0 else 0.0


def list_strategies(terms: Deterrence, waves: Sequence[int], *, is_text: bool = False) -> list[Strategy]:
    """List the strategies to search: false text in one, two, three, half, almost all or all rows.

    Small differences are among them unless `is_text`. The first cheat and the second one are combined freely, and so
    are the sizes of the waves.
    """
    unseen = max(1, terms.rows - terms.drawn_rows)
    counts = {1, 2, 3, terms.rows // 2, unseen, terms.rows}
    cheats = [each for each in terms.list_false_texts() if each.false_rows in counts]
    cheats += [] if is_text else [terms.build_difference()]
    return [
        Strategy(first=first, wave=wave, then=then) for first in cheats for wave in waves for then in (None, *cheats)
    ]


def find_worst(
    strategies: Sequence[Strategy],
    terms: Deterrence,
    chances: Mapping[SubmissionCheat, Chances],
    *,
    count: int,
    rng: np.random.Generator,
) -> tuple[Strategy, CampaignTotals]:
    """Return the strategy with the smallest factor, and the totals of its campaigns.

    Few campaigns of each strategy choose the candidates. The totals are of other campaigns, because the smallest of
    many estimates is too small by chance. A strategy that does not end is left out.
    """
    screened = [(run_campaigns(each, terms, chances, count=max(1, count // 10), rng=rng), each) for each in strategies]
    ended = [(totals.factor, i, each) for i, (totals, each) in enumerate(screened) if totals is not None]
    candidates = [each for *_, each in sorted(ended, key=lambda entry: entry[:2])[:CANDIDATES]]
    totals = [(run_campaigns(each, terms, chances, count=count, rng=rng), each) for each in candidates]
    return min(((each, found) for found, each in totals if found is not None), key=lambda entry: entry[1].factor)
