"""A pool with its chain and the processes of its coordinator, for benchmarks of the coordinator.

The chain is Anvil with blocks of one second.  Contributors, nodes, validators and their keys are derived from a seed.
"""

import os
import secrets
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from eth_utils.crypto import keccak
from sqlalchemy import create_engine, text

from benchmarks.network.broadcast import await_answer
from benchmarks.network.bulk_transactions import send_all
from covey.chain.contracts import Contracts
from covey.chain.deployment import Deployment
from covey.chain.json_rpc import Call, ChainClient
from covey.chain.structs import BondKind, PoolTerms
from covey.chain.wallet import Wallet, save_key
from covey.devnet import deploy
from covey.protocol.eip712 import Domain, sign
from covey.protocol.ids import Address, PoolId, Step, hash_from_bytes
from covey.protocol.messages import NodeRegistration
from covey.protocol.params import EnvironmentParams, PoolParams
from covey.runtime.http import find_free_ports

VALIDATORS = 3
POSTGRES = os.environ.get("COVEY_TEST_POSTGRES", "postgresql+psycopg://root@127.0.0.1:5432/test")
REDIS = os.environ.get("COVEY_TEST_REDIS", "redis://127.0.0.1:6379/12")
_SEED = "benchmark"
_MIN_STAKE = 100
_SETTINGS_S = 60.0


def derive(name: str) -> Wallet:
    """Return the wallet of a role, a node ("node-7") or a validator ("validator-0")."""
    return deploy.derive_wallet(_SEED, name)


def derive_contributor(node: int, contributors: int) -> Wallet:
    """Return the wallet of the contributor of a node, by the node's number and the number of contributors."""
    return derive(f"contributor-{node % contributors}")


@dataclass(frozen=True, kw_only=True)
class BenchmarkPool:
    """A pool on a running chain.  Example: nodes=64."""

    folder: Path
    deployment: Deployment
    client: ChainClient
    pool: PoolId
    params: PoolParams
    nodes: int
    """Number of registered nodes, "node-0" and so on."""
    contributors: int = 1
    """Number of contributors, "contributor-0" and so on. They take turns as contributors of the nodes."""

    @property
    def receipt_domain(self) -> Domain:
        """Domain of the signatures of receipts and verdicts."""
        return Domain(chain_id=self.deployment.chain_id, contract=self.deployment.slashing_court)

    @property
    def contributor(self) -> Address:
        """Contributor of the first node, and of all nodes if there is only one contributor."""
        return derive_contributor(0, 1).address


@dataclass(frozen=True, kw_only=True)
class Service:
    """The running processes of a coordinator."""

    port: int
    api: subprocess.Popen[bytes]
    jobs: tuple[subprocess.Popen[bytes], ...]
    database_url: str
    pages_port: int = 0
    """Port of `covey coordinator pages`. 0: it does not run."""

    @property
    def authority(self) -> str:
        """Host and port for which requests are signed."""
        return f"127.0.0.1:{self.port}"


def build_params(**changes: object) -> PoolParams:
    """Return parameters of a pool with small tasks, of which many can be pending."""
    values: dict[str, object] = {
        "name": "benchmark",
        "environment": EnvironmentParams(kind="none"),
        "group_size": 2,
        "groups_per_step": 3000,
        "groups_per_task": 1,
        "max_staleness": 0,
        "quorum": 2,
        "verification": {"audit_rate": 0.1, "newcomer_submissions": 1, "draw_seconds": 1},
    }
    return PoolParams.model_validate(values | changes)


@contextmanager
def open_pool(
    folder: Path,
    *,
    nodes: int,
    contributors: int = 1,
    validators: int = VALIDATORS,
    params: PoolParams | None = None,
) -> Iterator[BenchmarkPool]:
    """Start a chain, create a pool on it and register its nodes, 500 a second."""
    params = params or build_params()
    anvil, deployment = deploy.up(folder / "devnet", seed=_SEED)
    try:
        client = ChainClient(anvil.url)
        client.request("evm_setIntervalMining", 0)
        client.request("evm_setAutomine", True)
        pool = _create_pool(client, deployment, params, validators=validators)
        _register_nodes(client, deployment, pool, nodes=nodes, contributors=contributors)
        client.request("evm_setAutomine", False)
        client.request("evm_setIntervalMining", 1)
        yield BenchmarkPool(
            folder=folder,
            deployment=deployment,
            client=client,
            pool=pool,
            params=params,
            nodes=nodes,
            contributors=contributors,
        )
    finally:
        anvil.stop()


