"""Carries intents from the outbox to the chain; called by role loops (`pump`) and by commands (`send_and_wait`).

It may stop at any instruction and be started again: each intent has its effect once.  One process sends for a key;
what its owner sends by hand meanwhile takes a nonce, and nothing else, from it.
"""

import time
from collections.abc import Callable
from threading import Event as Flag

from covey.chain.advice import add_advice
from covey.chain.client import Call, ChainClient, MinedTransaction
from covey.chain.outbox import Attempt, Entry, Intent, IntentState, OutboxStore
from covey.chain.wallet import Wallet
from covey.errors import OperatorError, ProtocolError, TransientError

GAS_MARGIN = 1.25
FEE_STEP = 1.25
"""A node takes a replacement from 10 % more on; a little extra spares a second one."""


class Sender:
    """One wallet and one way to send.  Intents go out in the order of `put`, one in flight at a time, because a later
    one often builds on an earlier (approve, then stake); several may wait for confirmations.
    """

    def __init__(
        self,
        client: ChainClient,
        wallet: Wallet,
        store: OutboxStore,
        *,
        chain_id: int,
        confirmations: int = 0,
        stuck_after: int = 5,
    ) -> None:
        """`chain_id`: the deployment's, so that what is signed for it cannot be mined on another chain.
        `confirmations`: blocks on top before it counts.  `stuck_after`: blocks until a higher fee is offered.
        """
        self._client = client
        self._wallet = wallet
        self._store = store
        self._chain_id = chain_id
        self._confirmations = confirmations
        self._stuck_after = stuck_after

    def pump(self) -> int:
        """Move every intent as far as it goes now; return how many are still pending.

        Raise TransientError when the node does not answer, and OperatorError when the account cannot pay for gas.
        A contract's no is kept in the entry (REVERTED) and raises nothing.
        """
        pending = self._store.list_pending()
        if not pending:
            return 0
        for entry in pending:
            try:
                goes_on = self._advance(entry)
            except OperatorError as error:
                raise self._name_payer(entry, error) from error
            if not goes_on:
                break
        return len(self._store.list_pending())

    def _name_payer(self, entry: Entry, error: OperatorError) -> OperatorError:
        """The node says that there is too little ether, not whose."""
        if error.code != "insufficient_funds":
            return error
        address, label = self._wallet.address, entry.intent.call.label
        return OperatorError(
            error.code,
            f"{address} has {self._client.get_balance(address)} wei, too little for the gas of {label}",
            fix=f"Send ether to {address}; on a devnet run covey devnet fund {address}",
        )

    def send_and_wait(
        self, key: str, call: Call, *, timeout_s: float = 60.0, wait: Callable[[float], object] | None = None
    ) -> Entry:
        """Put an intent and pump until it is mined; raise ProtocolError("reverted") with the contract's reason,
        TransientError("not_mined") after `timeout_s` seconds; the intent stays and the next pump goes on with it.
        """
        pause = Flag().wait if wait is None else wait
        deadline = time.monotonic() + timeout_s
        self._store.put(Intent(key=key, call=call))
        while True:
            self.pump()
            entry = self._store.find(key)
            if entry is not None and entry.state is IntentState.REVERTED:
                raise ProtocolError("reverted", f"{call.label}: {add_advice(entry.reason)}")
            if entry is not None and entry.state is IntentState.MINED:
                return entry
            if time.monotonic() >= deadline:
                raise TransientError(
                    "not_mined",
                    f"{call.label} is in no block after {timeout_s} s, and may still come into one",
                )
            pause(0.1)

    def _advance(self, entry: Entry) -> bool:
        """Do what the entry needs next; return whether the one behind it may go."""
        if entry.nonce is None:
            signed = self._sign_first(entry)
            if signed is None:
                return True
            entry = signed
        mined = self._find_mined(entry)
        if mined is None:
            entry = self._replace_when_stuck(entry)
            mined = self._send(entry)
        return mined is not None and self._record(entry, mined)

    def _sign_first(self, entry: Entry) -> Entry | None:
        """None when the contract would refuse the call: no nonce is spent on it."""
        call = entry.intent.call
        try:
            gas = self._client.estimate_gas(self._wallet.address, call)
        except ProtocolError as error:
            self._store.record_reverted(entry.intent.key, error.message, None)
            return None
        # The store knows transactions that were never sent, the node those which this store never saw.
        nonce = max(self._store.get_next_nonce(), self._client.count_transactions(self._wallet.address, "pending"))
        return self._sign(entry, nonce, gas, floor=None)

    def _replace_when_stuck(self, entry: Entry) -> Entry:
        newest = entry.attempts[-1]
        if entry.nonce is None or self._client.block_number() - newest.signed_at < self._stuck_after:
            return entry
        # An earlier nonce may be what holds it up, or this one is used up: then a higher fee changes nothing.
        if self._client.count_transactions(self._wallet.address) != entry.nonce:
            return entry
        gas = self._estimate_again(entry)
        return entry if gas is None else self._sign(entry, entry.nonce, gas, floor=newest)

    def _estimate_again(self, entry: Entry) -> int | None:
        """None when the call would fail now: perhaps an attempt was mined in between, and the next pump will see it."""
        try:
            return self._client.estimate_gas(self._wallet.address, entry.intent.call)
        except ProtocolError:
            return None

    def _sign(self, entry: Entry, nonce: int, gas: int, *, floor: Attempt | None) -> Entry:
        head = self._client.get_block("latest")
        priority_fee = self._client.get_priority_fee()
        max_fee = 2 * head.base_fee + priority_fee
        if floor is not None:
            priority_fee = max(priority_fee, int(floor.priority_fee * FEE_STEP) + 1)
            max_fee = max(max_fee, int(floor.max_fee * FEE_STEP) + 1, priority_fee)
        call = entry.intent.call
        signed = self._wallet.sign_transaction(
            {
                "type": 2,
                "chainId": self._chain_id,
                "nonce": nonce,
                "to": call.to,
                "data": call.data,
                "value": call.value,
                "gas": int(gas * GAS_MARGIN),
                "maxFeePerGas": max_fee,
                "maxPriorityFeePerGas": priority_fee,
            }
        )
        attempt = Attempt(
            hash=signed.hash, raw=signed.raw, max_fee=max_fee, priority_fee=priority_fee, signed_at=head.number
        )
        self._store.record_signed(entry.intent.key, nonce, attempt)
        kept = self._store.find(entry.intent.key)
        if kept is None:
            raise OperatorError("outbox_lost", f"{entry.intent.key} vanished", fix="Use one process for one outbox")
        return kept

    def _send(self, entry: Entry) -> MinedTransaction | None:
        """Broadcast the newest attempt (again); the transaction, should it be in a block already."""
        try:
            self._client.send_raw(entry.attempts[-1].raw)
        except ProtocolError as error:
            if error.code == "nonce_too_low":
                return self._find_or_displace(entry)
            # The node holds another attempt of ours and finds this one's fee too low: the next replacement raises it.
            if error.code != "underpriced":
                raise
        return self._find_mined(entry)

    def _find_or_displace(self, entry: Entry) -> MinedTransaction | None:
        """The nonce is used up: by an attempt of ours, or by somebody else with this key (its owner's own command).

        In the second case no attempt can be mined any more, and the intent starts anew with a fresh nonce.  A node that
        lags may not show our own transaction yet, so this waits as long as for a stuck one.
        """
        mined = self._find_mined(entry)
        waited = self._client.block_number() - entry.attempts[-1].signed_at
        if mined is None and waited >= self._stuck_after:
            self._store.record_displaced(entry.intent.key)
        return mined

    def _find_mined(self, entry: Entry) -> MinedTransaction | None:
        for attempt in reversed(entry.attempts):
            mined = self._client.find_mined(attempt.hash)
            if mined is not None:
                return mined
        return None

    def _record(self, entry: Entry, mined: MinedTransaction) -> bool:
        """Settle what is deep enough.  What is not stays SIGNED, so that a reorganisation has it sent again."""
        if self._client.block_number() - mined.block_number < self._confirmations:
            return True
        if mined.is_success:
            self._store.record_mined(entry.intent.key, mined.block_number, mined.hash)
        else:
            self._store.record_reverted(entry.intent.key, self._find_reason(entry, mined), mined.hash)
        return True

    def _find_reason(self, entry: Entry, mined: MinedTransaction) -> str:
        """The contract's words, found by running the call again on the block before."""
        call = entry.intent.call
        try:
            self._client.call(call.to, call.data, block=mined.block_number - 1, sender=self._wallet.address)
        except (ProtocolError, TransientError) as error:
            return error.message
        return f"it failed in block {mined.block_number}, though not on the block before"
