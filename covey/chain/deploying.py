"""Deploys Covey's contracts to a chain: `covey deploy` to an existing one, `covey devnet up` to a new Anvil.

Every transaction is in the journal before it is sent, and its nonce is fixed by the first one. A deployment that was
interrupted at any point is resumed by the same call, which deploys nothing twice.
"""

import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from threading import Event as Flag
from typing import TypeVar

from eth_utils.address import to_checksum_address
from eth_utils.crypto import keccak

from covey.chain import abi_codec
from covey.chain.account_lock import lock_file
from covey.chain.deploy_journal import DeployAttempt, DeployedContract, DeployJournal, DeployRecord
from covey.chain.deployment import Deployment
from covey.chain.fees import DAY, FeeLimits, Fees, format_gwei
from covey.chain.json_rpc import BlockTag, ChainClient
from covey.chain.node_answers import Block, MinedTransaction
from covey.chain.wallet import Wallet
from covey.errors import OperatorError, ProtocolError, TransientError
from covey.protocol.ids import Address, Hash, hash_from_bytes
from covey.runtime.state_folder import open_state_folder

MINE_SECONDS = 300.0
"""Timeout of one transaction, and of the confirmations of the last one, in seconds."""
FIRST_PAUSE, MAX_PAUSE = 0.02, 2.0
"""Seconds between two queries for a transaction. The first pause is short for Anvil. It then doubles, because public
nodes limit requests."""
_NO_LIMITS = FeeLimits()
Found = TypeVar("Found")


def deploy(
    rpc_url: str,
    deployer: Wallet,
    *,
    token: Address | None = None,
    start: BlockTag = "finalized",
    journal: Path | None = None,
    limits: FeeLimits = _NO_LIMITS,
    confirmations: int = 0,
    say: Callable[[str], None] = lambda _: None,
) -> Deployment:
    """Deploy all contracts. The deployer needs ether, and becomes the admin, who can only pause new work.

    `token` is the ERC-20 token of the deployment's pools. None deploys a test token.

    `start` is the tag of the deployment's first block, whose hash identifies the chain. A final block is never
    reorganised. On a chain without final blocks, the newest block is the first, and its hash is not recorded.

    `journal` is the file from which the deployment is resumed. None keeps it in memory, for a devnet whose deployer no
    other process uses. With a file, only one process at a time deploys with the account. `confirmations` is the number
    of blocks that must follow the last contract before it counts.

    `say` is called with the chain and the first block, and with each address as soon as it is known. If the result is
    lost, its output is enough to use the deployment.

    Raises TransientError if the node does not respond or does not mine; the same call then goes on. Raises
    TransientError("account_busy") if another process deploys with the account. Raises OperatorError("other_deployment")
    if the journal is of another chain, deployer or token, or if contracts of another version were signed for it. Raises
    OperatorError("nonce_used") if the deployer has sent a different transaction meanwhile.
    """
    client = ChainClient(rpc_url)
    lock = open_state_folder() / f"{client.chain_id()}-{deployer.address}.deploying.lock"
    with nullcontext() if journal is None else lock_file(lock, deployer.address):
        task = _Deploying(client, deployer, DeployJournal(journal), limits=limits, say=say)
        record = task.begin(token, start)
        chosen = token or task.create("TestToken")
        pools = task.create("PoolRegistry", deployer.address)
        nodes = task.create("NodeRegistry", pools)
        policies = task.create("PolicyRegistry", pools)
        # StakeManager is created with the addresses of the two contracts after it, so that nobody can set others later.
        stakes = task.create("StakeManager", pools, *task.predict_next(1, 2))
        ledger = task.create("EpochLedger", pools, nodes, stakes)
        court = task.create("SlashingCourt", pools, nodes, stakes)
        task.confirm(confirmations)
        return Deployment(
            chain_id=record.chain_id,
            rpc_url=client.rpc_url,
            start_block=record.start_block,
            start_hash=record.start_hash,
            pool_registry=pools,
            node_registry=nodes,
            policy_registry=policies,
            stake_manager=stakes,
            epoch_ledger=ledger,
            slashing_court=court,
            token=chosen,
        )


