"""Answers of contracts: those that no test has deployed, and views that only tests read."""

from typing import Any

from covey.chain import abi_codec
from covey.chain.contract import Contract
from covey.protocol.eip712 import DOMAIN_VERSION

ASKS_VERSION = abi_codec.encode_call("EpochLedger", "eip712Domain", ())
ADDRESS = "0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266"


def encode_domain(version: str = DOMAIN_VERSION) -> bytes:
    """Encode the answer of a contract's `eip712Domain` (ERC-5267)."""
    outputs = abi_codec.load_artifact("EpochLedger").functions["eip712Domain"].outputs
    salt = "0x" + "00" * 32
    return abi_codec.encode_values(outputs, (b"\x0f", "Covey", version, 5, ADDRESS, salt, []))


def read_contract(contract: Contract, function: str, *arguments: object) -> Any:
    """Call a view of a deployed contract that only tests read."""
    return contract._read(function, *arguments)
