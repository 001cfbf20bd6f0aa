"""Computes whether a pool's terms deter cheating: a cheat's expected loss of stake, divided by its expected gain of
pay, for the worst plan.

A cheat falsifies the text of some rows, which every replay of such a row finds. Or it makes a small difference in all
rows, which only a whole replay finds. It gains the pay of the rows that it falsifies.

The model is a node with a good record that begins to cheat. It has either the minimum stake or the maximum that cases
can take; the smaller factor counts. The draw is public, so it knows when one of its submissions will be caught. Until
then it submits one at a time. From then on it submits as much as it can until the verdict, in a manner of its choice.
What is not caught stays paid. Each submission that is caught is a case that takes stake, up to the stake and
`max_slashes`.

The pay at risk at any time is bounded. A contributor's work that is neither replayed nor in an epoch pays at most
`compute_undrawn_limit`, and work beyond that is replayed. While a submission is being replayed, later work counts even
if it is in an epoch. This limits what is submitted until the verdict, which a limit of leases would not.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from covey.chain.structs import PoolTerms
from covey.protocol.params import PoolParams
from covey.protocol.prices import compute_reward

MIN_FACTOR = 3.0
"""Minimum factor of terms that deter. Below 1 a cheat gains. The margin above 1 covers unknown effects."""
UNDRAWN_PART = 4
"""Divisor of the stake that cases can take; the result is the limit of undrawn pay.

The factor of a cheat that uses the whole limit approaches UNDRAWN_PART from below, so it must exceed MIN_FACTOR.
"""
MAX_CASES = 1000
"""Maximum number of cases that the computation counts. More cases would deter more, but the sum must stay short."""
MAX_SHARES = 64
"""Number of rows up to which every number of false rows is tried. Of more rows, shares in equal distances are tried."""
MAX_AMOUNT = (1 << 96) - 1
"""Maximum amount in a contract's terms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmissionCheat:
    """What a cheat falsifies in a submission. Example: half of 16 rows, of which 3 are drawn, has `by_rows` of 0.9."""

    false_rows: int | None
    """Number of rows with false text. None: there is a small difference in all rows."""
    share: float
    """Falsified share of the rows, above 0 and at most 1. It is also the gained share of the pay."""
    by_replay: float
    """Probability that a replay of all rows finds it."""
    by_rows: float
    """Probability that a replay of the drawn rows finds it."""

    def compute_caught(self, audit_rate: float) -> float:
        """Return the probability that the cheat is found, replayed whole or not."""
        return audit_rate * self.by_replay + (1 - audit_rate) * self.by_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class CheatingPlan:
    """What a cheat does, and its expected loss over its expected gain."""

    first: SubmissionCheat
    """What it submits until the draw shows that one submission will be caught."""
    then: SubmissionCheat | None
    """What it submits from then on, until the verdict. None: nothing."""
    factor: float
    """Expected loss over expected gain. Infinite if all work is found out or none is paid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deterrence:
    """Expected loss and gain of cheats. Amounts are in the token's smallest unit.

    Example: Deterrence(rows=16, drawn_rows=0, audit_rate=0.5, pay=10, slash=40, cases=1, submissions=1).factor == 2.
    """

    rows: int
    """Number of rows of a submission."""
    drawn_rows: int
    """Number of rows that are replayed of a submission that is not replayed whole."""
    audit_rate: float
    """Probability that a submission is replayed whole, from 0 to 1."""
    detection: float = 1.0
    """Probability that a replay of all rows finds a small difference in all rows, above 0 and at most 1."""
    pay: int
    """Maximum pay of a submission that is not always replayed."""
    slash: int
    """Stake that one case takes."""
    cases: int
    """Number of cases that the stake covers."""
    submissions: int
    """Number of submissions that fit into the limit of undrawn pay, at least 1."""

    @property
    def factor(self) -> float:
        """Factor of the worst plan with all cheats of `list_cheats`."""
        return self.find_worst(self.list_cheats()).factor

    def reaches(self, factor: float) -> bool:
        """Return whether the factor is at least this one. It mostly takes a bound instead of the sums of `factor`."""
        cheats = self.list_cheats()
        is_below = any(plan.factor < factor for plan in self._list_plans(cheats, self._bound_expected_cases))
        return not is_below and self.find_worst(cheats).factor >= factor

    def list_cheats(self) -> list[SubmissionCheat]:
        """Return a cheat for each number of false rows, and then the small difference in all rows."""
        return [*self.list_false_texts(), self.build_difference()]

    def list_false_texts(self) -> list[SubmissionCheat]:
        """Return a cheat for each number of false rows, in ascending order."""
        drawn = min(self.drawn_rows, self.rows)
        return [
            SubmissionCheat(
                false_rows=count,
                share=count / self.rows,
                by_replay=1.0,
                by_rows=compute_hit(rows=self.rows, false_rows=count, drawn_rows=drawn),
            )
            for count in _list_counts(self.rows, self.rows - drawn)
        ]

    def build_difference(self) -> SubmissionCheat:
        """Build the cheat that makes a small difference in all rows. Drawn rows find it only if they are all rows."""
        by_rows = self.detection if self.drawn_rows >= self.rows else 0.0
        return SubmissionCheat(false_rows=None, share=1.0, by_replay=self.detection, by_rows=by_rows)

    def find_worst(self, cheats: Sequence[SubmissionCheat]) -> CheatingPlan:
        """Return the plan with the smallest factor that consists of the given cheats."""
        return min(self._list_plans(cheats, self._compute_expected_cases), key=lambda plan: plan.factor)

    def _list_plans(
        self, cheats: Sequence[SubmissionCheat], count_cases: Callable[[float], float]
    ) -> Iterator[CheatingPlan]:
        """Yield the plans of the given cheats. `count_cases` is `_compute_expected_cases` or its bound."""
        first = max(cheats, key=self._count_paid_before)
        paid = self._count_paid_before(first)
        yield CheatingPlan(first=first, then=None, factor=self._compute_factor(min(1, self.cases), paid))
        for cheat in cheats:
            undrawn, caught = self._compute_undrawn(cheat), cheat.compute_caught(self.audit_rate)
            if undrawn > 0:
                total = paid + cheat.share * self.submissions * (1 - caught) / undrawn
                cases = count_cases(undrawn / (undrawn + caught))
                yield CheatingPlan(first=first, then=cheat, factor=self._compute_factor(cases, total))

    def _compute_undrawn(self, cheat: SubmissionCheat) -> float:
        """Return the probability that a submission is neither replayed whole nor caught.

        The limit counts only such work: what was replayed whole and accepted is paid outside of it.
        """
        return (1 - self.audit_rate) * (1 - cheat.by_rows)

    def _count_paid_before(self, cheat: SubmissionCheat) -> float:
        """Return the expected pay of a cheat before the first catch, as a multiple of a submission's pay."""
        caught = cheat.compute_caught(self.audit_rate)
        return cheat.share * (1 - caught) / caught if caught else math.inf

    def _compute_factor(self, cases: float, paid: float) -> float:
        gain = self.pay * paid if self.pay else 0.0
        return self.slash * cases / gain if gain else math.inf

    def _bound_expected_cases(self, undrawn: float) -> float:
        """Return an upper bound of `_compute_expected_cases`: min(cases, 1 + E[K]), by Jensen's inequality."""
        return min(self.cases, 1 + self.submissions * (1 - undrawn) / undrawn)

    def _compute_expected_cases(self, undrawn: float) -> float:
        """Return E[min(cases, 1 + K)], where K submissions are caught before `submissions` ones are paid undrawn.

        `undrawn` is the probability of the latter among both. K has the negative binomial distribution.
        """
        count, lacking = self.submissions, 0.0
        if undrawn == 1:
            return min(self.cases, 1)
        for caught in range(self.cases - 1):
            ways = math.lgamma(count + caught) - math.lgamma(caught + 1) - math.lgamma(count)
            log = ways + count * math.log(undrawn) + caught * math.log1p(-undrawn)
            lacking += math.exp(log) * (self.cases - 1 - caught)
        return self.cases - lacking


