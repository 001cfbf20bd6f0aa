"""Everything that the functions of the pages are given. There is no key among it, so pages can sign nothing."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from coordinator.config import CoordinatorConfig
from coordinator.db.database import Database
from coordinator.db.repository import Repository
from coordinator.domain.settlement import read_prices
from coordinator.domain.stakes import StakeRule
from coordinator.pages.chain_facts import PoolOnChain
from coordinator.pages.policy_sources import PolicySources
from covey.chain.amounts import TokenUnit
from covey.chain.deployment import Deployment
from covey.chain.structs import PoolTerms
from covey.object_store import ObjectStore
from covey.protocol.params import PoolParams
from covey.protocol.prices import EpochPrices
from covey.runtime.bounded_executor import BoundedExecutor


@dataclass(frozen=True, slots=True, kw_only=True)
class PagesContext:
    """Everything that the functions of the pages are given."""

    config: CoordinatorConfig
    params: PoolParams
    terms: PoolTerms
    stake_rule: StakeRule
    deployment: Deployment
    database: Database
    """Opened read-only."""
    store: ObjectStore
    chain: PoolOnChain
    sources: PolicySources
    executor: BoundedExecutor
    """Threads for the chain's node, the object store and the decoding of files."""
    clock: Callable[[], float]
    stop: asyncio.Event
    """Set when the process is to end; streams of events then end."""

    def read_prices(self, rows: Repository) -> EpochPrices:
        """Return the prices of the pool's epochs."""
        windows = self.terms.challenge_window + self.terms.veto_window
        return read_prices(rows, self.chain.prices, windows=windows, now=self.clock())

    @property
    def unit(self) -> TokenUnit:
        """Unit in which amounts are shown."""
        return self.stake_rule.unit
