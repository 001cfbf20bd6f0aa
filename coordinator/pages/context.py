"""Everything that the functions of the pages are given. There is no key among it, so pages can sign nothing."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from coordinator.config import CoordinatorConfig
from coordinator.db.database import Database
from coordinator.domain.stakes import StakeRule
from coordinator.pages.chain_facts import PoolOnChain
from coordinator.pages.policy_sources import PolicySources
from covey.chain.amounts import TokenUnit
from covey.chain.deployment import Deployment
from covey.chain.structs import PoolTerms
from covey.object_store import ObjectStore
from covey.protocol.params import PoolParams
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

    @property
    def unit(self) -> TokenUnit:
        """Unit in which amounts are shown."""
        return self.stake_rule.unit