def compute_hit(*, rows: int, false_rows: int, drawn_rows: int) -> float:
    """Return the probability that at least one of the false rows is drawn, by the hypergeometric distribution.

    Example: of 16 rows, of which 3 are drawn, one false row is drawn with 3/16.
    """
    return 1 - math.comb(rows - false_rows, drawn_rows) / math.comb(rows, drawn_rows)


def _list_counts(rows: int, most: int) -> list[int]:
    """Return the numbers of false rows to try, in ascending order. `most` is the largest one that may stay unseen."""
    if rows <= MAX_SHARES:
        return list(range(1, rows + 1))
    spread = {-(-rows * i // MAX_SHARES) for i in range(1, MAX_SHARES + 1)}
    return sorted({1, 2, 3, 4, max(1, most)} | spread)


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """A change of terms that makes them deter. Example: Remedy(values={"audit_rate": 0.2}, change=2.0)."""

    values: Mapping[str, float]
    """New values by name, rounded to two significant digits."""
    change: float
    """Ratio of the new value to the old one, inverted if it is below 1."""


def compute_undrawn_limit(terms: PoolTerms, free_stake: int) -> int:
    """Return the maximum pay of a contributor's work that is neither replayed nor in an epoch.

    Work beyond the limit is replayed. `free_stake` is the contributor's stake minus the stake that cases have locked.
    All amounts are in the token's smallest unit.
    """
    return min(free_stake, terms.max_slashes * _compute_slash(terms)) // UNDRAWN_PART


def compute_deterrence(terms: PoolTerms, params: PoolParams, *, detection: float = 1.0) -> Deterrence:
    """Compute the deterrence of a pool's terms, at the stake that is best for the cheat.

    `detection` is that of `Deterrence`. The stake is either `min_stake` or the maximum that cases can take. More stake
    allows more and larger submissions, but more of it is at risk.
    """
    return min(_list_risks(terms, params, detection=detection), key=lambda risk: risk.factor)


def _list_risks(terms: PoolTerms, params: PoolParams, *, detection: float = 1.0) -> list[Deterrence]:
    """Return the deterrence of a pool's terms at either stake."""
    most = min(terms.max_slashes, MAX_CASES) * _compute_slash(terms)
    stakes = {terms.min_stake, max(terms.min_stake, most)}
    return [_compute_with_stake(terms, params, stake, detection=detection) for stake in sorted(stakes)]


def _compute_with_stake(terms: PoolTerms, params: PoolParams, stake: int, *, detection: float) -> Deterrence:
    rules, slash = params.verification, _compute_slash(terms)
    limit = compute_undrawn_limit(terms, stake)
    pay = min(compute_reward(params.max_task_units, terms.reward_per_million), limit if slash else MAX_AMOUNT)
    return Deterrence(
        rows=params.rollouts_per_task,
        drawn_rows=rules.audit_rows,
        audit_rate=rules.audit_rate,
        detection=detection,
        pay=pay,
        slash=slash,
        cases=min(terms.max_slashes, stake // slash, MAX_CASES) if slash else 0,
        submissions=max(1, limit // pay) if pay else 1,
    )


def list_remedies(terms: PoolTerms, params: PoolParams) -> list[Remedy]:
    """Return, for each term, the smallest change that alone reaches MIN_FACTOR. The smallest change is first."""
    remedies = (_raise_audit_rate(terms, params), _raise_slash(terms, params), _lower_reward(terms, params))
    return sorted((remedy for remedy in remedies if remedy), key=lambda remedy: remedy.change)


def _raise_audit_rate(terms: PoolTerms, params: PoolParams) -> Remedy | None:
    before = params.verification.audit_rate
    for percent in range(int(before * 100) + 1, 101):
        rules = params.verification.model_copy(update={"audit_rate": percent / 100})
        if _is_enough(terms, params.model_copy(update={"verification": rules})):
            return Remedy(values={"audit_rate": percent / 100}, change=percent / 100 / before if before else math.inf)
    return None


def _raise_slash(terms: PoolTerms, params: PoolParams) -> Remedy | None:
    """Raise `slash_amount`, and raise the stake so that it covers `max_slashes` cases at the same time."""
    for amount in _walk_up(terms.slash_amount):
        stake = max(terms.min_stake, terms.max_slashes * amount)
        if stake > MAX_AMOUNT:
            break
        if _is_enough(replace(terms, slash_amount=amount, min_stake=stake), params):
            change = amount / terms.slash_amount if terms.slash_amount else math.inf
            return Remedy(values={"slash_amount": amount, "min_stake": stake}, change=change)
    return None


def _lower_reward(terms: PoolTerms, params: PoolParams) -> Remedy | None:
    for reward in _walk_down(terms.reward_per_million):
        if not compute_reward(params.max_task_units, reward):
            break  # Work that is paid nothing deters, but nobody does it.
        if _is_enough(replace(terms, reward_per_million=reward), params):
            return Remedy(values={"reward_per_million": reward}, change=terms.reward_per_million / reward)
    return None


def _is_enough(terms: PoolTerms, params: PoolParams) -> bool:
    return all(risk.reaches(MIN_FACTOR) for risk in _list_risks(terms, params))


def _compute_slash(terms: PoolTerms) -> int:
    """Return the stake that a contributor's first case takes. The first case is light if the terms have light cases."""
    light = terms.slash_amount * terms.light_slash_bps // 10_000
    return min(light if terms.strikes else terms.slash_amount, terms.min_stake)


def _walk_up(number: int) -> Iterator[int]:
    """Yield numbers of two significant digits above `number`, in ascending order. Example: 98 gives 99, 100, 110 ...

    The last one is the first number above MAX_AMOUNT.
    """
    while number <= MAX_AMOUNT:
        step = 10 ** max(0, len(str(number)) - 2)
        number = (number // step + 1) * step
        yield number


def _walk_down(number: int) -> Iterator[int]:
    """Yield numbers of two significant digits below `number`, in descending order to 1.

    Example: 110 gives 100, 99, 98 ...
    """
    while number > 1:
        step = 10 ** max(0, len(str(number - 1)) - 2)
        number = (number - 1) // step * step
        yield number
