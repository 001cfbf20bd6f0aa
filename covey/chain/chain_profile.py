"""Profiles of public chains in `configs/chains`: what `covey deploy` and the roles should know about a chain."""

from pydantic import Field

from covey.chain.fee_settings import FeeSettings
from covey.chain.finality import Finality


class ChainProfile(FeeSettings):
    """One chain. Example: `ChainProfile.load(Path("configs/chains/base-sepolia.toml")).chain_id`."""

    name: str
    """Name of the chain for people, for example "Base Sepolia"."""
    chain_id: int = Field(gt=0)
    """Id of the chain. A node of another chain is refused."""
    finality: Finality = "safe"
    """Tag of the newest block that counts as final: the setting `finality` of coordinator, trainer and validators."""
    confirmations: int = Field(default=0, ge=0, le=10_000)
    """Number of blocks that must follow the last contract of a deployment before it counts."""
    explorer: str | None = None
    """URL of the chain's explorer, where sources are verified. None: not known."""
