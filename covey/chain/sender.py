"""Carries intents from the outbox to the chain; called by role loops (`pump`) and by commands (`send_and_wait`).

It may stop at any instruction and be started again: each intent has its effect once.  One process sends for a key;
what its owner sends by hand meanwhile takes a nonce, and nothing else, from it.  A mined transaction is looked at until
its block is final; one that a reorganisation drops is sent again, with the nonce that it has.
"""

import time
from collections.abc import Callable
from threading import Event as Flag

from covey.chain.advice import add_advice
from covey.chain.finality import Finality
from covey.chain.json_rpc import Block, Call, ChainClient, MinedTransaction
from covey.chain.mined import MinedWatch
from covey.chain.outbox import Attempt, Entry, Intent, IntentState, OutboxStore, Refusal
from covey.chain.wallet import Wallet
from covey.errors import OperatorError, ProtocolError, TransientError
from covey.runtime.log import get_logger

GAS_MARGIN = 1.25
FEE_STEP = 1.25
"""A node takes a replacement from 10 % more on; a little extra spares a second one."""


class Sender:
    """One wallet and one way to send.  Intents go out in the order of `put`, one in flight at a time, because a later
    one often builds on an earlier one (approve, then stake).  What a reorganisation dropped goes first, all at once.
    """

    def __init__(
        self,
        client: ChainClient,
        wallet: Wallet,
        store: OutboxStore,
        *,
        chain_id: int,
        finality: Finality = "latest",
        stuck_after: int = 5,
        watch_seconds: float = 1.0,
    ) -> None:
        """`chain_id`: the deployment's, so that what is signed for it cannot be mined on another chain.
        `finality`: a mined transaction is looked at until the node calls its block this and 128 blocks follow it.
        `stuck_after`: blocks until a higher fee is offered.  `watch_seconds`: least time between two such looks.
        """
        self._client = client
        self._wallet = wallet
        self._store = store
        self._chain_id = chain_id
        self._stuck_after = stuck_after
        self._mined = MinedWatch(client, wallet, store, finality=finality, seconds=watch_seconds)

    def pump(self) -> int:
        """Move every intent as far as it goes now; return how many are in no block yet.

        Raise TransientError when the node does not answer, and OperatorError when the account cannot pay for gas.
        A contract's refusal is kept in the entry (REVERTED) and raises nothing.
        """
        self._mined.watch()
        pending = self._store.list_pending()
        if not pending:
            return 0
        head = self._client.get_block("latest")
        signed = sorted((entry for entry in pending if entry.nonce is not None), key=lambda entry: entry.nonce or 0)
        waiting = [entry for entry in signed if not self._deliver(entry, head)]
        for entry in () if waiting else pending:
            if entry.nonce is None and not self._begin(entry, head):
                break
        return len(self._store.list_pending())

    def send_and_wait(
        self, key: str, call: Call, *, timeout_s: float = 60.0, wait: Callable[[float], object] | None = None
    ) -> Entry:
        """Put an intent and pump until it is in a block.

        Raises ProtocolError("reverted") with the contract's reason, already for the first refusal: whoever waits can
        try again.  Raises TransientError("not_mined") after `timeout_s` seconds; the next pump goes on with the intent.
        """
        pause = Flag().wait if wait is None else wait
        deadline = time.monotonic() + timeout_s
        self._store.put(Intent(key=key, call=call))
        while True:
            self.pump()
            entry = self._store.find(key)
            if entry is not None and (entry.state is IntentState.REVERTED or entry.refusal is not None):
                raise ProtocolError("reverted", f"{call.label}: {add_advice(entry.reason)}")
            if entry is not None and entry.state is IntentState.MINED:
                return entry
            if time.monotonic() >= deadline:
                raise TransientError(
                    "not_mined",
                    f"{call.label} is in no block after {timeout_s} s, and may still come into one",
                )
            pause(0.1)

    def _deliver(self, entry: Entry, head: Block) -> bool:
        """Send what is signed, unless it is mined; return whether it is in a block."""
        mined = self._mined.find(entry)
        if mined is None:
            mined = self._send(self._replace_when_stuck(entry, head), head)
        return mined is not None and self._mined.record(entry, mined)

    def _replace_when_stuck(self, entry: Entry, head: Block) -> Entry:
        """The entry with one more attempt that offers a higher fee, if a low one may be what holds it up."""
        if entry.nonce is None or not self._is_stuck(entry, head):
            return entry
        used = self._client.count_transactions(self._wallet.address)
        if used < entry.nonce:
            self._fill_gap(entry.nonce, head)
        if used != entry.nonce:
            return entry
        gas = self._estimate_again(entry)
        return entry if gas is None else self._sign(entry, entry.nonce, gas, head)

    def _is_stuck(self, entry: Entry, head: Block) -> bool:
        return head.number - (entry.offered_at or 0) >= self._stuck_after

    def _fill_gap(self, nonce: int, head: Block) -> None:
        """A lower nonce of the owner's own transaction is free again: a transfer of nothing takes it."""
        free = self._find_free_nonce()
        if free >= nonce:
            return
        get_logger().warning("a transaction of this key vanished, its nonce is filled", nonce=free)
        key = f"fill/{free}/{head.hash}"
        # The key as data: two transfers of one nonce and fee would be the same transaction, which one intent may have.
        call = Call(to=self._wallet.address, data=key.encode(), label="a transfer of nothing")
        intent = Intent(key=key, call=call)
        self._store.put(intent)
        filler = self._require_entry(intent.key)
        gas = self._estimate_again(filler)
        if gas is not None:
            self._send(self._sign(filler, free, gas, head), head)

    def _estimate_again(self, entry: Entry) -> int | None:
        """None when the call would fail now: perhaps an attempt was mined in between, and the next pump will see it."""
        try:
            return self._client.estimate_gas(self._wallet.address, entry.intent.call)
        except ProtocolError:
            return None

    def _send(self, entry: Entry, head: Block) -> MinedTransaction | None:
        """Broadcast the newest attempt (again); the transaction, should it be in a block already."""
        try:
            self._client.send_raw(entry.attempts[-1].raw)
        except ProtocolError as error:
            if error.code == "nonce_too_low":
                return self._find_or_displace(entry, head)
            # The node holds another attempt of ours and finds this one's fee too low: the next replacement raises it.
            if error.code != "underpriced":
                raise
        except OperatorError as error:
            raise self._name_payer(entry, error) from error
        return self._mined.find(entry)

    def _find_or_displace(self, entry: Entry, head: Block) -> MinedTransaction | None:
        """The nonce is used up: by an attempt of ours, or by somebody else with this key (its owner's own command).

        In the second case no attempt can be mined any more, and the intent starts over with a fresh nonce.  A node that
        lags may not show our own transaction yet, so this asks whether the nonce was used some blocks ago already.
        """
        before = max(0, head.number - self._stuck_after)
        used = self._client.count_transactions(self._wallet.address, before)
        mined = self._mined.find(entry)
        if mined is None and entry.nonce is not None and used > entry.nonce:
            get_logger().warning("another transaction took the nonce", key=entry.intent.key, nonce=entry.nonce)
            self._store.record_displaced(entry.intent.key)
        return mined

    def _begin(self, entry: Entry, head: Block) -> bool:
        """Sign and send an intent, unless the contract refuses it; return whether the next one may go."""
        try:
            gas = self._client.estimate_gas(self._wallet.address, entry.intent.call)
        except ProtocolError as error:
            self._refuse(entry, error.message, head)
            return True
        except OperatorError as error:
            raise self._name_payer(entry, error) from error
        signed = self._sign(entry, self._find_free_nonce(), gas, head)
        mined = self._send(signed, head)
        return mined is not None and self._mined.record(signed, mined)

    def _refuse(self, entry: Entry, reason: str, head: Block) -> None:
        """Keep a refusal, for which no nonce is spent.  It is final once no node that lags explains it."""
        key, before = entry.intent.key, entry.refusal
        refusal = Refusal.at(head.number) if before is None else before.repeat(head.number)
        if refusal.stands:
            get_logger().warning("the contract refuses a call for good", key=key, reason=reason, heads=refusal.heads)
            self._store.record_reverted(key, reason, None)
        elif refusal != before:
            if refusal.heads == 2:  # one alone may be of a node that lags
                get_logger().warning("the contract refuses a call, which is tried again", key=key, reason=reason)
            self._store.record_refused(key, refusal, reason)

    def _find_free_nonce(self) -> int:
        """The lowest nonce that neither the chain nor an intent has: one that vanished is filled first."""
        nonce, held = self._client.count_transactions(self._wallet.address, "pending"), self._store.list_nonces()
        while nonce in held:
            nonce += 1
        return nonce

    def _sign(self, entry: Entry, nonce: int, gas: int, head: Block) -> Entry:
        """The entry with one more attempt, which is stored."""
        priority_fee = self._client.get_priority_fee()
        max_fee = 2 * head.base_fee + priority_fee
        if entry.nonce == nonce:
            newest = entry.attempts[-1]
            priority_fee = max(priority_fee, int(newest.priority_fee * FEE_STEP) + 1)
            max_fee = max(max_fee, int(newest.max_fee * FEE_STEP) + 1, priority_fee)
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
        attempt = Attempt(hash=signed.hash, raw=signed.raw, max_fee=max_fee, priority_fee=priority_fee)
        self._store.record_signed(entry.intent.key, nonce, attempt, offered_at=head.number)
        return self._require_entry(entry.intent.key)

    def _require_entry(self, key: str) -> Entry:
        kept = self._store.find(key)
        if kept is None:
            raise OperatorError("outbox_lost", f"{key} vanished", fix="Use one process for one outbox")
        return kept

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