class _Deploying:
    """One deployment, from its journal on."""

    def __init__(
        self,
        client: ChainClient,
        deployer: Wallet,
        journal: DeployJournal,
        *,
        limits: FeeLimits,
        say: Callable[[str], None],
    ) -> None:
        self._client, self._deployer, self._journal = client, deployer, journal
        self._limits, self._say = limits, say
        self._next_nonce = 0

    @property
    def record(self) -> DeployRecord:
        if self._journal.record is None:
            raise ValueError("the deployment has not begun")
        return self._journal.record

    def begin(self, token: Address | None, start: BlockTag) -> DeployRecord:
        """Return the journal's record, or begin a new one.

        Raises OperatorError("other_deployment") if the journal belongs to another deployment.
        """
        chain_id, record = self._client.chain_id(), self._journal.record
        if record is None:
            known = _find_start(self._client, start)
            record = DeployRecord(
                chain_id=chain_id,
                deployer=self._deployer.address,
                token=token,
                start_block=self._client.block_number() if known is None else known.number,
                start_hash=None if known is None else known.hash,
                first_nonce=self._client.count_transactions(self._deployer.address),
            )
            self._journal.save(record)
            self._say(f"deploying to chain {chain_id} from block {record.start_block}")
        else:
            self._require_same(record, chain_id, token)
            self._say(f"resuming the deployment to chain {chain_id} from block {record.start_block}")
        self._next_nonce = record.first_nonce
        return record

    def _require_same(self, record: DeployRecord, chain_id: int, token: Address | None) -> None:
        wrong = [
            f"{name} {was}, not {now}"
            for name, was, now in (
                ("chain", record.chain_id, chain_id),
                ("deployer", record.deployer, self._deployer.address),
                ("token", record.token, token),
            )
            if was != now
        ]
        block = self._client.find_block(record.start_block)
        if not wrong and record.start_hash is not None and (block is None or block.hash != record.start_hash):
            wrong = [f"another chain with the id {chain_id}: its block {record.start_block} is not {record.start_hash}"]
        if wrong:
            raise OperatorError(
                "other_deployment",
                f"the deployment to resume has {'; '.join(wrong)}",
                fix="Resume it with the same chain, key and token, or begin another one with a new --out",
            )
        for contract in record.contracts:
            _require_same_version(contract)

    def predict_next(self, *steps: int) -> list[Address]:
        """Return addresses of contracts after the next one, by their distance from it."""
        return [predict_address(self._deployer.address, self._next_nonce + step) for step in steps]

    def create(self, name: str, *args: object) -> Address:
        """Create a contract, or find it on the chain if an earlier call has created it. Returns its address."""
        nonce = self._next_nonce
        self._next_nonce += 1
        known = self.record.find(name)
        if known is not None and known.code_hash is not None:
            self._require_code(known)
            self._say(f"{name} is already deployed at {known.address}")
            return known.address
        if known is None:
            self._say(f"deploying {name}")
            arguments = abi_codec.encode_values(abi_codec.load_artifact(name).constructor, args)
            address = predict_address(self._deployer.address, nonce)
            known = DeployedContract(name=name, address=address, nonce=nonce, arguments=arguments.hex(), attempts=())
        mined = self._send(known)
        if mined.contract != known.address:
            raise ProtocolError("not_deployed", f"the deployment of {name} returned {mined.contract} as its address")
        code_hash = self._hash_code(known)
        if code_hash is None:
            raise TransientError("not_mined", f"the node has mined {name} but has no code at {known.address} yet")
        current = self.record.find(name) or known
        self._journal.save(self.record.with_contract(replace(current, code_hash=code_hash)))
        self._say(f"{name} deployed at {known.address}")
        return known.address

    def confirm(self, confirmations: int) -> None:
        """Wait until blocks follow the contracts, and check that all contracts are on the chain.

        Raises TransientError("not_mined") if there are too few blocks after MINE_SECONDS, or if a reorganisation has
        dropped a contract.
        """
        blocks = []
        for each in self.record.contracts:
            mined = _find_any(self._client, each)
            if mined is None:
                self._journal.save(self.record.with_contract(replace(each, code_hash=None)))
                raise TransientError("not_mined", f"a reorganisation dropped {each.name}. Run the command again")
            blocks.append(mined.block_number)
        required = max(blocks) + confirmations

        def is_deep() -> bool:
            return self._client.block_number() >= required

        if not is_deep():
            self._say(f"waiting for block {required}, which is {confirmations} blocks after the last contract")
            _wait_for(is_deep, f"the chain did not reach block {required}")
            self.confirm(confirmations)

    def _require_code(self, known: DeployedContract) -> None:
        code_hash = self._hash_code(known)
        if code_hash != known.code_hash:
            found = "no code" if code_hash is None else f"code with the hash {code_hash}"
            raise OperatorError(
                "other_deployment",
                f"the journal has {known.name} at {known.address} with the code hash {known.code_hash}, but the chain "
                f"has {found}",
                fix="Use a node of the chain that was deployed to, or begin again with a new --out",
            )

    def _hash_code(self, contract: DeployedContract) -> Hash | None:
        code = self._client.get_code(contract.address)
        return hash_from_bytes(keccak(code)) if code else None

    def _send(self, contract: DeployedContract) -> MinedTransaction:
        """Send a contract's transaction, unless it is mined already, and wait until it is mined."""
        mined = _find_any(self._client, contract)
        if mined is None:
            self._require_free(contract)
            contract = self._sign(contract)
            try:
                self._client.send_raw(bytes.fromhex(contract.attempts[-1].raw))
            except ProtocolError as error:
                if error.code != "underpriced":  # an earlier attempt is with the node and may still be mined
                    raise
            mined = _wait_for(lambda: _find_any(self._client, contract), f"{contract.name} was not mined")
        if not mined.is_success:
            raise ProtocolError("reverted", f"the transaction {mined.hash} that deploys {contract.name} was reverted")
        return mined

    def _require_free(self, contract: DeployedContract) -> None:
        """Raise OperatorError("nonce_used") if another transaction of the deployer has taken the contract's nonce."""
        used = self._client.count_transactions(self._deployer.address)
        if used > contract.nonce and _find_any(self._client, contract) is None:
            raise OperatorError(
                "nonce_used",
                f"{self._deployer.address} has sent another transaction with the nonce {contract.nonce} of "
                f"{contract.name}",
                fix="Begin again with a new --out. What was deployed so far stays unused",
            )

    def _sign(self, contract: DeployedContract) -> DeployedContract:
        """Return the contract with an attempt that can be mined at the present base fee, which the journal has."""
        base_fee = self._client.get_block("latest").base_fee
        newest = contract.attempts[-1] if contract.attempts else None
        if newest is not None and newest.max_fee >= base_fee:
            return contract
        fees = self._limits.choose(base_fee=base_fee, priority_fee=self._client.get_priority_fee())
        if newest is not None:
            before = Fees(max_fee=newest.max_fee, priority_fee=newest.priority_fee)
            dearer = self._limits.raise_above(before, fees)
            if dearer is None:
                raise TransientError(
                    "fee_too_high",
                    f"the transaction that deploys {contract.name} waits with a maximum fee of"
                    f" {format_gwei(newest.max_fee)}, and max_fee_gwei or max_priority_gwei allows no dearer one. Wait"
                    " until the base fee falls, or raise them",
                )
            fees = dearer
        data = abi_codec.load_artifact(contract.name).bytecode + bytes.fromhex(contract.arguments)
        gas = self._client.estimate_draft({"from": self._deployer.address, "data": "0x" + data.hex()})
        gas = gas * 5 // 4
        self._limits.require_budget(cost=gas * fees.max_fee, spent=self._compute_spent(contract))
        signed = self._deployer.sign_transaction(
            {
                "type": 2,
                "chainId": self.record.chain_id,
                "nonce": contract.nonce,
                "data": data,
                "value": 0,
                "gas": gas,
                "maxFeePerGas": fees.max_fee,
                "maxPriorityFeePerGas": fees.priority_fee,
            }
        )
        attempt = DeployAttempt(
            hash=signed.hash, raw=signed.raw.hex(), max_fee=fees.max_fee, priority_fee=fees.priority_fee
        )
        contract = replace(contract, attempts=(*contract.attempts, attempt))
        self._journal.save(self.record.with_contract(contract))
        return contract

    def _compute_spent(self, contract: DeployedContract) -> int:
        """Return the most that the other contracts can have cost in the last day of the chain's clock, in wei."""
        if self._limits.max_spend is None:
            return 0
        since = self._client.get_block("latest").timestamp - DAY
        from covey.protocol.accounts import read_gas

        others = [each for each in self.record.contracts if each.name != contract.name and self._is_since(each, since)]
        return sum(
            max(read_gas(bytes.fromhex(attempt.raw)) * attempt.max_fee for attempt in each.attempts)
            for each in others
            if each.attempts
        )

    def _is_since(self, contract: DeployedContract, time: int) -> bool:
        """Return whether a contract was mined at a Unix time or later, or is not mined yet."""
        mined = _find_any(self._client, contract)
        return mined is None or self._client.get_block(mined.block_number).timestamp >= time


