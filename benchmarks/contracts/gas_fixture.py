"""A fresh Anvil with one started pool and the keys of all parties, for the benchmark of gas.

Anvil impersonates the accounts, so that only messages are signed.  Each transaction is mined at once, and its
gas is kept.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from eth_utils.crypto import keccak

from covey.chain.contracts import Contracts
from covey.chain.deploying import deploy
from covey.chain.deployment import Deployment
from covey.chain.events import EpochPosted
from covey.chain.history import History
from covey.chain.json_rpc import Call, ChainClient
from covey.chain.permits import make_permit
from covey.chain.structs import Accusation, BondKind, Inclusion, PoolTerms, SignedPermit
from covey.devnet import deploy as devnet
from covey.devnet.anvil import start_anvil
from covey.errors import ProtocolError, TransientError
from covey.protocol.eip712 import Domain, Message, compute_struct_hash, sign
from covey.protocol.epochs import EpochHeader, WorkLeaf
from covey.protocol.ids import (
    Address,
    Hash,
    LeaseId,
    PoolId,
    Step,
    TaskId,
    hash_from_bytes,
    hash_to_bytes,
)
from covey.protocol.merkle import MerkleTree, compute_reward_leaf
from covey.protocol.messages import Countersignature, NodeRegistration, Receipt, Verdict
from covey.protocol.prices import PRICED_UNITS

SUBMISSIONS = 4096
"""Submissions of an epoch, which are the leaves of its tree of work."""
CONTRIBUTORS = 300
"""Contributors that an epoch pays."""
EPOCH_UNITS = SUBMISSIONS * 500
PRICE = 3
"""Reward per unit, in the token's smallest unit."""
PARAMS = '{"name":"gas"}'
SIGNERS = ("validator-0", "validator-1")


