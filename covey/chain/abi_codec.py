"""Encodes and decodes ABI data as plain Python values. Only this module reads the JSON files in `covey/chain/abi`.

A bytes32 becomes a `Hash`, an address is checksummed, and a struct becomes a tuple.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from importlib import resources
from typing import Any

from eth_abi.abi import encode
from eth_abi.codec import ABIDecoder
from eth_abi.decoding import StringDecoder
from eth_abi.exceptions import DecodingError
from eth_abi.registry import registry
from eth_utils.address import to_checksum_address
from eth_utils.crypto import keccak

from covey.protocol.ids import Address, hash_from_bytes, hash_to_bytes

CONTRACT_NAMES = (
    "PoolRegistry",
    "NodeRegistry",
    "PolicyRegistry",
    "StakeManager",
    "EpochLedger",
    "SlashingCourt",
    "TestToken",
)
_LAST_TIME = 253_402_300_799
"""Last second of the year 9999. A contract that does not know a time yet has a larger number."""
_REGISTRY = registry.copy()  # type: ignore[no-untyped-call]
_REGISTRY.unregister_decoder("string")
_REGISTRY.register_decoder("string", StringDecoder("replace"), label="string")  # type: ignore[no-untyped-call]
decode = ABIDecoder(_REGISTRY).decode
"""Decodes bytes of a string that are not UTF-8 as U+FFFD. Otherwise anybody's event could stop all who read events."""
_PANIC = "4e487b71"
_ERROR = "08c379a0"


@dataclass(frozen=True, kw_only=True, slots=True)
class Param:
    """One argument, result or struct member. Example: name="step", kind="uint64"."""

    name: str
    kind: str
    """Canonical Solidity type. A struct is written as its members, for example "(uint256,address)[]"."""
    members: tuple["Param", ...]
    """Members of a struct. Empty for any other type."""
    is_indexed: bool
    """Whether an event stores the value in a topic."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Item:
    """A function, event, error or constructor."""

    name: str
    inputs: tuple[Param, ...]
    outputs: tuple[Param, ...]

    @property
    def digest(self) -> bytes:
        """keccak256 of the signature: the topic of an event.

        Its first four bytes are the selector of a function or error.
        """
        return keccak(text=f"{self.name}({','.join(param.kind for param in self.inputs)})")


@dataclass(frozen=True, kw_only=True, slots=True)
class Artifact:
    """A compiled contract."""

    name: str
    functions: dict[str, Item]
    events: tuple[Item, ...]
    errors: tuple[Item, ...]
    constructor: tuple[Param, ...]
    bytecode: bytes


@cache
def load_artifact(name: str) -> Artifact:
    """Read a contract's artifact from the package. `name` is one of CONTRACT_NAMES."""
    text = resources.files("covey.chain").joinpath("abi", f"{name}.json").read_text()
    document = json.loads(text)
    items = [(entry["type"], _parse_item(entry)) for entry in document["abi"]]
    return Artifact(
        name=name,
        functions={item.name: item for kind, item in items if kind == "function"},
        events=tuple(item for kind, item in items if kind == "event"),
        errors=tuple(item for kind, item in items if kind == "error"),
        constructor=next((item.inputs for kind, item in items if kind == "constructor"), ()),
        bytecode=bytes.fromhex(document["bytecode"].removeprefix("0x")),
    )


def encode_call(contract: str, function: str, args: Sequence[object]) -> bytes:
    """Encode a call: its selector and arguments."""
    item = load_artifact(contract).functions[function]
    return item.digest[:4] + encode_values(item.inputs, args)


def decode_result(contract: str, function: str, data: bytes) -> tuple[Any, ...]:
    """Decode the results of a call. Raises ValueError if the data does not match the function's result types."""
    return decode_values(load_artifact(contract).functions[function].outputs, data)


def encode_deployment(contract: str, args: Sequence[object]) -> bytes:
    """Encode a deployment: the bytecode and the constructor arguments."""
    artifact = load_artifact(contract)
    return artifact.bytecode + encode_values(artifact.constructor, args)


