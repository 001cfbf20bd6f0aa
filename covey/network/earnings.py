"""What a machine would earn in a pool, from its speed and the terms on chain."""

from dataclasses import dataclass

from covey.chain.structs import PoolTerms
from covey.protocol.params import PoolParams
from covey.protocol.prices import compute_reward

HOUR_SECONDS = 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class Earnings:
    """Expected pay of a machine that always has work, all of which is accepted. Amounts are in the smallest unit."""

    per_hour: int
    per_day: int
    claimable_seconds: int
    """Seconds from the work until its pay can be claimed, at most: the epoch, and the windows of its challenge and
    veto.
    """
    stake: int
    """Amount that the contributor stakes for the machine."""
    locked_seconds: int
    """Seconds for which the stake stays locked after the contributor leaves."""


def expect_earnings(terms: PoolTerms, params: PoolParams | None, tokens_per_second: float) -> Earnings:
    """Return what a machine earns with this many completion tokens per second.

    Without valid parameters, the epoch is assumed to last as long as the contracts require at least.
    """
    epoch = terms.epoch_length if params is None else params.epoch_seconds
    hourly = int(tokens_per_second * HOUR_SECONDS)
    return Earnings(
        per_hour=compute_reward(hourly, terms.reward_per_million),
        per_day=compute_reward(24 * hourly, terms.reward_per_million),
        claimable_seconds=int(epoch) + terms.challenge_window + terms.veto_window,
        stake=terms.min_stake,
        locked_seconds=terms.unbond_window,
    )
