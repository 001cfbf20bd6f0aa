"""The names of eth-account that Covey uses; the one module that imports it.

eth-account imports py_ecc, which raises Python's recursion limit to 100,000.  With that limit, JSON of some thousand
brackets from a peer overflows the stack of C and ends the process.  So this module sets Python's own limit again, with
which such JSON is a RecursionError.  web3 imports eth-account too; every module that imports web3 imports this one.
"""

import sys

from eth_account import Account
from eth_account.messages import SignableMessage, encode_defunct, encode_typed_data
from eth_account.signers.local import LocalAccount

__all__ = ["RECURSION_LIMIT", "Account", "LocalAccount", "SignableMessage", "encode_defunct", "encode_typed_data"]

RECURSION_LIMIT = 1000
"""Python's own limit on nested calls."""

sys.setrecursionlimit(RECURSION_LIMIT)