@contextmanager
def run_coordinator(
    pool: BenchmarkPool, *, jobs: int = 1, postgres: bool = False, pages: bool = False, **settings: object
) -> Iterator[Service]:
    """Run `covey coordinator serve` and `jobs`, on SQLite and a folder, or on PostgreSQL and Redis.

    With `pages`, `covey coordinator pages` runs, too.
    """
    home = pool.folder / f"coordinator-{secrets.token_hex(4)}"
    home.mkdir()
    key = home / "operator.key"
    save_key(key, deploy.derive_key(_SEED, "operator"))
    port, pages_port = find_free_ports(2)
    with ExitStack() as stack:
        if postgres:
            settings |= {"database_url": stack.enter_context(_open_schema()), "broker_url": REDIS}
        values = {
            "home": home / "home",
            "pool": pool.pool,
            "deployment": pool.folder / "devnet" / "deployment.json",
            "key_file": key,
            "port": port,
            "pages_port": pages_port,
            **settings,
        }
        file = home / "coordinator.toml"
        file.write_text("".join(f"{name} = {_quote(value)}\n" for name, value in values.items()))
        api = stack.enter_context(_start(home, "serve", file))
        await_answer(f"http://127.0.0.1:{port}/v1/pool", api, seconds=_SETTINGS_S)
        others = [stack.enter_context(_start(home, "jobs", file)) for _ in range(jobs)]
        if pages:
            viewer = stack.enter_context(_start(home, "pages", file))
            await_answer(f"http://127.0.0.1:{pages_port}/v1/overview", viewer, seconds=_SETTINGS_S)
        url = str(settings.get("database_url", f"sqlite:///{home / 'home' / 'coordinator.sqlite3'}"))
        yield Service(port=port, api=api, jobs=tuple(others), database_url=url, pages_port=pages_port * pages)


@contextmanager
def _start(home: Path, role: str, file: Path) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "covey", "coordinator", role, "--config", str(file)]
    with (home / f"{role}.log").open("ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def _open_schema() -> Iterator[str]:
    schema, admin = f"covey_bench_{secrets.token_hex(4)}", create_engine(POSTGRES)
    with admin.begin() as connection:
        connection.execute(text(f"CREATE SCHEMA {schema}"))
    try:
        yield f"{POSTGRES}?options=-csearch_path%3D{schema}"
    finally:
        with admin.begin() as connection:
            connection.execute(text(f"DROP SCHEMA {schema} CASCADE"))
        admin.dispose()


def _quote(value: object) -> str:
    return str(value) if isinstance(value, int | float) else f'"{value}"'


def _create_pool(client: ChainClient, deployment: Deployment, params: PoolParams, *, validators: int) -> PoolId:
    contracts, operator = Contracts(client, deployment), derive("operator").address
    judges = [derive(f"validator-{number}").address for number in range(validators)]
    tokens = {derive(name).address: 10**12 for name in ("operator", "trainer")}
    deploy.fund(deployment, derive("deployer"), tokens | dict.fromkeys(judges, 10**6))
    terms = PoolTerms(
        trainer=derive("trainer").address,
        arbiter=derive("arbiter").address,
        token=deployment.token,
        params_hash=params.compute_hash(),
        reward_per_million=3_000_000,
        min_stake=_MIN_STAKE,
        slash_amount=60,
        quorum=params.quorum,
        challenge_window=10,
        veto_window=10,
        unbond_window=20,
    )
    send_all(client, [(operator, contracts.pools.create_pool(terms, judges, params.to_text()))])
    pool = PoolId(contracts.pools.count_pools())
    calls = [
        contracts.token.approve(contracts.ledger.address, 10**9),
        contracts.ledger.fund_pool(pool, 10**9),
        contracts.pools.start_pool(pool),
    ]
    send_all(client, [(operator, call) for call in calls])
    policy = hash_from_bytes(keccak(text="policy 0"))
    send_all(client, [(terms.trainer, contracts.policies.publish(pool, Step(0), policy))])
    return pool


def _register_nodes(
    client: ChainClient, deployment: Deployment, pool: PoolId, *, nodes: int, contributors: int
) -> None:
    """Stake for each contributor, and bind the nodes to them, with the consent of both."""
    contracts, operator = Contracts(client, deployment), derive("operator").address
    stake = _MIN_STAKE * 1000 * -(-nodes // contributors)
    wallets = [derive_contributor(number, contributors) for number in range(contributors)]
    deployer = derive("deployer").address
    send_all(client, ((deployer, contracts.token.mint(each.address, stake)) for each in wallets))
    send_all(client, ((each.address, contracts.token.approve(contracts.stakes.address, stake)) for each in wallets))
    send_all(client, ((each.address, contracts.stakes.stake(pool, BondKind.CONTRIBUTOR, stake)) for each in wallets))
    domain = Domain(chain_id=deployment.chain_id, contract=deployment.node_registry)
    deadline = client.get_block("latest").timestamp + 3600

    def register(number: int) -> Call:
        node, contributor = derive(f"node-{number}"), wallets[number % contributors]
        message = NodeRegistration(
            pool=pool, contributor=contributor.address, node=node.address, nonce=0, deadline=deadline
        )
        return contracts.nodes.register_node(
            pool,
            contributor=contributor.address,
            node=node.address,
            deadline=deadline,
            contributor_signature=sign(message, domain, contributor),
            node_signature=sign(message, domain, node),
        )

    send_all(client, ((operator, register(number)) for number in range(nodes)))


def count_cpu_seconds(processes: Sequence[subprocess.Popen[bytes]]) -> float:
    """Return the CPU time of processes and of those that they have started until now, in seconds."""
    return sum(_count_ticks(process.pid) for process in processes) / os.sysconf("SC_CLK_TCK")


def _count_ticks(process: int) -> int:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return int(fields[11]) + int(fields[12]) + sum(_count_ticks(int(child)) for child in children)
