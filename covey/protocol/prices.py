"""What work earns: the pool's price is for 1,000,000 units, and every reward is rounded down.

An epoch reserves `compute_reward` of all its units. Each contributor earns `compute_reward` of its own units of the
epoch. So the contributors of an epoch never earn more than the epoch reserves.
"""

PRICED_UNITS = 1_000_000
"""Number of units that the price of a pool is for. A unit is one completion token."""


def compute_reward(units: int, reward_per_million: int) -> int:
    """Return the reward of some units, in the token's smallest unit.

    Example: 1,500 units at a price of 2,000 earn 3, and 1,499 units earn 2.
    """
    return units * reward_per_million // PRICED_UNITS
