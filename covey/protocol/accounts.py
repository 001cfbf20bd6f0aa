"""Re-exports the parts of eth-account that Covey uses. Only this module imports eth-account.

Importing eth-account raises Python's recursion limit, so this module restores the limit (see `limit_recursion`). web3
imports eth-account too, so the module that imports web3 imports this one.
"""

from eth_account import Account

from covey.runtime.recursion import limit_recursion

__all__ = ["Account"]

limit_recursion()
