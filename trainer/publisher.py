"""Publishes a policy: its files to the origin, and the hash of its record on chain.

Everything is in the origin before the hash is sent. Repeating a publication after a crash changes nothing: equal files
have an equal record, the outbox has one intent per step, and only the chain decides what is published.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn, Protocol

from covey.chain.json_rpc import Call
from covey.chain.outbox import Intent, IntentState, OutboxStore
from covey.errors import OperatorError, ProtocolError, TransientError
from covey.protocol.ids import ZERO_HASH, Hash, PoolId, Step
from covey.shardcast.export_preview import PreviewWriter
from covey.shardcast.offering import Export, Offering
from covey.shardcast.policy_export import ExportChecks

WATCH_SECONDS = 1.0
"""Minimum number of seconds between two checks that all published policies are still on chain."""
REFUSALS = 2
"""Number of consecutive intents refused by the contract after which the trainer stops.

A reorganisation can explain one.
"""


class Registry(Protocol):
    """The methods of `PolicyRegistry` that the publisher uses."""

    def publish(self, pool: PoolId, step: Step, record_hash: Hash) -> Call: ...

    def policy_of(self, pool: PoolId, step: Step) -> Hash: ...

    def steps_of(self, pool: PoolId) -> int: ...


class Publisher:
    """Publishes one pool's policies.

    The outbox supports only one thread, so all calls must come from the same one, except those of `add_jump`.
    """

    def __init__(
        self,
        *,
        pool: PoolId,
        registry: Registry,
        outbox: OutboxStore,
        pump: Callable[[], int],
        offering: Offering,
    ) -> None:
        """Create a publisher. `pump` is `Sender.pump`, and `offering` writes to the origin."""
        self._refusals, self._watched_at = 0, float("-inf")
        self._pool, self._registry, self._outbox, self._pump, self._offering = pool, registry, outbox, pump, offering
        self._offered: Export | None = None

    def offer(self, folder: Path, step: Step, *, base_folder: Path | None = None) -> Hash:
        """Write a policy to the origin. Returns the hash of its record.

        `base_folder` contains the previous policy, from which clients need only a delta. None if it is gone. Policies
        that are no longer needed are removed first, because their space may be needed.

        Raises OperatorError("another_policy") instead of replacing a policy that is on chain.
        """
        record = self._offering.describe(folder, step, self._find_parent(step))
        export, record_hash = Export(folder, record), record.compute_hash()
        if self._registry.steps_of(self._pool) > step:
            self._require_ours(step, record_hash)
        self._offering.offer(export, base_folder)
        self._offered = export
        return record_hash

    @property
    def checks(self) -> ExportChecks:
        """Exports whose hashes are known. The thread that writes an export records it there."""
        return self._offering.checks

    def open_preview(self, step: Step, weights: Path) -> PreviewWriter | None:
        """Begin to serve the pieces of an export that is being written, as `Offering.open_preview` does.

        Only the thread that writes exports may call this.
        """
        return self._offering.open_preview(step, weights)

    def add_jump(self) -> None:
        """Add a delta from the last anchor to the policy that was offered last, unless there is one.

        Any thread may call this, but not during `offer`, because both write to the origin.
        """
        if self._offered is not None:
            self._offering.add_jump(self._offered)
            self._offered = None

    def advance(self, step: Step, record_hash: Hash) -> bool:
        """Advance the publication of a step. Returns True once the policy is on chain.

        Raises OperatorError("another_policy") if the chain or the outbox has a different policy for the step. Raises
        OperatorError("publication_refused") if the contract keeps refusing it. Raises TransientError if a node is
        unreachable or the contract refuses for now. Also raises it while the block of this policy or of the previous
        one is missing on the node's chain.
        """
        published = self._registry.steps_of(self._pool)
        if published < step:
            self._pump()  # sends the earlier policies again
            raise _build_gone(step - 1)
        if published == step:
            key = self._put(step, record_hash)
            self._pump()
            published = self._registry.steps_of(self._pool)
        if published > step:
            self._require_ours(step, record_hash)
            self._refusals = 0
            return True
        entry = self._outbox.find(key)
        if entry is not None and entry.state is IntentState.REVERTED:
            self._refuse(step, entry.reason)
        if entry is not None and entry.refusal is not None:
            raise TransientError(
                "publication_refused",
                f"publication of policy {step} is currently refused by the contract: {entry.reason}",
            )
        if entry is not None and entry.state is IntentState.MINED:
            raise _build_gone(step)
        return False

    def watch(self, step: Step) -> None:
        """Send policies again that a reorganisation has dropped. All policies before `step` have been published."""
        now = time.monotonic()
        if now - self._watched_at < WATCH_SECONDS:
            return
        self._watched_at = now
        if self._registry.steps_of(self._pool) < step:
            self._pump()

    def _put(self, step: Step, record_hash: Hash) -> str:
        """Put an intent that is not refused into the outbox and return its key.

        A refused policy gets a new intent, because it may succeed later, for example if a block was missing.
        """
        tries, key = 0, f"publish/{self._pool}/{step}"
        while (entry := self._outbox.find(key)) is not None and entry.state is IntentState.REVERTED:
            tries += 1
            key = f"publish/{self._pool}/{step}/{tries}"
        try:
            self._outbox.put(Intent(key=key, call=self._registry.publish(self._pool, step, record_hash)))
        except ProtocolError as error:
            raise OperatorError(
                "another_policy",
                f"the outbox contains a transaction for a different policy {step}, not "
                f"{record_hash}, which may be pending",
                fix="Wait until no transaction of the trainer's key is pending, remove "
                "home/outbox.sqlite3 and start again",
            ) from error
        return key

    def _refuse(self, step: Step, reason: str) -> NoReturn:
        message = f"publication of policy {step} was refused by the contract: {reason}"
        self._refusals += 1
        if self._refusals < REFUSALS:
            raise TransientError("publication_refused", message)
        raise OperatorError(
            "publication_refused",
            message,
            fix="Check that the pool is active and its trainer is this key's address, then start again",
        )

    def _find_parent(self, step: Step) -> Hash:
        """Return the hash of the previous policy's record. It is on chain, because policies are published in order."""
        if step == 0:
            return ZERO_HASH
        if self._registry.steps_of(self._pool) < step:
            raise _build_gone(step - 1)
        return self._registry.policy_of(self._pool, Step(step - 1))

    def _require_ours(self, step: Step, record_hash: Hash) -> None:
        published = self._registry.policy_of(self._pool, step)
        if published != record_hash:
            raise OperatorError(
                "another_policy",
                f"policy {step} on chain has the hash {published}, but this trainer has {record_hash}",
                fix="Resume with the home folder that was used to train this pool",
            )


def _build_gone(step: int) -> TransientError:
    return TransientError("reorganised", f"the block that published policy {step} was dropped by a reorganisation")