def _require_same_version(contract: DeployedContract) -> None:
    """Raise OperatorError("other_deployment") if a signed contract is not the one that this version would deploy."""
    from covey.protocol.accounts import read_data

    code = abi_codec.load_artifact(contract.name).bytecode + bytes.fromhex(contract.arguments)
    if any(read_data(bytes.fromhex(attempt.raw)) != code for attempt in contract.attempts):
        raise OperatorError(
            "other_deployment",
            f"the deployment to resume has {contract.name} from another version of Covey's contracts",
            fix="Resume it with the version of Covey that began it, or begin another one with a new --out",
        )


def _find_any(client: ChainClient, contract: DeployedContract) -> MinedTransaction | None:
    found = (client.find_mined(attempt.hash) for attempt in reversed(contract.attempts))
    return next((mined for mined in found if mined is not None), None)


def _wait_for(find: Callable[[], Found | None], otherwise: str) -> Found:
    """Return what `find` finds. Raises TransientError("not_mined") after MINE_SECONDS."""
    deadline, pause = time.monotonic() + MINE_SECONDS, FIRST_PAUSE
    while not (found := find()):
        if time.monotonic() >= deadline:
            raise TransientError("not_mined", f"{otherwise} within {MINE_SECONDS:.0f} s")
        Flag().wait(pause)
        pause = min(MAX_PAUSE, 2 * pause)
    return found


