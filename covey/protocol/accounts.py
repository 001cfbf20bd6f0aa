"""The names of eth-account that Covey uses. Only this module imports eth-account.

eth-account imports py_ecc, which raises Python's recursion limit to 100,000. With that limit, JSON with a few thousand
nested brackets overflows the C stack and ends the process. This module therefore restores Python's default limit, with
which the same JSON raises RecursionError. web3 imports eth-account too, so every module that imports web3 imports this
one.
"""

import sys

from eth_account import Account
from eth_account.messages import SignableMessage, encode_defunct, encode_typed_data
from eth_account.signers.local import LocalAccount

__all__ = ["RECURSION_LIMIT", "Account", "LocalAccount", "SignableMessage", "encode_defunct", "encode_typed_data"]

RECURSION_LIMIT = 1000
"""Python's default limit on nested calls."""

sys.setrecursionlimit(RECURSION_LIMIT)
