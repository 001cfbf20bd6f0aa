"""Re-exports the parts of eth-account that Covey uses. Only this module imports eth-account.

eth-account imports py_ecc for keystores of BLS keys (EIP-2335), which Covey does not read. It computes pairings during
the import, which takes more time than all of the rest, and it raises Python's recursion limit. This module therefore
imports eth-account without the pairings, and restores the limit (see `limit_recursion`). web3 imports eth-account too,
so the module that imports web3 imports this one first.
"""

import sys
from types import ModuleType

from hexbytes import HexBytes

from covey.runtime.recursion import limit_recursion

__all__ = ["Account", "read_gas"]

_PAIRINGS: dict[str, dict[str, object]] = {
    "py_ecc.bls": {"G2ProofOfPossession": None},
    "py_ecc.bls12_381": {
        "curve_order": 52435875175126190479447740508185965837690552500527637822603658699938581184513,  # EIP-2333
    },
}
"""What eth-account imports from the modules of py_ecc that compute pairings, by module."""

_absent = [name for name in _PAIRINGS if name not in sys.modules]
for _name in _absent:
    sys.modules[_name] = ModuleType(_name)
    vars(sys.modules[_name]).update(_PAIRINGS[_name])
try:
    from eth_account import Account
    from eth_account.typed_transactions.typed_transaction import TypedTransaction
finally:
    for _name in _absent:
        del sys.modules[_name]

limit_recursion()


def read_gas(raw: bytes) -> int:
    """Return the gas limit of a signed transaction of a type, as EIP-1559 ones are."""
    return int(TypedTransaction.from_bytes(HexBytes(raw)).as_dict()["gas"])


def read_data(raw: bytes) -> bytes:
    """Return the data of a signed transaction of a type, as EIP-1559 ones are."""
    return bytes(TypedTransaction.from_bytes(HexBytes(raw)).as_dict()["data"])
