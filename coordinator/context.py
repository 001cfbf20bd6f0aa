"""The context that the coordinator's functions share: settings, the pool's terms, connections and executors."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from eth_utils.crypto import keccak

from coordinator.chain_state import ChainState
from coordinator.config import CoordinatorConfig
from coordinator.db.database import Database
from coordinator.domain.settlement import Ledger
from coordinator.domain.stakes import StakeRule
from coordinator.queue.celery_app import BackgroundJobTrigger
from covey.chain.contracts import Contracts
from covey.chain.follower import Follower
from covey.chain.json_rpc import ChainClient
from covey.chain.sender import Sender
from covey.chain.structs import PoolTerms
from covey.chain.wallet import Wallet
from covey.object_store import ObjectStore
from covey.protocol.eip712 import Domain
from covey.protocol.ids import Address
from covey.protocol.params import PoolParams
from covey.runtime.bounded_executor import BoundedExecutor


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Settings, the pool's terms, connections and executors of one process."""

    config: CoordinatorConfig
    params: PoolParams
    params_text: str
    """Text of the parameters, whose hash on chain is `terms.params_hash`. Newer parameters have their defaults."""
    terms: PoolTerms
    stake_rule: StakeRule
    ledger: Ledger
    database: Database
    store: ObjectStore
    client: ChainClient
    contracts: Contracts
    follower: Follower
    sender: Sender
    signer: Wallet
    """Key that signs promises and posts epochs."""
    operator: Address
    jobs: BackgroundJobTrigger
    chain: ChainState
    chain_executor: BoundedExecutor
    store_executor: BoundedExecutor
    clock: Callable[[], float]
    stop: asyncio.Event
    """Event that is set when the process must stop. Long polls then return at once."""

    @property
    def receipt_domain(self) -> Domain:
        return Domain(chain_id=self.ledger.chain_id, contract=self.contracts.court.address)

    @property
    def canary_secret(self) -> bytes:
        """Secret from which the salts of canaries are derived. It differs from the secret of signed links."""
        return keccak(b"covey canaries" + bytes(self.signer.key))

    @property
    def ledger_domain(self) -> Domain:
        return Domain(chain_id=self.ledger.chain_id, contract=self.contracts.ledger.address)
