"""Watches mined transactions until their blocks are final.

If a reorganisation moves a transaction to a different block, the new block is recorded. If it drops the transaction,
the intent becomes SIGNED again.
"""

import time

from covey.chain.finality import KEPT_BLOCKS, Finality
from covey.chain.json_rpc import ChainClient
from covey.chain.node_answers import Block, MinedTransaction
from covey.chain.outbox import Entry, OutboxStore, Place
from covey.chain.wallet import Wallet
from covey.errors import ProtocolError, TransientError
from covey.runtime.log import get_logger


class MinedWatch:
    """Watches the mined transactions of one account."""

    def __init__(
        self, client: ChainClient, wallet: Wallet, store: OutboxStore, *, finality: Finality, seconds: float
    ) -> None:
        """Watch the account of `wallet`. `seconds` is the minimum time between two queries of the chain."""
        self._client, self._wallet, self._store = client, wallet, store
        self._finality: Finality = finality
        self._seconds = seconds
        self._watched_at = float("-inf")

    def watch(self) -> None:
        """Check whether the blocks of mined transactions are still in the chain, and record changes."""
        now = time.monotonic()
        if now - self._watched_at < self._seconds:
            return
        self._watched_at = now
        mined = [(entry, entry.place) for entry in self._store.list_provisional() if entry.place is not None]
        if not mined:
            return
        head = self._client.get_block("latest")
        blocks = {number: self._client.find_block(number) for number in {place.block_number for _, place in mined}}
        for entry, place in mined:
            block = blocks[place.block_number]
            # A node without a block of that number only lags, so nothing has changed.
            if block is not None and block.hash != place.block_hash:
                self._look_up(entry, head)
        final = self._find_final(head)
        if any(place.block_number <= final for _, place in mined):
            self._store.record_final(final)

    def find(self, entry: Entry) -> MinedTransaction | None:
        """Return the mined attempt of an entry. None if no attempt is mined."""
        for attempt in reversed(entry.attempts):
            mined = self._client.find_mined(attempt.hash)
            if mined is not None:
                return mined
        return None

    def record(self, entry: Entry, mined: MinedTransaction) -> bool:
        """Record the block of a mined attempt, and the contract's reason if it failed. Always returns True."""
        place = Place(block_number=mined.block_number, block_hash=mined.block_hash, transaction_hash=mined.hash)
        if mined.is_success:
            self._store.record_mined(entry.intent.key, place)
        else:
            self._store.record_reverted(entry.intent.key, self._find_reason(entry, mined), place)
        return True

    def _look_up(self, entry: Entry, head: Block) -> None:
        """Record the new state of an entry whose block was replaced. Its transaction may be in a different block."""
        mined = self.find(entry)
        if mined is not None:
            self.record(entry, mined)
            return
        get_logger().warning("transaction dropped by a reorganisation", key=entry.intent.key, nonce=entry.nonce)
        self._store.record_dropped(entry.intent.key, offered_at=head.number)

    def _find_final(self, head: Block) -> int:
        """Return the number of the newest block that counts as final. Negative if there is none."""
        deep = head.number - KEPT_BLOCKS
        if self._finality == "latest" or deep < 0:
            return deep
        block = self._client.find_block(self._finality)
        return -1 if block is None else min(deep, block.number)

    def _find_reason(self, entry: Entry, mined: MinedTransaction) -> str:
        """Return the contract's reason. It is found by repeating the call at the previous block."""
        call, before = entry.intent.call, mined.block_number - 1
        try:
            self._client.call(call.to, call.data, block=before, sender=self._wallet.address, value=call.value)
        except (ProtocolError, TransientError) as error:
            return error.message
        return (
            f"the transaction failed in block {mined.block_number}, but the same call does not fail on the block before"
        )
