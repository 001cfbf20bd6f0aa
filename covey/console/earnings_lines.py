"""Says what a machine would earn, for commands."""

from typing import Any

from covey.chain.amounts import Amount, TokenUnit
from covey.console.terminal import describe_duration
from covey.network.earnings import Earnings


def describe_earnings(earnings: Earnings, unit: TokenUnit) -> dict[str, Any]:
    """Return expected pay, the time until it can be claimed, what stake is locked, and what is assumed."""
    return {
        "pay_per_hour": Amount(earnings.per_hour, unit),
        "pay_per_day": Amount(earnings.per_day, unit),
        "claimable_after": describe_duration(earnings.claimable_seconds),
        "stake": Amount(earnings.stake, unit),
        "stake_locked_for": f"{describe_duration(earnings.locked_seconds)} after you leave",
        "assumed": "the machine always has work, and all of it is accepted",
    }
