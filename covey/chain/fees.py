"""What a transaction offers for gas, and the ceilings of it.

A node's word about fees is not trusted with the account's ether: whatever the node says, no transaction offers more
than the ceilings.
"""

from dataclasses import dataclass
from typing import Self

from covey.chain.amounts import ETHER, format_amount
from covey.chain.fee_settings import FeeSettings
from covey.chain.outbox import Attempt, Entry
from covey.errors import TransientError

GWEI = 10**9
DAY = 86_400
"""Seconds over which `max_spend_per_day` counts."""
FEE_STEP = 1.25
"""Factor by which a replacement increases the fee.

Nodes accept an increase of 10 % or more. A larger step often makes a second replacement unnecessary.
"""
MIN_STEP = 1.1
"""Smallest factor of a replacement that nodes accept."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fees:
    """What a transaction offers, in wei per gas."""

    max_fee: int
    priority_fee: int


@dataclass(frozen=True, kw_only=True, slots=True)
class FeeLimits:
    """Ceilings in wei. Example: `FeeLimits.of(config).choose(base_fee=7, priority_fee=1)`."""

    max_fee: int = 500 * GWEI
    max_priority_fee: int = 100 * GWEI
    max_spend: int | None = None
    """Maximum cost of the transactions of one day. None: no maximum."""

    @classmethod
    def of(cls, settings: FeeSettings) -> Self:
        spend = settings.max_spend_per_day
        return cls(
            max_fee=round(settings.max_fee_gwei * GWEI),
            max_priority_fee=round(settings.max_priority_gwei * GWEI),
            max_spend=None if spend is None else round(spend * 10**18),
        )

    def choose(self, *, base_fee: int, priority_fee: int) -> Fees:
        """Return the fees of a transaction at a base fee.

        Raises TransientError("fee_too_high") if the base fee is above the ceiling.
        """
        if base_fee > self.max_fee:
            raise TransientError(
                "fee_too_high",
                f"the chain's base fee is {format_gwei(base_fee)}, but max_fee_gwei allows only "
                f"{format_gwei(self.max_fee)}. Wait until it falls, or raise max_fee_gwei",
            )
        priority_fee = min(priority_fee, self.max_priority_fee, self.max_fee)
        return Fees(max_fee=min(2 * base_fee + priority_fee, self.max_fee), priority_fee=priority_fee)

    def raise_above(self, replaced: Attempt | Fees, fees: Fees) -> Fees | None:
        """Return the fees of a transaction that replaces one, at least `fees`. None if the ceilings do not allow it."""
        priority_fee = max(fees.priority_fee, int(replaced.priority_fee * FEE_STEP) + 1)
        max_fee = max(fees.max_fee, int(replaced.max_fee * FEE_STEP) + 1, priority_fee)
        priority_fee, max_fee = min(priority_fee, self.max_priority_fee, self.max_fee), min(max_fee, self.max_fee)
        if priority_fee < replaced.priority_fee * MIN_STEP or max_fee < replaced.max_fee * MIN_STEP:
            return None
        return Fees(max_fee=max_fee, priority_fee=priority_fee)

    def require_budget(self, *, cost: int, spent: int) -> None:
        """Check a transaction's maximum cost against that of the other transactions of the day, all in wei.

        Raises TransientError("spend_limit") if they exceed `max_spend`.
        """
        if self.max_spend is None or cost + spent <= self.max_spend:
            return
        raise TransientError(
            "spend_limit",
            f"the transaction may cost {format_amount(cost, ETHER)}, and those of the last day "
            f"{format_amount(spent, ETHER)}, but max_spend_per_day allows only {format_amount(self.max_spend, ETHER)}. "
            "Wait, or raise max_spend_per_day",
        )


def compute_cost(entry: Entry) -> int:
    """Return the most that an intent can cost in wei: its value, and the gas at the fee of its dearest attempt."""
    from covey.protocol.accounts import read_gas

    return entry.intent.call.value + max(
        (read_gas(attempt.raw) * attempt.max_fee for attempt in entry.attempts), default=0
    )


def format_gwei(wei: int) -> str:
    return f"{wei / GWEI:g} gwei"
