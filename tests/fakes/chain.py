"""A chain in memory for the sender: one account, a transaction pool, and blocks that appear, vanish or are seen late.

It has the methods and errors of `ChainClient`. Every call succeeds; its effect is its data.
"""

import json
from dataclasses import dataclass
from typing import Any

from eth_utils.crypto import keccak

from covey.chain.json_rpc import Call
from covey.chain.node_answers import Block, MinedTransaction
from covey.chain.wallet import SignedTransaction
from covey.errors import ProtocolError, TransientError
from covey.protocol.ids import Address, Hash, hash_from_bytes

ACCOUNT = Address("0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266")


@dataclass(frozen=True, slots=True)
class Transaction:
    """What the fake wallet signs."""

    nonce: int
    fee: int
    effect: str

    @property
    def raw(self) -> bytes:
        return json.dumps([self.nonce, self.fee, self.effect]).encode()

    @property
    def hash(self) -> Hash:
        return hash_from_bytes(keccak(self.raw))


class FakeWallet:
    address = ACCOUNT

    def sign_transaction(self, values: dict[str, Any]) -> SignedTransaction:
        transaction = Transaction(values["nonce"], values["maxPriorityFeePerGas"], values["data"].decode())
        return SignedTransaction(hash=transaction.hash, raw=transaction.raw)


class MemoryChain:
    """A chain in memory. Example: `chain.mine()`, `chain.reorganise(3, length=2, returned=False)`, `chain.lag = 1`."""

    def __init__(self) -> None:
        self.blocks: list[tuple[int, list[Transaction]]] = [(0, [])]
        """Salt and transactions of each block. Its hash is derived from its salt and those of the blocks below."""
        self.pool: dict[int, Transaction] = {}
        self.lag = self.receipt_lag = 0
        """Number of newest blocks missing from the backend that answers, and from the one that answers for receipts."""
        self.wording: str | None = None
        """Words in which the node refuses a transaction whose nonce is used. None: those that Covey knows."""
        self._salt = 0

    # Events of the chain

    def mine(self, blocks: int = 1) -> None:
        for _ in range(blocks):
            mined: list[Transaction] = []
            while (waiting := self.pool.pop(self._count(self.blocks) + len(mined), None)) is not None:
                mined.append(waiting)
            self._salt += 1
            self.blocks.append((self._salt, mined))
            self.pool = {nonce: each for nonce, each in self.pool.items() if nonce >= self._count(self.blocks)}

    def reorganise(self, depth: int, *, length: int, returned: bool) -> None:
        """Replace the newest blocks; the owner's own transactions return to the pool, the others if `returned`."""
        depth = min(depth, len(self.blocks) - 1)
        dropped = [each for _, mined in self.blocks[len(self.blocks) - depth :] for each in mined]
        self.blocks = self.blocks[: len(self.blocks) - depth]
        for each in dropped:
            if returned or each.effect == "owner":
                self.pool[each.nonce] = each
        for _ in range(length):
            self._salt += 1
            self.blocks.append((self._salt, []))

    def forget_pool(self) -> None:
        """Drop transactions that wait too long, as nodes do. The owner sends its own again."""
        self.pool = {nonce: each for nonce, each in self.pool.items() if each.effect == "owner"}

    def send_by_owner(self) -> None:
        """Send a transaction of the same key that the outbox does not know."""
        nonce = self._count(self.blocks)
        while nonce in self.pool:
            nonce += 1
        self.pool[nonce] = Transaction(nonce, 5, "owner")

    def list_effects(self) -> list[str]:
        return [each.effect for _, mined in self.blocks for each in mined]

    # Requests of a client

    @property
    def _seen(self) -> list[tuple[int, list[Transaction]]]:
        return self.blocks[: max(1, len(self.blocks) - self.lag)]

    def get_block(self, tag: int | str) -> Block:
        block = self.find_block(len(self._seen) - 1 if tag == "latest" else tag)
        assert block is not None
        return block

    def find_block(self, tag: int | str) -> Block | None:
        assert isinstance(tag, int)
        if tag >= len(self._seen):
            return None
        return Block(number=tag, hash=self._hash(tag), parent_hash=self._hash(tag - 1), timestamp=tag, base_fee=1)

    def count_transactions(self, address: Address, block: int | str = "latest") -> int:
        if isinstance(block, int):
            return self._count(self._seen[: block + 1])
        nonce = self._count(self._seen)
        while block == "pending" and nonce in self.pool:
            nonce += 1
        return nonce

    def find_mined(self, transaction: Hash) -> MinedTransaction | None:
        for number, (_, mined) in enumerate(self.blocks[: max(1, len(self.blocks) - self.receipt_lag)]):
            if any(each.hash == transaction for each in mined):
                return MinedTransaction(
                    hash=transaction, block_number=number, block_hash=self._hash(number), is_success=True,
                    gas_used=1, contract=None,
                )  # fmt: skip
        return None

    def send_raw(self, raw: bytes) -> None:
        sent = Transaction(*json.loads(raw))
        if self.wording is not None and sent.nonce < self._count(self.blocks) and self.find_mined(sent.hash) is None:
            raise TransientError("chain_refused", f"the chain node refused eth_sendRawTransaction: {self.wording}")
        if sent.nonce < self._count(self.blocks):
            raise ProtocolError("nonce_too_low", "nonce too low")
        waiting = self.pool.get(sent.nonce)
        if waiting is not None and waiting != sent and sent.fee < waiting.fee * 1.1:
            raise ProtocolError("underpriced", "replacement transaction underpriced")
        self.pool[sent.nonce] = sent

    def estimate_gas(self, sender: Address, call: Call) -> int:
        return 21_000

    def get_priority_fee(self) -> int:
        return 1

    def _count(self, blocks: list[tuple[int, list[Transaction]]]) -> int:
        return sum(len(mined) for _, mined in blocks)

    def _hash(self, number: int) -> Hash:
        return hash_from_bytes(keccak(repr([salt for salt, _ in self.blocks[: number + 1]]).encode()))
