"""Sends the intents of the outbox to the chain. Role loops use `pump`, and commands use `send_and_wait`.

The process can be killed and restarted at any point, and each intent still takes effect once. Only one process may send
for a key. If the owner sends a transaction by hand meanwhile, it only uses a nonce. A mined transaction is watched
until its block is final. If a reorganisation drops it, it is sent again with the same nonce.
"""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from threading import Event as Flag

from covey.chain.advice import add_advice
from covey.chain.amounts import ETHER, format_amount
from covey.chain.drawing_blocks import find_first_block
from covey.chain.fees import DAY, FeeLimits, compute_cost
from covey.chain.finality import Finality
from covey.chain.json_rpc import Call, ChainClient
from covey.chain.mined import MinedWatch
from covey.chain.node_answers import Block, MinedTransaction
from covey.chain.outbox import Attempt, Entry, Intent, IntentState, OutboxStore, Refusal
from covey.chain.wallet import Wallet
from covey.errors import CoveyError, OperatorError, ProtocolError, TransientError
from covey.runtime.log import get_logger

GAS_MARGIN = 1.25
LAG_BLOCKS, LAG_SECONDS = 5, 30.0
"""Blocks and seconds that must have passed since a nonce was used by another transaction, before that counts. A node
that lags shows an attempt of the intent later than the count of the account's transactions.
"""
STUCK_SECONDS = 60.0
"""Seconds, by the clock of the chain, after which a transaction that is in no block is replaced by a dearer one."""


