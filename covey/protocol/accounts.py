"""Re-exports the parts of eth-account that Covey uses. Only this module imports eth-account.

Importing eth-account takes half a second of a core, so only what signs a transaction imports this module, and does so
late. The import raises Python's recursion limit, and this module restores it (see `limit_recursion`).
"""

from eth_account import Account

from covey.runtime.recursion import limit_recursion

__all__ = ["Account"]

limit_recursion()
