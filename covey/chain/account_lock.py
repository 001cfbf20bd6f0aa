"""Locks between processes of one user on one machine that send transactions of the same account.

Two processes that choose a nonce at the same time choose the same one, and one transaction would displace the other.
A process on another machine is not seen. It can only delay transactions, because a displaced intent gets a new nonce.
"""

import fcntl
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Event as Flag

from covey.chain.deployment import Deployment
from covey.errors import TransientError
from covey.protocol.ids import Address
from covey.runtime.log import get_logger
from covey.runtime.state_folder import open_state_folder

LOCK_SECONDS = 30.0
"""Maximum time in seconds to wait for a lock."""
_PAUSE = 0.02


def name_account(deployment: Deployment, account: Address) -> str:
    """Return a file name for an account on a chain. Devnets with the same id have different names."""
    chain = deployment.start_hash or deployment.epoch_ledger
    return f"{deployment.chain_id}-{chain[2:10].lower()}-{account}"


@contextmanager
def lock_account(deployment: Deployment, account: Address, *, timeout_s: float = LOCK_SECONDS) -> Iterator[None]:
    """Hold the account's lock for as long as transactions are signed and sent.

    Raises TransientError("account_busy") if another process holds it for more than `timeout_s`.
    """
    with lock_file(open_state_folder() / f"{name_account(deployment, account)}.lock", account, timeout_s=timeout_s):
        yield


@contextmanager
def lock_file(path: Path, account: Address, *, timeout_s: float = LOCK_SECONDS) -> Iterator[None]:
    """Hold the lock of one file, if the file can be opened. Raises TransientError("account_busy") as above."""
    deadline = time.monotonic() + timeout_s
    with ExitStack() as stack:
        try:
            file = stack.enter_context(path.open("ab"))
        except OSError as error:
            get_logger().warning("account is not locked", file=str(path), reason=error.strerror)
            yield
            return
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() >= deadline:
                    raise TransientError(
                        "account_busy",
                        f"another process on this machine sends transactions of {account}, and holds {path}. "
                        "Wait until it ends, then run this command again",
                    ) from error
            Flag().wait(_PAUSE)
        yield