def encode_values(params: Sequence[Param], values: Sequence[object]) -> bytes:
    """Encode values as Solidity's abi.encode does. Raises ValueError if the number of values is wrong."""
    if len(params) != len(values):
        raise ValueError(f"{len(values)} values were given for {len(params)} parameters")
    return encode([param.kind for param in params], [_lower(param, value) for param, value in _zip(params, values)])


def decode_values(params: Sequence[Param], data: bytes) -> tuple[Any, ...]:
    """Decode values as Solidity's abi.decode does. Raises ValueError if the data does not match the types."""
    try:
        values = decode([param.kind for param in params], data)
    except (DecodingError, OverflowError) as error:
        raise ValueError(f"the ABI data cannot be decoded: {error}") from error
    return tuple(_lift(param, value) for param, value in _zip(params, values))


def describe_revert(data: bytes) -> str:
    """Return the reason of a revert as text, for example "NotTrainer(1, 0xAb...)".

    Unix times become dates, for example "NotFinal(2026-11-25 06:43:43 UTC)". Returns "no reason" if there is no data.
    """
    selector, rest = data[:4].hex(), data[4:]
    item = _errors().get(selector)
    try:
        if item is not None:
            values = decode_values(item.inputs, rest)
            return f"{item.name}({', '.join(_spell(param, value) for param, value in _zip(item.inputs, values))})"
        if selector == _ERROR:
            return str(decode(["string"], rest)[0])
        if selector == _PANIC:
            return f"Panic({decode(['uint256'], rest)[0]:#x})"
    except (ValueError, DecodingError):
        return f"reason that cannot be decoded: 0x{data.hex()}"
    return f"unknown error 0x{data.hex()}" if data else "no reason was returned"


def _spell(param: Param, value: object) -> str:
    """Return an error's value as text: a Unix time, which its name shows, as a date."""
    if not isinstance(value, int) or not (param.name.endswith("At") or param.name == "deadline"):
        return str(value)
    return f"{datetime.fromtimestamp(value, UTC):%Y-%m-%d %H:%M:%S} UTC" if value <= _LAST_TIME else "never"


def to_snake(name: str) -> str:
    """Convert a name to snake case, for example "policyVersion" to "policy_version"."""
    return "".join("_" + char.lower() if char.isupper() else char for char in name).lstrip("_")


@cache
def _errors() -> dict[str, Item]:
    return {item.digest[:4].hex(): item for name in CONTRACT_NAMES for item in load_artifact(name).errors}


def _parse_item(entry: dict[str, Any]) -> Item:
    return Item(
        name=entry.get("name", ""),
        inputs=tuple(_parse_param(param) for param in entry.get("inputs", ())),
        outputs=tuple(_parse_param(param) for param in entry.get("outputs", ())),
    )


def _parse_param(entry: dict[str, Any]) -> Param:
    members = tuple(_parse_param(member) for member in entry.get("components", ()))
    kind = entry["type"]
    if members:
        kind = f"({','.join(member.kind for member in members)}){kind.removeprefix('tuple')}"
    return Param(name=entry["name"], kind=kind, members=members, is_indexed=entry.get("indexed", False))


def _element(param: Param) -> Param:
    return Param(name=param.name, kind=param.kind.removesuffix("[]"), members=param.members, is_indexed=False)


def _lift(param: Param, value: Any) -> Any:
    if param.kind.endswith("[]"):
        return tuple(_lift(_element(param), entry) for entry in value)
    if param.members:
        return tuple(_lift(member, entry) for member, entry in _zip(param.members, value))
    if param.kind == "address":
        return Address(to_checksum_address(value))
    return hash_from_bytes(value) if param.kind == "bytes32" else value


def _lower(param: Param, value: Any) -> Any:
    if param.kind.endswith("[]"):
        return [_lower(_element(param), entry) for entry in value]
    if param.members:
        return tuple(_lower(member, entry) for member, entry in _zip(param.members, value))
    return hash_to_bytes(value) if param.kind == "bytes32" else value


def _zip(params: Sequence[Param], values: Sequence[Any]) -> list[tuple[Param, Any]]:
    return list(zip(params, values, strict=True))
