"""Connects a role to the network: the chain, the pool's parameters, the coordinator and the policies.

Everything that is on chain is read from the chain or checked against it. For these values no role relies on the
coordinator.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from covey.chain.contracts import Contracts
from covey.chain.deployment import Deployment
from covey.chain.json_rpc import ChainClient, open_node
from covey.chain.structs import PoolTerms
from covey.chain.wallet import Wallet, load_key
from covey.environments.base import DataSets, Environment, EnvironmentSpec, refuse_data_sets
from covey.errors import CoveyError, OperatorError, TransientError
from covey.network.coordinator_client import CoordinatorClient
from covey.network.policies import Policies
from covey.network.pool_view import require_same_contracts
from covey.protocol.eip712 import Domain
from covey.protocol.ids import PoolId
from covey.protocol.params import PoolParams, TrainingParams
from covey.runtime.settings import RoleSettings
from covey.shardcast.downloader import Downloader
from covey.shardcast.policy_fetch import PolicyClient
from covey.shardcast.policy_source import PolicySource
from covey.shardcast.policy_store import PolicyStore
from covey.tasks.catalog import DataSetCatalog, list_digests


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """Everything that a role uses outside its own process."""

    pool: PoolId
    params: PoolParams
    terms: PoolTerms
    wallet: Wallet
    chain: ChainClient
    contracts: Contracts
    coordinator: CoordinatorClient
    policies: Policies
    data_sets: DataSetCatalog
    """Catalog of the environment's data sets."""
    interpreters: Mapping[str, Path]
    """Python interpreters by environment kind, for kinds that do not use this process's interpreter."""

    @property
    def receipt_domain(self) -> Domain:
        """EIP-712 domain of receipts and verdicts, as checked by SlashingCourt."""
        return Domain(chain_id=self.contracts.deployment.chain_id, contract=self.contracts.court.address)

    @property
    def ledger_domain(self) -> Domain:
        """EIP-712 domain of countersignatures, as checked by EpochLedger."""
        return Domain(chain_id=self.contracts.deployment.chain_id, contract=self.contracts.ledger.address)

    @property
    def registry_domain(self) -> Domain:
        """EIP-712 domain of transport manifests. It contains the address of PolicyRegistry."""
        return get_registry_domain(self.contracts)

    @property
    def environment(self) -> EnvironmentSpec:
        """Kind and options of the pool's environment."""
        return get_spec(self.params)

    def load_environment(self) -> Environment:
        """Load the pool's environment.

        Raises OperatorError if its prompts differ from those with which the pool was created.
        """
        return load_environment(self.params, self.data_sets, self.interpreters)

    async def close(self) -> None:
        """Close the connections to coordinator and relays, and the data sets."""
        await self.coordinator.close()
        await self.policies.close()
        await asyncio.to_thread(self.data_sets.close)


def get_registry_domain(contracts: Contracts) -> Domain:
    """Return the EIP-712 domain of the transport manifests that trainers sign."""
    return Domain(chain_id=contracts.deployment.chain_id, contract=contracts.policies.address)


def open_policies(contracts: Contracts, relays: Sequence[str], *, pool: PoolId, store: PolicyStore) -> PolicyClient:
    """Return a client for the policies of a pool. Raises ProtocolError("no_relays") if no relay has a valid URL."""
    domain, trainer = get_registry_domain(contracts), contracts.pools.get_terms(pool).trainer
    return PolicyClient(PolicySource(Downloader(relays), pool=pool, domain=domain, trainer=trainer), store)


def get_spec(params: TrainingParams) -> EnvironmentSpec:
    """Return the kind and options of a pool's environment."""
    return EnvironmentSpec(kind=params.environment.kind, options=params.environment.options)


def load_environment(
    params: TrainingParams, data_sets: DataSets = refuse_data_sets, interpreters: Mapping[str, Path] | None = None
) -> Environment:
    """Load the pool's environment. Raises OperatorError if its prompts on this machine differ from the pool's."""
    from covey.environments import registry

    environment = registry.load(get_spec(params), data_sets, interpreters)
    expected = params.environment
    registry.require_same(environment, versions=expected.versions, fingerprint=expected.fingerprint)
    return environment


async def join(
    settings: RoleSettings, *, opens_data_sets: bool = True, clock: Callable[[], float] = time.time
) -> Network:
    """Read the pool from the chain and the coordinator.

    With `opens_data_sets`, all data sets of the environment are opened. Data sets that are not in a folder on this
    machine need a relay, which has them once the trainer has added them to its origin. Raises OperatorError,
    TransientError or ProtocolError.
    """
    settings.home.mkdir(parents=True, exist_ok=True)
    deployment = Deployment.load(settings.deployment)
    chain = open_node(deployment, settings.rpc_url)
    contracts = Contracts(chain, deployment)
    wallet = load_key(settings.key_file)
    pool = PoolId(settings.pool)
    terms = contracts.pools.get_terms(pool)
    coordinator = CoordinatorClient(settings.coordinator_url, wallet, chain_id=deployment.chain_id, clock=clock)
    data_sets: DataSetCatalog | None = None
    try:
        params, relays = await _read_pool(coordinator, deployment, pool, terms, settings.relays)
        data_sets = DataSetCatalog(settings.datasets, relays=relays, cache=settings.home / "datasets")
        for digest in list_digests(get_spec(params)) if opens_data_sets else ():
            await asyncio.to_thread(data_sets, digest)
    except CoveyError:
        await coordinator.close()  # The caller may retry, which opens another client.
        if data_sets is not None:
            await asyncio.to_thread(data_sets.close)
        raise
    return Network(
        pool=pool,
        params=params,
        terms=terms,
        wallet=wallet,
        chain=chain,
        contracts=contracts,
        coordinator=coordinator,
        policies=Policies(
            contracts,
            open_policies(
                contracts,
                relays,
                pool=pool,
                store=PolicyStore(settings.policies or settings.home / "policies", keep=params.max_staleness + 2),
            ),
            pool=pool,
        ),
        data_sets=data_sets,
        interpreters=settings.list_interpreters(),
    )


async def _read_pool(
    coordinator: CoordinatorClient, deployment: Deployment, pool: PoolId, terms: PoolTerms, relays: tuple[str, ...]
) -> tuple[PoolParams, tuple[str, ...]]:
    """Return the pool's parameters, checked against the hash on chain, and the relays to use."""
    view = await coordinator.get_pool()
    require_same_contracts(view, deployment)
    if view.pool != pool:
        raise OperatorError(
            "wrong_pool",
            f"the coordinator serves pool {view.pool}, but this role is set to pool {pool}",
            fix="Correct the setting pool or coordinator_url",
        )
    chosen = relays or view.relays
    if not chosen:
        raise TransientError("no_relays", "neither the settings nor the coordinator list any relay")
    from covey.model.prompts import require_pinned_template

    params = PoolParams.from_text(view.params, terms.params_hash)
    require_pinned_template(params.model)
    return params, chosen
