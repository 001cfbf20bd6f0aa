"""What a node's answers contain: blocks, logs and mined transactions, read with the deviations that nodes have.

Every function raises TypeError, ValueError, LookupError or AttributeError if a value does not have the required form.
"""

import re
from dataclasses import dataclass
from statistics import median_low
from typing import Any

from eth_utils.address import to_checksum_address

from covey.protocol.ids import Address, Hash, is_hash

_NUMBER = re.compile("0x[0-9a-fA-F]*|[0-9]{1,78}")
_WORD_BITS = 256
_BLOOM_BITS = 2048
_COUNT_BITS = 63
"""Bits of block numbers, times, nonces and gas. Databases store them as signed integers of 64 bits."""
_BASE_FEE_BITS = 60
"""Bits of a base fee in wei per gas, which is more than 1 ether. The fees that are computed from it have at most 63."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """Header of a block. `timestamp` is in Unix seconds, and `base_fee` in wei per gas."""

    number: int
    hash: Hash
    parent_hash: Hash
    timestamp: int
    base_fee: int
    logs_bloom: int | None = None
    """Bloom filter of the block's logs. None if the node does not give it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Log:
    """One log entry that is not decoded."""

    address: Address
    topics: tuple[Hash, ...]
    data: bytes
    block_number: int
    block_hash: Hash
    transaction_hash: Hash
    log_index: int


@dataclass(frozen=True, kw_only=True, slots=True)
class MinedTransaction:
    """Ethereum's receipt of a transaction. It is not called a receipt, because in Covey nodes sign receipts."""

    hash: Hash
    block_number: int
    block_hash: Hash
    is_success: bool
    gas_used: int
    contract: Address | None
    """Address of the deployed contract. None if the transaction deployed none."""


def read_int(value: Any, *, bits: int = _WORD_BITS) -> int:
    """Convert a quantity of at most `bits` bits. Some nodes write decimal numbers, or "0x" for zero."""
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        value = int(value[2:] or "0", 16) if value.startswith("0x") else int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**bits:
        raise ValueError(f"the value is not a number of at most {bits} bits")
    return value


def read_count(value: Any) -> int:
    """Convert a block number, a time in seconds, a nonce, an index or an amount of gas."""
    return read_int(value, bits=_COUNT_BITS)


def _read_hash(value: Any) -> Hash:
    if not is_hash(text := value.lower()):
        raise ValueError("the value is not a hash of 32 bytes")
    return Hash(text)


def read_block(block: Any, *, number: int | None = None) -> Block | None:
    """Convert a block. Raises ValueError if it does not have the `number` that was asked for, unless that is None."""
    if block is None:
        return None
    if number not in (None, found := read_count(block["number"])):
        raise ValueError(f"the block has the number {found}")
    return Block(
        number=found,
        hash=_read_hash(block["hash"]),
        parent_hash=_read_hash(block["parentHash"]),
        timestamp=read_count(block["timestamp"]),
        base_fee=read_int(block.get("baseFeePerGas") or 0, bits=_BASE_FEE_BITS),
        logs_bloom=None if (bloom := block.get("logsBloom")) is None else read_int(bloom, bits=_BLOOM_BITS),
    )


def read_median_fee(history: Any) -> int | None:
    """Return the median of the blocks' priority fees. Blocks without transactions are left out. None if no block is
    left.
    """
    rewards = history["reward"] or []
    ratios = history.get("gasUsedRatio") or [1] * len(rewards)
    fees = [read_int(fees[0]) for fees, ratio in zip(rewards, ratios, strict=True) if ratio]
    return int(median_low(fees)) if fees else None


def read_logs(entries: Any) -> list[Log] | None:
    """Convert logs, and sort them by position. None if the node wrote null, as some do instead of an empty list."""
    if entries is None:
        return None
    if not isinstance(entries, list):
        raise ValueError("the value is not a list")
    return sorted(map(_read_log, entries), key=lambda log: (log.block_number, log.log_index))


def _read_log(entry: Any) -> Log:
    return Log(
        address=Address(to_checksum_address(entry["address"])),
        topics=tuple(_read_hash(topic) for topic in entry["topics"]),
        data=read_bytes(entry["data"]),
        block_number=read_count(entry["blockNumber"]),
        block_hash=_read_hash(entry["blockHash"]),
        transaction_hash=_read_hash(entry["transactionHash"]),
        log_index=read_count(entry["logIndex"]),
    )


def read_mined(transaction: Hash, receipt: Any) -> MinedTransaction | None:
    if receipt is None or receipt.get("blockNumber") is None:
        return None
    contract = receipt.get("contractAddress")
    return MinedTransaction(
        hash=transaction,
        block_number=read_count(receipt["blockNumber"]),
        block_hash=_read_hash(receipt["blockHash"]),
        is_success=read_int(receipt["status"]) == 1,
        gas_used=read_count(receipt["gasUsed"]),
        contract=Address(to_checksum_address(contract)) if contract else None,
    )


def read_input(transaction: Any, *, to: str) -> bytes | None:
    """Convert the input of a transaction. None if there is no transaction, or if it goes elsewhere."""
    if transaction is None or (transaction["to"] or "").lower() != to.lower():
        return None
    return read_bytes(transaction["input"])


def read_bytes(text: str) -> bytes:
    return bytes.fromhex(text.removeprefix("0x"))
