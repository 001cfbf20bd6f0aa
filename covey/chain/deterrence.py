"""Computes whether a pool's terms deter cheating: a cheat's expected loss of stake, divided by its expected gain of
pay.

The model is a node with a good record that begins to cheat. It has either the minimum stake or the maximum that cases
can take; the smaller factor counts. It has several tasks in progress, claims the maximum units for each, and stops when
the first one is drawn for replay. Tasks that were not drawn stay paid. Each drawn task is a case that takes stake, up
to the stake and `max_slashes`.

The pay at risk at any time is bounded. A contributor's work that is neither replayed nor in an epoch pays at most
`compute_undrawn_limit`, and work beyond that is replayed. While a submission is being replayed, later work counts even
if it is in an epoch. This limits the number of tasks in progress, which a limit of leases would not.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from covey.chain.structs import PoolTerms
from covey.protocol.params import PoolParams

MIN_FACTOR = 3.0
"""Minimum factor of terms that deter. Below 1 a cheat gains. The margin above 1 covers unknown effects."""
UNDRAWN_PART = 4
"""Divisor of the stake that cases can take; the result is the limit of undrawn pay.

The factor of a cheat that uses the whole limit approaches UNDRAWN_PART from below, so it must exceed MIN_FACTOR.
"""
MAX_CASES = 1000
"""Maximum number of cases that the computation counts. More cases would deter more, but the sum must stay short."""
MAX_AMOUNT = (1 << 96) - 1
"""Maximum amount in a contract's terms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deterrence:
    """Expected loss and gain of the worst cheat. Amounts are in the token's smallest unit.

    Example: Deterrence(audit_rate=0.5, pay=10, slash=60, cases=1, tasks=1).factor == 6.
    """

    audit_rate: float
    """Probability that a submission is replayed, from 0 to 1."""
    detection: float = 1.0
    """Probability that a replay finds the cheat, above 0 and at most 1. What is not found is paid."""
    pay: int
    """Maximum pay of a submission that is not always replayed."""
    slash: int
    """Stake that one case takes."""
    cases: int
    """Number of cases that the stake covers."""
    tasks: int
    """Number of tasks in progress, at least 1."""

    @property
    def factor(self) -> float:
        """Expected loss over expected gain. Infinite if all work is found out or none is paid."""
        if self.caught >= 1 or self.pay == 0:
            return math.inf
        if self.caught == 0 or self.slash == 0:
            return 0.0
        # Submissions until the first one is found out, and the others in hand.
        submissions = 1 / self.caught + self.tasks - 1
        gain = (1 - self.caught) * self.pay * submissions
        return self.slash * self._compute_expected_cases() / gain

    @property
    def caught(self) -> float:
        """Probability that the cheat in a submission is found, from 0 to 1."""
        return self.audit_rate * self.detection

    def _compute_expected_cases(self) -> float:
        """Return E[min(cases, 1 + K)], where K is the binomial number of other tasks in progress that are caught."""
        rate, others = self.caught, self.tasks - 1
        probability, lacking = (1 - rate) ** others, 0.0
        for drawn in range(min(self.cases - 1, others + 1)):
            lacking += probability * (self.cases - 1 - drawn)
            probability *= (others - drawn) / (drawn + 1) * rate / (1 - rate)
        return min(self.cases - lacking, 1 + others * rate)


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

    `detection` is the probability that a replay finds the cheat, above 0 and at most 1. The stake is either `min_stake`
    or the maximum that cases can take. More stake allows more and larger submissions, but more of it is at risk.
    """
    most = min(terms.max_slashes, MAX_CASES) * _compute_slash(terms)
    stakes = {terms.min_stake, max(terms.min_stake, most)}
    risks = (replace(_compute_with_stake(terms, params, stake), detection=detection) for stake in stakes)
    return min(risks, key=lambda risk: risk.factor)


def _compute_with_stake(terms: PoolTerms, params: PoolParams, stake: int) -> Deterrence:
    rate, slash = params.verification.audit_rate, _compute_slash(terms)
    limit = compute_undrawn_limit(terms, stake)
    pay = min(params.max_task_units * terms.reward_per_unit, limit if slash else MAX_AMOUNT)
    cases = min(terms.max_slashes, stake // slash, MAX_CASES) if slash else 0
    tasks = int(limit / pay / (1 - rate)) if pay and rate < 1 else 1  # A share of 1 - rate is not drawn.
    return Deterrence(audit_rate=rate, pay=pay, slash=slash, cases=cases, tasks=max(1, tasks))


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
    for reward in _walk_down(terms.reward_per_unit):
        if _is_enough(replace(terms, reward_per_unit=reward), params):
            return Remedy(values={"reward_per_unit": reward}, change=terms.reward_per_unit / reward)
    return None


def _is_enough(terms: PoolTerms, params: PoolParams) -> bool:
    return compute_deterrence(terms, params).factor >= MIN_FACTOR


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
