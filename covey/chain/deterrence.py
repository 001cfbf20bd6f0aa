"""Whether a pool's terms deter: the stake that a cheat is expected to lose, over the pay that it is expected to gain.

The cheat is a proven node, with the least stake that is served or with all that cases can take: the smaller factor
counts.  It has several tasks in hand, claims the cap of units for each, and stops when the first one is drawn for
replay.  What was not drawn stays paid.  Every drawn task is a case
that takes stake, as far as stake and `max_slashes` reach.  The pay at risk at any time is bounded: of one contributor,
work that is neither replayed nor in an epoch pays at most `compute_undrawn_limit`, and work beyond that is replayed.
While a submission is being replayed, later work counts although an epoch holds it.  That bounds the number of tasks in
hand, which a count of leases does not.

Called by `covey pool create` and `covey pool open`, which refuse terms below LEAST_FACTOR.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from covey.chain.structs import PoolTerms
from covey.protocol.params import PoolParams

LEAST_FACTOR = 3.0
"""Least factor of a pool whose terms deter.  Below 1 a cheat gains; the rest is room for what is not known."""
UNDRAWN_PART = 4
"""Undrawn pay is at most one part in this many of the stake that cases can take.  The factor of a cheat that fills this
room approaches UNDRAWN_PART from below, so it must be larger than LEAST_FACTOR."""
MAX_CASES = 1000
"""Cases that are counted at most.  More would deter more; the bound keeps the sum short."""
MAX_AMOUNT = (1 << 96) - 1
"""Largest amount of a contract's terms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deterrence:
    """What the worst cheat risks.  Example: Deterrence(audit_rate=0.5, pay=10, slash=60, cases=1, tasks=1).factor == 6.

    Amounts in the token's smallest unit.
    """

    audit_rate: float
    """Probability that a submission is replayed, 0 to 1."""
    pay: int
    """Pay of the largest submission that need not be replayed."""
    slash: int
    """Stake that one case takes."""
    cases: int
    """Number of cases that the stake covers."""
    tasks: int
    """Number of tasks in hand, at least 1."""

    @property
    def factor(self) -> float:
        """Expected loss over expected gain.  Infinite where all work is replayed or none is paid."""
        if self.audit_rate >= 1 or self.pay == 0:
            return math.inf
        if self.audit_rate == 0 or self.slash == 0:
            return 0.0
        submissions = 1 / self.audit_rate + self.tasks - 1  # until the first is drawn, and the others in hand
        gain = (1 - self.audit_rate) * self.pay * submissions
        return self.slash * self._compute_expected_cases() / gain

    def _compute_expected_cases(self) -> float:
        """E[min(cases, 1 + K)], where K of the other tasks in hand are drawn, too: a binomial distribution."""
        rate, others = self.audit_rate, self.tasks - 1
        probability, lacking = (1 - rate) ** others, 0.0
        for drawn in range(min(self.cases - 1, others + 1)):
            lacking += probability * (self.cases - 1 - drawn)
            probability *= (others - drawn) / (drawn + 1) * rate / (1 - rate)
        return min(self.cases - lacking, 1 + others * rate)


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """A change of terms that makes them deter.  Example: Remedy(values={"audit_rate": 0.2}, change=2.0)."""

    values: Mapping[str, float]
    """New values by name, rounded to what a person would write."""
    change: float
    """New value over the old one, or the old one over the new one: at least 1."""


def compute_undrawn_limit(terms: PoolTerms, free_stake: int) -> int:
    """Largest pay of a contributor's work that is neither replayed nor in an epoch, in the token's smallest unit.

    `free_stake` is what the contributor has staked less what cases have locked.  Work beyond the limit is replayed.
    """
    return min(free_stake, terms.max_slashes * _compute_slash(terms)) // UNDRAWN_PART


def compute_deterrence(terms: PoolTerms, params: PoolParams) -> Deterrence:
    """What a cheat in a pool risks, with the stake that suits it better: `min_stake`, or all that cases can take.

    More stake gives room for larger submissions and more of them, and is at risk in more cases.
    """
    most = min(terms.max_slashes, MAX_CASES) * _compute_slash(terms)
    stakes = {terms.min_stake, max(terms.min_stake, most)}
    return min((_compute_with_stake(terms, params, stake) for stake in stakes), key=lambda found: found.factor)


def _compute_with_stake(terms: PoolTerms, params: PoolParams, stake: int) -> Deterrence:
    rate, slash = params.verification.audit_rate, _compute_slash(terms)
    limit = compute_undrawn_limit(terms, stake)
    pay = min(params.max_task_units * terms.reward_per_unit, limit if slash else MAX_AMOUNT)
    cases = min(terms.max_slashes, stake // slash, MAX_CASES) if slash else 0
    tasks = int(limit / pay / (1 - rate)) if pay and rate < 1 else 1  # of which 1 - rate are not drawn
    return Deterrence(audit_rate=rate, pay=pay, slash=slash, cases=cases, tasks=max(1, tasks))


def list_remedies(terms: PoolTerms, params: PoolParams) -> list[Remedy]:
    """For each number that can be changed alone the smallest change that reaches LEAST_FACTOR, smallest first."""
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
    """With a stake that covers `max_slashes` cases, so that several can be open at once."""
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
    return compute_deterrence(terms, params).factor >= LEAST_FACTOR


def _compute_slash(terms: PoolTerms) -> int:
    """Stake that the first case takes of a contributor: the light one, if there is one."""
    light = terms.slash_amount * terms.light_slash_bps // 10_000
    return min(light if terms.strikes else terms.slash_amount, terms.min_stake)


def _walk_up(number: int) -> Iterator[int]:
    """Numbers of two significant digits above `number`, to MAX_AMOUNT.  Example: 98 gives 99, 100, 110 ..."""
    while number <= MAX_AMOUNT:
        step = 10 ** max(0, len(str(number)) - 2)
        number = (number // step + 1) * step
        yield number


def _walk_down(number: int) -> Iterator[int]:
    """Numbers of two significant digits below `number`, to 1.  Example: 110 gives 100, 99, 98 ..."""
    while number > 1:
        step = 10 ** max(0, len(str(number - 1)) - 2)
        number = (number - 1) // step * step
        yield number
