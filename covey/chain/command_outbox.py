"""Durable outboxes of commands: one per account and chain, in the folder of the user's state.

A command that ends early leaves its signed transaction in the outbox. The same command then goes on with that
transaction, so that nothing is paid twice. A call that was not signed is forgotten, because only its command wants it.
Once the transaction has been mined for REPEAT_SECONDS, the same command means another one.
"""

import time
from contextlib import closing
from functools import partial

from covey.chain.account_lock import lock_account, lock_file, name_account
from covey.chain.deployment import Deployment
from covey.chain.fees import FeeLimits
from covey.chain.json_rpc import Call, ChainClient
from covey.chain.outbox import Entry, OutboxStore
from covey.chain.sender import Sender
from covey.chain.sqlite_outbox import SqliteOutbox
from covey.chain.wallet import Wallet
from covey.errors import ProtocolError
from covey.runtime.log import get_logger
from covey.runtime.state_folder import open_state_folder

REPEAT_SECONDS = 3600.0
"""Seconds after which the same command is no longer taken for a repetition, if its transaction was mined meanwhile."""
_FORGOTTEN = "its command has ended"


def send_durably(
    client: ChainClient, wallet: Wallet, deployment: Deployment, call: Call, *, limits: FeeLimits
) -> Entry:
    """Send a call of a command and wait until it is mined. Raises as `Sender.send_and_wait` does.

    Raises TransientError("account_busy") if another command of this account is running.
    """
    folder, name = open_state_folder(), name_account(deployment, wallet.address)
    with (
        lock_file(folder / f"{name}.commands.lock", wallet.address),
        closing(SqliteOutbox(folder / f"{name}.sqlite")) as outbox,
    ):
        key = _find_same(outbox, call, client)
        if key is not None:
            get_logger().warning(
                "an earlier command sent this transaction, and this one goes on with it", call=call.label
            )
        key = key or f"{call.label}/{time.time_ns()}"
        _forget_unsigned(outbox, key)
        sender = Sender(
            client,
            wallet,
            outbox,
            chain_id=deployment.chain_id,
            limits=limits,
            lock=partial(lock_account, deployment, wallet.address),
        )
        try:
            return sender.send_and_wait(key, call)
        except ProtocolError:
            _forget_unsigned(outbox, "")
            raise


def _find_same(outbox: OutboxStore, call: Call, client: ChainClient) -> str | None:
    """Return the key of a signed transaction that makes the same call and is not finished. None if there is none."""
    for entry in outbox.list_pending():
        if entry.nonce is None or entry.intent.call != call:
            continue
        age_s = (time.time_ns() - int(entry.intent.key.rpartition("/")[2])) / 1e9
        is_over = age_s > REPEAT_SECONDS and any(client.find_mined(attempt.hash) for attempt in entry.attempts)
        if not is_over:
            return entry.intent.key
    return None


def _forget_unsigned(outbox: OutboxStore, kept: str) -> None:
    for entry in outbox.list_pending():
        if entry.nonce is None and entry.intent.key != kept:
            outbox.record_reverted(entry.intent.key, _FORGOTTEN, None)
