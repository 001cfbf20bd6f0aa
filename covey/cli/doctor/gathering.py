"""Gathers the facts that `covey doctor --config` checks. It only reads, and every wait has a deadline.

A fact that could not be read becomes a `Trouble`. Torch runs in a subprocess, which can be killed.
"""

import asyncio
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from covey.chain.amounts import SMALLEST, TokenUnit, read_unit
from covey.chain.contracts import Contracts
from covey.chain.deployment import Deployment
from covey.chain.history import History
from covey.chain.json_rpc import ChainClient, require_start, require_version
from covey.chain.structs import BondKind
from covey.chain.token import Token
from covey.chain.wallet import load_key
from covey.cli.config import Role
from covey.cli.doctor.isolation_check import ISOLATION_SECONDS, look_at_isolation
from covey.cli.doctor.machine_facts import (
    DEVICE_SECONDS,
    find_port_trouble,
    look_at_device,
    look_at_engine,
    look_at_folder,
)
from covey.cli.doctor.snapshot import ChainFacts, CoordinatorFacts, PoolFacts, Snapshot, Trouble
from covey.errors import CoveyError, OperatorError, ProtocolError
from covey.network.coordinator_client import CoordinatorClient
from covey.protocol.ids import ZERO_HASH, Address, PoolId, Step
from covey.protocol.params import PoolParams
from covey.protocol.policy_record import PolicyRecord
from covey.runtime.settings import RoleSettings
from covey.runtime.urls import hide_secrets, show_host
from covey.shardcast.policy_source import look_at_relay

if TYPE_CHECKING:
    from coordinator.config import CoordinatorConfig

REQUEST_SECONDS = 3.0
"""Timeout in seconds of one request."""
CHAIN_SECONDS = 6.0
"""Timeout in seconds of all chain requests together."""
HTTP_SECONDS = 5.0
"""Timeout in seconds of all requests to the coordinator, to a relay, or to one file or folder."""
ALL_SECONDS = 28.0
"""Timeout in seconds of everything. The engine's check gets the time that remains after the others."""
BONDS: dict[Role, BondKind] = {"validator": BondKind.VALIDATOR, "coordinator": BondKind.OPERATOR}
"""Kind of the bond that a role's own key must have."""
MAX_RELAYS = 16
"""Maximum number of relays to check, because a coordinator can list any number."""
Found = TypeVar("Found")


def gather(
    role: Role, settings: "RoleSettings | CoordinatorConfig", *, raw: bool, clock: Callable[[], float] = time.time
) -> Snapshot:
    """Gather all facts that the role's checks need. With `raw`, amounts are in the token's smallest unit."""
    began = time.monotonic()
    device = None if role == "coordinator" else start(DEVICE_SECONDS, "the device", lambda: look_at_device(settings))
    isolation = None
    if isinstance(settings, RoleSettings):
        isolation = start(ISOLATION_SECONDS, "the sandbox", partial(look_at_isolation, settings.isolation))
    folders = {
        root: start(HTTP_SECONDS, f"the folder {root}", partial(look_at_folder, root))
        for root in (settings.home, getattr(settings, "origin_root", settings.home))
    }
    key_file = start(HTTP_SECONDS, "the key file", lambda: load_key(settings.key_file).address)
    deployment = start(HTTP_SECONDS, "the deployment file", lambda: _load_deployment(settings))()
    address = key_file()
    port = None if isinstance(settings, RoleSettings) else find_port_trouble(settings.host, settings.port)
    chain, pool = None, None
    if isinstance(deployment, Deployment):
        key = None if isinstance(address, Trouble) else address
        client = ChainClient(deployment.choose_node(), timeout_s=REQUEST_SECONDS)
        contracts = Contracts(client, deployment)
        chain = start(CHAIN_SECONDS, "the chain", lambda: _look_at_chain(client, deployment, key))()
        if isinstance(chain, ChainFacts) and chain.chain_id == deployment.chain_id and not chain.codeless:
            history = History(client=client, contracts=contracts)
            pool = start(
                CHAIN_SECONDS, "the pool on chain", lambda: _look_at_pool(history, settings.pool, role, key, raw=raw)
            )()
    known = pool if isinstance(pool, PoolFacts) else None
    url = find_coordinator_url(settings, is_port_free=port is None)
    coordinator = None
    if url is not None:
        coordinator = start(
            HTTP_SECONDS, hide_secrets(url), lambda: asyncio.run(_look_at_coordinator(url, known, clock))
        )()
    params = coordinator.params if isinstance(coordinator, CoordinatorFacts) else None
    engine = None
    if role in ("worker", "validator") and isinstance(settings, RoleSettings) and isinstance(params, PoolParams):
        left = ALL_SECONDS - (time.monotonic() - began)
        engine = start(left, "the engine", partial(look_at_engine, role, settings, params))
    relays = None
    if known is not None and known.newest_hash is not None:
        named = settings.relays or (coordinator.relays if isinstance(coordinator, CoordinatorFacts) else ())
        asked = {
            url: start(HTTP_SECONDS, hide_secrets(url), partial(_look_at_relay, url, settings.pool, known))
            for url in named[:MAX_RELAYS]
        }
        relays = {url: wait() for url, wait in asked.items()}
    return Snapshot(
        role=role,
        settings=settings,
        now=clock(),
        address=address,
        deployment=deployment,
        folders={root: wait() for root, wait in folders.items()},
        device=device and device(),
        engine=engine and engine(),
        isolation=isolation and isolation(),
        port=port,
        chain=chain,
        pool=pool,
        coordinator=coordinator,
        relays=relays,
    )


