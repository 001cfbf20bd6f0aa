"""Base of the classes in `covey.chain.contracts` and `covey.chain.token`: encodes calls and reads at one block."""

from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, ClassVar

from covey.chain import abi_codec
from covey.chain.json_rpc import BlockTag, Call, ChainClient
from covey.errors import TransientError
from covey.protocol.ids import Address

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


class Contract:
    """Base of all contract classes."""

    NAME: ClassVar[str]

    def __init__(self, client: ChainClient, address: Address, block: BlockTag = "latest") -> None:
        self.address = address
        self._client = client
        self._block = block

    def _read(self, function: str, *args: object) -> Any:
        data = self._client.call(self.address, abi_codec.encode_call(self.NAME, function, args), block=self._block)
        try:
            values = abi_codec.decode_result(self.NAME, function, data)
        except ValueError as error:
            # A node answers with empty data if there is no contract at the address yet: at an old block, or if it lags.
            raise TransientError("no_contract", f"there is no contract {self.NAME} at {self.address}") from error
        return values[0] if len(values) == 1 else values

    def _write(self, function: str, *args: object, value: int = 0) -> Call:
        data = abi_codec.encode_call(self.NAME, function, args)
        return Call(to=self.address, data=data, value=value, label=f"{self.NAME}.{function}")


def name_fields(kind: type["DataclassInstance"], values: Sequence[Any]) -> dict[str, Any]:
    """Return the values of a struct by the names of its dataclass."""
    return dict(zip((field.name for field in fields(kind)), values, strict=True))
