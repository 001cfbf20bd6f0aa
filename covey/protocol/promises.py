"""How long an operator's promise may run, which worker, coordinator and EpochLedger must agree on."""

KEPT_EPOCHS = 256
"""Number of newest epochs that EpochLedger keeps of each pool. Rewards cannot be claimed from older ones."""


def compute_longest_promise(epoch_length: int) -> int:
    """Return the longest time in seconds from the signing of a promise until it is due.

    It is a quarter of the shortest time for which the ledger keeps epochs, as in `Omissions.sol`. A challenge needs the
    epoch of the receipt, and comes at most another quarter later. `epoch_length` is the pool's term, in seconds.
    """
    return KEPT_EPOCHS // 4 * epoch_length