class Sender:
    """Sends the intents of one wallet in the order of `put`, one at a time.

    A later intent often depends on an earlier one (approve, then stake). Transactions that a reorganisation dropped are
    sent first, all at once.
    """

    def __init__(
        self,
        client: ChainClient,
        wallet: Wallet,
        store: OutboxStore,
        *,
        chain_id: int,
        finality: Finality = "latest",
        limits: FeeLimits = FeeLimits(),  # noqa: B008 (it is frozen)
        lock: Callable[[], AbstractContextManager[object]] = nullcontext,
        stuck_seconds: float = STUCK_SECONDS,
        lag_seconds: float = LAG_SECONDS,
        watch_seconds: float = 1.0,
    ) -> None:
        """Create a sender.

        `chain_id` is the deployment's, so that a signed transaction cannot be mined on a different chain. The fee is
        increased after `stuck_seconds`, up to `limits`. A mined transaction is watched until the node gives its block
        the tag `finality` and 128 blocks follow it. `watch_seconds` is the minimum time between two such checks.

        `lock` is held by each pump, so that no other process of this machine chooses a nonce of the account meanwhile.
        """
        self._client = client
        self._wallet = wallet
        self._store = store
        self._chain_id = chain_id
        self._limits = limits
        self._lock = lock
        self._stuck_seconds, self._lag_seconds = stuck_seconds, lag_seconds
        self._mined = MinedWatch(client, wallet, store, finality=finality, seconds=watch_seconds)

    def pump(self) -> int:
        """Advance every intent as far as possible now. Returns the number of intents that are not mined yet.

        If a contract refuses a call, the entry records it as REVERTED, and nothing is raised.
        Raises TransientError if the node does not respond, if the fees exceed `limits`, or if another process holds the
        account for long. Raises OperatorError if the account cannot pay for gas.
        """
        self._mined.watch()
        if not self._store.list_pending():
            return 0
        with self._lock():
            return self._advance(self._store.list_pending())

    def _advance(self, pending: list[Entry]) -> int:
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
        """Put an intent and pump until it is mined.

        Raises ProtocolError("reverted") with the contract's reason at the first refusal, because a waiting caller can
        try again. Raises TransientError("not_mined") after `timeout_s` seconds. The next pump continues with the
        intent.
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
                    f"{call.label} was not mined within {timeout_s} s, but may still be mined",
                )
            pause(0.1)

    def _deliver(self, entry: Entry, head: Block) -> bool:
        """Send a signed intent unless it is already mined. Returns whether it is mined."""
        mined = self._mined.find(entry)
        if mined is None:
            mined = self._send(self._replace_when_stuck(entry, head), head)
        return mined is not None and self._mined.record(entry, mined)

    def _replace_when_stuck(self, entry: Entry, head: Block) -> Entry:
        """Add an attempt at a higher fee if the current fee may be too low. Returns the entry."""
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
        number = entry.offered_at or 0
        if number >= head.number:
            return self._stuck_seconds == 0
        offered = self._client.find_block(number)
        return offered is None or head.timestamp - offered.timestamp >= self._stuck_seconds

    def _fill_gap(self, nonce: int, head: Block) -> None:
        """Send a transfer of zero ether to use a lower nonce that has become free.

        This happens when a transaction that the owner sent by hand has vanished.
        """
        free = self._find_free_nonce()
        if free >= nonce:
            return
        get_logger().warning("unused nonce filled, because a transaction of this key disappeared", nonce=free)
        key = f"fill/{free}/{head.hash}"
        # The data contains the key. Otherwise two transfers with the same nonce and fee would be the same transaction,
        # and the store accepts a transaction for only one intent.
        call = Call(to=self._wallet.address, data=key.encode(), label="a transfer of nothing")
        intent = Intent(key=key, call=call)
        self._store.put(intent)
        filler = self._require_entry(intent.key)
        gas = self._estimate_again(filler)
        if gas is not None:
            self._send(self._sign(filler, free, gas, head), head)

    def _estimate_again(self, entry: Entry) -> int | None:
        """Estimate the gas of an intent. None if the call would fail now.

        The reason can be that an attempt has just been mined, which the next pump will notice.
        """
        try:
            return self._client.estimate_gas(self._wallet.address, entry.intent.call)
        except ProtocolError:
            return None

    def _send(self, entry: Entry, head: Block) -> MinedTransaction | None:
        """Broadcast the newest attempt. Returns the transaction if it is already mined.

        Nodes word refusals differently. Whatever the wording, the intent starts over if its nonce is used.
        """
        try:
            self._client.send_raw(entry.attempts[-1].raw)
        except ProtocolError as error:
            # The node has another attempt of this intent and finds this fee too low. The next replacement raises it.
            return self._mined.find(entry) if error.code == "underpriced" else self._find_or_displace(entry, head)
        except (OperatorError, TransientError) as error:
            if error.code not in ("insufficient_funds", "chain_refused"):
                raise
            mined = self._find_or_displace(entry, head)
            if mined is None and self._client.count_transactions(self._wallet.address) <= (entry.nonce or 0):
                raise self._name_payer(entry, error) from error
            return mined
        return self._mined.find(entry)

    def _find_or_displace(self, entry: Entry, head: Block) -> MinedTransaction | None:
        """Handle a used nonce: an attempt of this intent used it, or a different transaction of the same key did.

        In the second case no attempt can be mined any more, and the intent starts over with a new nonce. A lagging node
        may not show an attempt yet. The nonce must therefore have been used some blocks ago before the intent starts
        over.
        """
        used = self._client.count_transactions(self._wallet.address, self._find_known_block(head))
        mined = self._mined.find(entry)
        if mined is None and entry.nonce is not None and used > entry.nonce:
            get_logger().warning(
                "nonce used by another transaction, intent gets a new one", key=entry.intent.key, nonce=entry.nonce
            )
            self._store.record_displaced(entry.intent.key)
        return mined

    def _find_known_block(self, head: Block) -> int:
        """Return the number of a block that is so old that no node lags behind it."""
        first = find_first_block(self._client, int(head.timestamp - self._lag_seconds), head=head)
        return max(0, min(head.number - LAG_BLOCKS, (first or head).number))

    def _begin(self, entry: Entry, head: Block) -> bool:
        """Sign and send an intent unless the contract refuses it. Returns whether the next intent can be sent."""
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
        """Record a refusal, which does not use a nonce.

        It becomes final when it has lasted longer than a node can lag.
        """
        key, before = entry.intent.key, entry.refusal
        refusal = Refusal.at(head.timestamp) if before is None else before.repeat(head.timestamp)
        if refusal.stands:
            get_logger().warning(
                "intent permanently refused by the contract", key=key, reason=reason, heads=refusal.heads
            )
            self._store.record_reverted(key, reason, None)
        elif refusal != before:
            if refusal.heads == 2:  # The first one may be due to a lagging node.
                get_logger().warning("intent refused by the contract, trying again", key=key, reason=reason)
            self._store.record_refused(key, refusal, reason)

    def _find_free_nonce(self) -> int:
        """Return the lowest nonce that neither the chain nor an intent uses. This fills gaps first."""
        nonce, reserved = self._client.count_transactions(self._wallet.address, "pending"), self._store.list_nonces()
        while nonce in reserved:
            nonce += 1
        return nonce

    def _sign(self, entry: Entry, nonce: int, gas: int, head: Block) -> Entry:
        """Sign a new attempt and store it. Returns the entry with it, or unchanged if no dearer attempt is allowed.

        Raises TransientError("fee_too_high") or TransientError("spend_limit").
        """
        fees = self._limits.choose(base_fee=head.base_fee, priority_fee=self._client.get_priority_fee())
        if entry.nonce == nonce:
            dearer = self._limits.raise_above(entry.attempts[-1], fees)
            if dearer is None:
                get_logger().warning("transaction is stuck at the maximum fee", key=entry.intent.key, nonce=nonce)
                return entry
            fees = dearer
        call, gas = entry.intent.call, int(gas * GAS_MARGIN)
        self._require_budget(entry, call.value + gas * fees.max_fee, head)
        signed = self._wallet.sign_transaction(
            {
                "type": 2,
                "chainId": self._chain_id,
                "nonce": nonce,
                "to": call.to,
                "data": call.data,
                "value": call.value,
                "gas": gas,
                "maxFeePerGas": fees.max_fee,
                "maxPriorityFeePerGas": fees.priority_fee,
            }
        )
        attempt = Attempt(hash=signed.hash, raw=signed.raw, max_fee=fees.max_fee, priority_fee=fees.priority_fee)
        self._store.record_signed(entry.intent.key, nonce, attempt, offered_at=head.number)
        return self._require_entry(entry.intent.key)

    def _require_budget(self, entry: Entry, cost: int, head: Block) -> None:
        """Check a transaction's maximum cost in wei against the budget of a day, by the clock of the chain."""
        if self._limits.max_spend is None:
            return
        first = find_first_block(self._client, head.timestamp - DAY, head=head) or head
        others = [
            other for other in self._store.list_signed_since(first.number) if other.intent.key != entry.intent.key
        ]
        self._limits.require_budget(cost=cost, spent=sum(map(compute_cost, others)))

    def _require_entry(self, key: str) -> Entry:
        entry = self._store.find(key)
        if entry is None:
            raise OperatorError(
                "outbox_lost",
                f"the intent {key} disappeared from the outbox",
                fix="Run only one process with this outbox",
            )
        return entry

    def _name_payer(self, entry: Entry, error: CoveyError) -> CoveyError:
        """Return an error with the account's address, because the node reports only that the ether is insufficient."""
        if error.code != "insufficient_funds":
            return error
        address, label = self._wallet.address, entry.intent.call.label
        balance = format_amount(self._client.get_balance(address), ETHER)
        return OperatorError(
            error.code,
            f"account {address} has {balance}, which is not enough gas for {label}",
            fix=f"Send ether to {address}; on a devnet, run covey devnet fund {address}",
        )
