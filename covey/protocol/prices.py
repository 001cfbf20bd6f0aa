"""What work earns: the pool's price is for 1,000,000 units, and every reward is rounded down.

An epoch reserves `compute_reward` of all its units. Each contributor earns `compute_reward` of its own units of the
epoch. So the contributors of an epoch never earn more than the epoch reserves.

A price changes with a delay. The price of an epoch is the one that held when the previous epoch was posted.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

PRICED_UNITS = 1_000_000
"""Number of units that the price of a pool is for. A unit is one completion token."""


def compute_reward(units: int, reward_per_million: int) -> int:
    """Return the reward of some units, in the token's smallest unit.

    Example: 1,500 units at a price of 2,000 earn 3, and 1,499 units earn 2.
    """
    return units * reward_per_million // PRICED_UNITS


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledPrice:
    """A price and when it holds. Example: `ScheduledPrice(reward_per_million=2000, start=0)`."""

    reward_per_million: int
    """Reward of 1,000,000 units, in the token's smallest unit."""
    start: int
    """Unix time in seconds. The price holds for epochs that begin then or later, until the next price."""


def find_price(prices: Sequence[ScheduledPrice], begun_at: int) -> int:
    """Return the price of an epoch that began at a time. `prices` are all prices of the pool, oldest first.

    An epoch begins when the previous one is posted, and the first one at time 0.
    """
    return next(each.reward_per_million for each in reversed(prices) if each.start <= begun_at)


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochPrices:
    """Prices of a pool by epoch, for 1,000,000 units. Example: `prices.find(3)`."""

    prices: Sequence[ScheduledPrice]
    """All prices of the pool, oldest first."""
    posted_at: Mapping[int, int]
    """Unix times in seconds at which epochs were posted, by number. It may be empty if the pool has one price."""
    now: int
    """Unix time in seconds at which an epoch would begin that has not begun yet."""

    @property
    def present(self) -> int:
        """Price that holds now."""
        return find_price(self.prices, self.now)

    def find(self, epoch: int | None) -> int:
        """Return the price of an epoch. For None, or if the previous epoch is not posted, the price that holds now."""
        if epoch is None:
            return self.present
        return find_price(self.prices, self.posted_at.get(epoch - 1, self.now) if epoch else 0)


def find_highest_price(prices: Sequence[ScheduledPrice]) -> int:
    """Return the highest price that work handed in now may get, of the present one and one that holds later."""
    return max(each.reward_per_million for each in prices[-2:])


def compute_start(*, present: int, price: int, now: int, challenge_window: int, unbond_window: int) -> int:
    """Return the time from which a new price would hold: a raise after one window, a lowering after the other.

    A contributor that does not accept a lower price has time to leave with its stake.
    """
    return now + (challenge_window if price > present else unbond_window)