def _find_start(client: ChainClient, tag: BlockTag) -> Block | None:
    """Return the block of a tag. None if the chain does not have final blocks."""
    try:
        return client.find_block(tag)
    except TransientError as error:
        if error.code != "chain_refused":
            raise
        return None


def predict_address(creator: Address, nonce: int) -> Address:
    """Return the address of the contract that `creator` deploys with `nonce`: keccak256(rlp([creator, nonce]))."""
    number = nonce.to_bytes((nonce.bit_length() + 7) // 8)
    body = b"\x94" + bytes.fromhex(creator[2:])
    body += number if 0 < nonce < 0x80 else bytes([0x80 + len(number)]) + number
    return Address(to_checksum_address(keccak(bytes([0xC0 + len(body)]) + body)[12:]))


def send_and_wait(
    client: ChainClient, sender: Wallet, *, to: Address | None, data: bytes, chain_id: int
) -> MinedTransaction:
    """Send one transaction without an outbox and wait until it is mined. `to` is None for a new contract.

    The transaction is signed for `chain_id`. If that is not the node's chain, the node refuses the transaction.

    Raises TransientError("not_mined") after MINE_SECONDS, and ProtocolError("reverted") if the transaction fails.
    """
    draft = {"from": sender.address, "data": "0x" + data.hex()} | ({} if to is None else {"to": to})
    gas = client.estimate_draft(draft)
    fees = FeeLimits().choose(base_fee=client.get_block("latest").base_fee, priority_fee=client.get_priority_fee())
    transaction: dict[str, object] = {
        "type": 2,
        "chainId": chain_id,
        "nonce": client.count_transactions(sender.address),
        "data": data,
        "value": 0,
        "gas": gas * 5 // 4,
        "maxFeePerGas": fees.max_fee,
        "maxPriorityFeePerGas": fees.priority_fee,
    }
    signed = sender.sign_transaction(transaction if to is None else transaction | {"to": to})
    client.send_raw(signed.raw)
    mined = _wait_for(lambda: client.find_mined(signed.hash), "a transaction was not mined")
    if not mined.is_success:
        raise ProtocolError("reverted", f"the transaction {signed.hash} was reverted")
    return mined