def start(seconds: float, what: str, look: Callable[[], Found]) -> Callable[[], Found | Trouble]:
    """Start a function in a thread, and return a function that waits for its result until `seconds` from now.

    A thread that takes longer is abandoned, and ends with the process.
    """
    answers: queue.SimpleQueue[Found | Trouble] = queue.SimpleQueue()
    deadline = time.monotonic() + seconds

    def run() -> None:
        answer: Found | Trouble = Trouble(detail=f"{what} could not be checked")
        try:
            answer = look()
        except CoveyError as error:
            answer = Trouble.of(error)
        # The answer is malformed.
        except (LookupError, TypeError, ValueError, ArithmeticError, OSError) as error:
            answer = Trouble(detail=f"the response of {what} is malformed: {type(error).__name__}: {error}")
        finally:
            answers.put(answer)

    def wait() -> Found | Trouble:
        try:
            return answers.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            return Trouble(detail=f"{what} did not answer within {seconds:.0f} s", fix="Run covey doctor again")

    threading.Thread(target=run, daemon=True).start()
    return wait


def find_coordinator_url(settings: "RoleSettings | CoordinatorConfig", *, is_port_free: bool) -> str | None:
    """Return the URL of the coordinator to check.

    For a coordinator's own settings it is the URL of the process that listens on its port, or None if the port is free.
    """
    if isinstance(settings, RoleSettings):
        return settings.coordinator_url
    from covey.local.readiness import find_url  # late, because it loads the coordinator's settings

    return None if is_port_free else find_url(settings)


def _load_deployment(settings: "RoleSettings | CoordinatorConfig") -> Deployment:
    """Return the deployment with the node that the role uses."""
    loaded = Deployment.load(settings.deployment)
    return replace(loaded, rpc_url=loaded.choose_node(settings.rpc_url))


def _look_at_chain(client: ChainClient, deployment: Deployment, key: Address | None) -> ChainFacts:
    """Read the chain's head and the contracts' code.

    Raises OperatorError("wrong_chain") or OperatorError("old_deployment").
    """
    head = client.get_block("latest")
    facts = ChainFacts(
        url=show_host(client.rpc_url),
        chain_id=client.chain_id(),
        head_time=head.timestamp,
        gas_price=2 * head.base_fee + client.get_priority_fee(),
        codeless=tuple(name for name, address in deployment.get_contracts().items() if not client.has_code(address)),
        balance=None if key is None else client.get_balance(key),
    )
    if facts.chain_id == deployment.chain_id and not facts.codeless:
        require_start(client, deployment)
        require_version(client, deployment)
    return facts


def _look_at_pool(history: History, number: int, role: Role, key: Address | None, *, raw: bool) -> PoolFacts:
    """Read the pool, and the key's role and stake in it. Raises OperatorError("unknown_pool")."""
    contracts, pool = history.contracts, PoolId(number)
    stakes = contracts.stakes
    terms, steps = contracts.pools.get_terms(pool), contracts.policies.steps_of(pool)
    contributor = contracts.nodes.contributor_of(pool, key) if key and role == "worker" else None
    stake = 0
    if contributor is not None:
        stake = stakes.stake_of(pool, BondKind.CONTRIBUTOR, contributor) - stakes.locked_of(pool, contributor)
    elif key is not None and role in BONDS:
        stake = stakes.stake_of(pool, BONDS[role], key)
    return PoolFacts(
        state=contracts.pools.state_of(pool),
        terms=terms,
        operator=contracts.pools.operator_of(pool),
        is_validator=key is not None and contracts.pools.is_validator(pool, key),
        contributor=contributor,
        nodes=() if contributor is None else tuple(history.list_nodes(pool, contributor)),
        unit=SMALLEST if raw else _choose_unit(contracts.get_token(pool)),
        stake=stake,
        steps=steps,
        newest_hash=contracts.policies.policy_of(pool, Step(steps - 1)) if steps else None,
    )


def _choose_unit(token: Token) -> TokenUnit:
    """Return the token's unit, or the smallest unit if the token's decimals are unusable."""
    try:
        return read_unit(token)
    except OperatorError:
        return SMALLEST


async def _look_at_coordinator(url: str, pool: PoolFacts | None, clock: Callable[[], float]) -> CoordinatorFacts:
    async with CoordinatorClient(url, None, chain_id=0, timeout_seconds=REQUEST_SECONDS) as client:
        view = await client.get_pool()
        status = await client.get_status()
        now = clock()
    params: PoolParams | Trouble = Trouble(detail="the hash of the parameters on chain is unknown")
    if pool is not None:
        try:
            params = PoolParams.from_text(view.params, pool.terms.params_hash)
        except ProtocolError as error:
            params = Trouble.of(error)
    return CoordinatorFacts(
        pool=view.pool,
        params=params,
        offset=now - status.time - 0.5,
        nodes=status.nodes,
        relays=view.relays,
        execution_contracts=status.execution_contracts,
    )


def _look_at_relay(url: str, pool: int, known: PoolFacts) -> PolicyRecord:
    return look_at_relay(url, pool=PoolId(pool), record_hash=known.newest_hash or ZERO_HASH)