class GasFixture:
    """A pool on a devnet, with methods that send one call each and keep its gas.

    Example: `fixture.send("trainer", fixture.contracts.policies.publish(...))` returns the gas, which is in
    `fixture.gas["PolicyRegistry.publish"]` too.
    """

    def __init__(self, client: ChainClient, deployment: Deployment) -> None:
        self.client, self.deployment = client, deployment
        self.contracts = Contracts(client, deployment)
        self.history = History(client=client, contracts=self.contracts)
        self.gas: dict[str, int] = {}
        """Gas of the last call of each function.  Example: {"EpochLedger.post": 58629}."""
        self.first: dict[str, int] = {}
        """Gas of the first call of each function."""
        self.filling_post = 0
        """Gas of a post while the ring of epochs is not full."""
        self.answer = 0.0
        """Gas per receipt where one transaction answers many challenges."""
        self.run_post = 0
        """Gas of the post whose contributors all claim."""
        self.claims: list[int] = []
        """Gas of the claims of that post's contributors."""
        self.pool = self._open_pool()
        payees = [devnet.derive_wallet("gas", f"payee-{i}").address for i in range(1, CONTRIBUTORS)]
        self._payees = [self.address("contributor"), *payees]
        self._cumulative = 0

    def address(self, name: str) -> Address:
        """Return the address of a party.  Example: "validator-0"."""
        return devnet.derive_wallet("gas", name).address

    def sign(self, name: str, message: Message, contract: str) -> str:
        """Sign a message as the named party for a contract, which is a field of `Deployment`."""
        domain = Domain(chain_id=self.deployment.chain_id, contract=getattr(self.deployment, contract))
        return sign(message, domain, devnet.derive_wallet("gas", name))

    def send(self, name: str, call: Call) -> int:
        """Send a call as the named party, wait until it is mined, and return its gas.

        Raises ProtocolError("reverted") if the transaction failed, and TransientError("not_mined").
        """
        transaction = {
            "from": self.address(name),
            "to": call.to,
            "data": "0x" + call.data.hex(),
            "value": hex(call.value),
        }
        gas = int(self.client.request("eth_estimateGas", transaction), 16)
        digest = Hash(self.client.request("eth_sendTransaction", transaction | {"gas": hex(2 * gas)}))
        for _ in range(1000):
            mined = self.client.find_mined(digest)
            if mined is not None:
                break
        else:
            raise TransientError("not_mined", call.label)
        if not mined.is_success:
            raise ProtocolError("reverted", call.label)
        self.gas[call.label] = mined.gas_used
        self.first.setdefault(call.label, mined.gas_used)
        return mined.gas_used

    def permit(self, name: str, spender: Address, value: int) -> SignedPermit:
        """Sign the named party's permit for its tokens."""
        wallet, token = devnet.derive_wallet("gas", name), self.contracts.token
        chain_id, deadline = self.deployment.chain_id, self.now() + 3600
        permit = make_permit(token, wallet, spender=spender, value=value, chain_id=chain_id, deadline=deadline)
        assert permit is not None
        return permit

    def now(self) -> int:
        """Return the time of the latest block."""
        return self.client.get_block("latest").timestamp

    def advance(self, seconds: int) -> None:
        """Mine a block that is later by some seconds."""
        self.client.request("evm_increaseTime", hex(seconds))
        self.client.request("evm_mine")

    def register(self, node: str) -> None:
        """Register a node of the contributor, with the consent of both."""
        consent = self.consent(node)
        call = self.contracts.nodes.register_node(
            self.pool,
            contributor=consent.contributor,
            node=consent.node,
            deadline=consent.deadline,
            contributor_signature=self.sign("contributor", consent, "node_registry"),
            node_signature=self.sign(node, consent, "node_registry"),
        )
        self.send("deployer", call)

    def consent(self, node: str) -> NodeRegistration:
        """Build the message by which a node and its contributor agree to a registration."""
        return NodeRegistration(
            pool=self.pool,
            contributor=self.address("contributor"),
            node=self.address(node),
            nonce=self.contracts.nodes.nonce_of(self.address(node)),
            deadline=self.now() + 3600,
        )

    def post(self, *, units: int, payees: int = CONTRIBUTORS, work_root: Hash | None = None) -> EpochPosted:
        """Post the next epoch, whose units the payees share equally."""
        ledger = self.contracts.ledger
        self._cumulative += units * PRICE // CONTRIBUTORS
        epoch = ledger.epochs_of(self.pool)
        header = EpochHeader(
            pool=self.pool,
            epoch=epoch,
            work_root=work_root or make_hash(f"work {epoch}"),
            reward_root=self._build_tree(payees).root,
            leaf_count=SUBMISSIONS,
            units=units,
            data_hash=make_hash(f"data {epoch}"),
            previous_hash=ledger.head_of(self.pool),
        )
        self.advance(1)
        attestations = {self.address(name): self.sign(name, header, "epoch_ledger") for name in SIGNERS}
        self.send("operator", ledger.post(header, attestations))
        posted = self.history.find_epoch(self.pool, epoch)
        assert posted is not None
        return posted

    def claim(self, posted: EpochPosted, i: int, *, payees: int = CONTRIBUTORS) -> int:
        """Claim the reward of payee `i` and return the gas."""
        proof = self._build_tree(payees).get_proof(self._build_leaf(i))
        call = self.contracts.ledger.claim(self.pool, posted.record, self._payees[i], self._cumulative, proof)
        return self.send("contributor", call)

    def receipt(self, task: int) -> Receipt:
        """Build the receipt of a task's submission."""
        return Receipt(
            pool=self.pool,
            task=TaskId(task),
            lease=LeaseId(task),
            node=self.address("node"),
            contributor=self.address("contributor"),
            policy_version=Step(1),
            work_key=make_hash(f"file {task}"),
            groups=2,
            units=500,
            deadline=self.now() + 60,
        )

    def propose(self, task: int) -> tuple[Accusation, list[tuple[Verdict, str]]]:
        """Propose to slash for a task's receipt; return the accusation and the two signed verdicts."""
        receipt = self.receipt(task)
        receipt_hash = compute_struct_hash(receipt)
        verdicts = [
            Verdict(
                pool=self.pool,
                receipt_hash=receipt_hash,
                work_key=receipt.work_key,
                validator=self.address(name),
                outcome=2,
                reason=7,
                severity=2,
                units=0,
                evidence_hash=make_hash(f"evidence {task}"),
                deadline=self.now() + 3600,
            )
            for name in SIGNERS
        ]
        signatures = [
            self.sign(name, verdict, "slashing_court") for name, verdict in zip(SIGNERS, verdicts, strict=True)
        ]
        signature = self.sign("node", receipt, "slashing_court")
        self.send("deployer", self.contracts.court.propose(receipt, signature, verdicts, signatures))
        accused = Accusation(
            receipt_hash=receipt_hash, pool=self.pool, node=receipt.node, contributor=receipt.contributor
        )
        return accused, list(zip(verdicts, signatures, strict=True))

    def post_with_leaves(self, receipts: Sequence[Receipt]) -> tuple[EpochPosted, list[Inclusion]]:
        """Post an epoch whose tree of SUBMISSIONS leaves holds those of the receipts; return it with their proofs."""
        leaves = [self._make_leaf(receipt) for receipt in receipts]
        hashes = [leaf.compute_hash() for leaf in leaves]
        others = [hash_to_bytes(make_hash(f"leaf {i}")) for i in range(SUBMISSIONS - len(leaves))]
        tree = MerkleTree([*hashes, *others])
        inclusions = [
            Inclusion(receipt=receipt, leaf=leaf, proof=tuple(tree.get_proof(leaf_hash)))
            for receipt, leaf, leaf_hash in zip(receipts, leaves, hashes, strict=True)
        ]
        return self.post(units=1, work_root=tree.root), inclusions

    def _make_leaf(self, receipt: Receipt) -> WorkLeaf:
        return WorkLeaf(
            receipt_hash=compute_struct_hash(receipt),
            work_key=receipt.work_key,
            node=receipt.node,
            contributor=receipt.contributor,
            task=receipt.task,
            policy_version=receipt.policy_version,
            signed_at=self.client.get_block("latest").timestamp,
            outcome=1,
            reason=0,
            units=receipt.units,
            evidence_hash=make_hash("evidence"),
        )

    def challenge(self, receipt: Receipt) -> Call:
        """Build the call that challenges the omission of a receipt, whose promise has just fallen due."""
        now = self.client.get_block("latest").timestamp
        promise = Countersignature(receipt_hash=compute_struct_hash(receipt), signed_at=now - 5, due_by=now - 1)
        return self.contracts.ledger.challenge_omission(
            receipt,
            node_signature=self.sign("node", receipt, "slashing_court"),
            promise=promise,
            promise_signature=self.sign("operator", promise, "epoch_ledger"),
        )

    def _build_leaf(self, i: int) -> bytes:
        return compute_reward_leaf(
            chain=self.deployment.chain_id,
            ledger=self.deployment.epoch_ledger,
            pool=self.pool,
            contributor=self._payees[i],
            cumulative=self._cumulative,
        )

    def _build_tree(self, payees: int) -> MerkleTree:
        return MerkleTree([self._build_leaf(i) for i in range(payees)])

    def _open_pool(self) -> PoolId:
        terms = PoolTerms(
            reward_per_million=PRICE * PRICED_UNITS,
            challenge_window=10,
            veto_window=10,
            unbond_window=20,
            slash_amount=60,
            max_slashes=100,
            validator_bond=20,
            header_quorum=len(SIGNERS),
            verdict_fee=1,
            epoch_verdicts=len(SIGNERS) * SUBMISSIONS,
            signer_penalty=15,
            quorum=2,
            arbiter=self.address("arbiter"),
            trainer=self.address("trainer"),
            token=self.deployment.token,
            min_stake=100,
            params_hash=hash_from_bytes(keccak(text=PARAMS)),
        )
        pools, stakes, ledger = self.contracts.pools, self.contracts.stakes, self.contracts.ledger
        validators = [self.address(f"validator-{i}") for i in range(3)]
        self.send("operator", pools.create_pool(terms, validators, PARAMS))
        self.pool = PoolId(pools.count_pools())
        for name in ("operator", "contributor", *SIGNERS):
            self.send(name, self.contracts.token.approve(stakes.address, 10**20))
        self.send("operator", self.contracts.token.approve(ledger.address, 10**20))
        self.send("operator", ledger.fund_pool(self.pool, 10**9))
        self.send("operator", pools.start_pool(self.pool))
        self.send("operator", stakes.stake(self.pool, BondKind.OPERATOR, 10_000))
        for name in SIGNERS:
            self.send(name, stakes.stake(self.pool, BondKind.VALIDATOR, 100))
        self.register("node")
        return self.pool


@contextmanager
def open_gas_fixture() -> Iterator[GasFixture]:
    """Start Anvil, deploy the contracts, fund the parties and start the pool; stop Anvil at the end."""
    anvil = start_anvil(block_time=None)
    try:
        client = ChainClient(anvil.url, timeout_s=60)
        deployer = devnet.derive_wallet("gas", "deployer")
        client.request("anvil_setBalance", deployer.address, hex(1000 * devnet.ETHER))
        deployment = deploy(anvil.url, deployer)
        names = ("operator", "contributor", "arbiter", "trainer", "validator-0", "validator-1", "deployer")
        accounts = {devnet.derive_wallet("gas", name).address: 10**12 for name in names}
        devnet.fund(deployment, deployer, accounts)
        client.request("anvil_autoImpersonateAccount", True)
        yield GasFixture(client, deployment)
    finally:
        anvil.stop()


def make_hash(text: str) -> Hash:
    """Return the Keccak hash of a text."""
    return hash_from_bytes(keccak(text=text))
