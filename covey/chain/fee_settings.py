"""Settings of what a process pays for gas. `covey.chain.fees` applies them."""

from pydantic import Field

from covey.runtime.settings import Settings


class FeeSettings(Settings):
    """Ceilings of what a process pays for gas."""

    max_fee_gwei: float = Field(default=500.0, gt=0, le=1e6)
    """Maximum fee per gas, in gwei, that a transaction offers. While the chain's base fee is higher, none is sent."""
    max_priority_gwei: float = Field(default=100.0, gt=0, le=1e6)
    """Maximum priority fee per gas, in gwei, that a transaction offers."""
    max_spend_per_day: float | None = Field(default=None, gt=0, le=1e9)
    """Maximum ether that the transactions of one day may cost, counted by what they offer. None: no maximum."""
