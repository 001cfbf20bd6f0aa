"""A real Anvil with the contracts, one per module. Every test starts from the same state."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import pytest
from eth_utils.crypto import keccak

from covey.chain.contracts import Contracts
from covey.chain.deploying import deploy
from covey.chain.deployment import Deployment
from covey.chain.json_rpc import Call, ChainClient
from covey.chain.outbox import Entry
from covey.chain.sender import Sender
from covey.chain.sqlite_outbox import SqliteOutbox
from covey.chain.structs import BondKind, PoolTerms
from covey.chain.wallet import Wallet
from covey.devnet import deploy as devnet
from covey.devnet.anvil import Anvil, find_anvil, start_anvil
from covey.errors import OperatorError
from covey.protocol.eip712 import Domain, sign
from covey.protocol.ids import hash_from_bytes
from covey.protocol.messages import NodeRegistration

NAMES = (
    "deployer",
    "operator",
    "trainer",
    "arbiter",
    "contributor",
    "node",
    "validator-0",
    "validator-1",
    "validator-2",
)
PARAMS = '{"name":"test"}'


@dataclass
class Chain:
    """A chain and the wallets of all roles."""

    client: ChainClient
    deployment: Deployment
    contracts: Contracts
    wallets: dict[str, Wallet]
    anvil: Anvil

    def address(self, name: str) -> str:
        return self.wallets[name].address

    def send(self, name: str, call: Call) -> Entry:
        """Send through a new outbox, as every role does."""
        store = SqliteOutbox(":memory:")
        try:
            sender = Sender(self.client, self.wallets[name], store, chain_id=self.deployment.chain_id)
            return sender.send_and_wait("test", call, timeout_s=60)
        finally:
            store.close()

    def domain(self, contract: str) -> Domain:
        return Domain(chain_id=self.deployment.chain_id, contract=getattr(self.deployment, contract))

    def now(self) -> int:
        return self.client.get_block("latest").timestamp

    def advance(self, seconds: int) -> None:
        """Move the chain's clock to `seconds` after the newest block, however much time has passed since then."""
        self.client.request("evm_setNextBlockTimestamp", hex(self.now() + seconds))
        self.client.request("evm_mine")

    def open_pool(self, **changes: int) -> int:
        """Open an active pool with an escrow of 1,000,000 and three validators, two of which are a quorum.

        The price is 3 per unit, a slash 60, and the windows are 10, 10 and 20 s. Each validator has bonded 20, of which
        an overturned case takes 15 and a false accept 12. `changes` replace terms.
        """
        terms = PoolTerms(
            trainer=self.address("trainer"),
            arbiter=self.address("arbiter"),
            token=self.deployment.token,
            params_hash=hash_from_bytes(keccak(text=PARAMS)),
            reward_per_million=3_000_000,
            min_stake=100,
            slash_amount=60,
            quorum=2,
            challenge_window=10,
            veto_window=10,
            unbond_window=20,
            validator_bond=20,
            signer_penalty=15,
            accept_penalty=12,
        )
        pools = self.contracts.pools
        validators = [self.address(f"validator-{i}") for i in range(3)]
        self.send("operator", pools.create_pool(replace(terms, **changes), validators, PARAMS))
        pool = pools.count_pools()
        ledger = self.contracts.ledger
        self.send("operator", self.contracts.token.approve(ledger.address, 1_000_000))
        self.send("operator", ledger.fund_pool(pool, 1_000_000))
        for i in range(3):
            self.bond(f"validator-{i}", pool, BondKind.VALIDATOR, 20)
        self.send("operator", pools.start_pool(pool))
        return pool

    def bond(self, name: str, pool: int, kind: BondKind, amount: int) -> None:
        stakes = self.contracts.stakes
        self.send(name, self.contracts.token.approve(stakes.address, amount))
        self.send(name, stakes.stake(pool, kind, amount))

    def join(self, pool: int) -> None:
        """Stake 100 for the contributor and register its node."""
        self.bond("contributor", pool, BondKind.CONTRIBUTOR, 100)
        registration = NodeRegistration(
            pool=pool,
            contributor=self.address("contributor"),
            node=self.address("node"),
            nonce=self.contracts.nodes.nonce_of(self.address("node")),
            deadline=self.now() + 60,
        )
        domain = self.domain("node_registry")
        self.send(
            "deployer",
            self.contracts.nodes.register_node(
                pool,
                contributor=registration.contributor,
                node=registration.node,
                deadline=registration.deadline,
                contributor_signature=sign(registration, domain, self.wallets["contributor"]),
                node_signature=sign(registration, domain, self.wallets["node"]),
            ),
        )


@contextmanager
def open_chain() -> Iterator[Chain]:
    """Start an Anvil that mines each transaction at once, with contracts and funded accounts."""
    try:
        find_anvil()
    except OperatorError as error:
        pytest.skip(str(error))
    anvil = start_anvil(block_time=None)
    try:
        wallets = {name: devnet.derive_wallet("test", name) for name in NAMES}
        client = ChainClient(anvil.url)
        client.request("anvil_setBalance", wallets["deployer"].address, hex(100 * devnet.ETHER))
        deployment = deploy(anvil.url, wallets["deployer"])
        devnet.fund(deployment, wallets["deployer"], {wallet.address: 2_000_000 for wallet in wallets.values()})
        yield Chain(client, deployment, Contracts(client, deployment), wallets, anvil)
    finally:
        anvil.stop()


@pytest.fixture(scope="module")
def running() -> Iterator[Chain]:
    with open_chain() as opened:
        yield opened


@pytest.fixture
def chain(running: Chain) -> Iterator[Chain]:
    snapshot = running.client.request("evm_snapshot")
    yield running
    running.client.request("evm_setAutomine", True)
    running.client.request("evm_revert", snapshot)
    # Anvil does not restore the base fee with the snapshot.
    running.client.request("anvil_setNextBlockBaseFeePerGas", hex(10**9))


@pytest.fixture
def store() -> Iterator[SqliteOutbox]:
    outbox = SqliteOutbox(":memory:")
    yield outbox
    outbox.close()
