"""Brings a policy to the origin and its hash on chain; called by `loop` until the chain holds it.

Shards and manifest are on disk before the hash is sent.  Repeated after a crash it changes nothing: equal files give an
equal manifest, the outbox holds one intent for each step, and the chain alone says what is published.
"""

import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NoReturn, Protocol

from covey.chain.json_rpc import Call
from covey.chain.outbox import Intent, IntentState, OutboxStore
from covey.errors import OperatorError, ProtocolError, TransientError
from covey.protocol.ids import Hash, PoolId, Step
from covey.runtime.full_disk import ExplainFullDisk
from covey.shardcast.store import Retention, ShardStore, add_shards

WATCH_SECONDS = 1.0
"""Least time between two looks at whether all published policies are still on chain."""
REFUSALS = 2
"""Intents in a row that the chain refuses before the trainer stops: a reorganisation may explain one."""


class Registry(Protocol):
    """What `PolicyRegistry` offers."""

    def publish(self, pool: PoolId, step: Step, manifest_hash: Hash) -> Call: ...

    def policy_of(self, pool: PoolId, step: Step) -> Hash: ...

    def steps_of(self, pool: PoolId) -> int: ...


def require_policy(registry: Registry, pool: PoolId, step: Step, folder: Path, *, scratch: Path) -> None:
    """Return if `folder` is the policy that the chain holds for `step`; raise OperatorError("another_policy").

    It is cut into shards in `scratch`, which takes its size there meanwhile.
    """
    if folder.is_dir() and registry.steps_of(pool) > step:
        with ExplainFullDisk(scratch, f"the shards of {folder}"), TemporaryDirectory(dir=scratch) as root:
            found = add_shards(ShardStore(Path(root)), folder, pool=pool, step=step).compute_hash()
        if found == registry.policy_of(pool, step):
            return
    raise OperatorError(
        "another_policy",
        f"{folder} is not the policy that the chain holds for step {step}",
        fix="Set initial_policy to a copy of home/exports/N, and initial_step to N, the newest published step",
    )


class Publisher:
    """One pool's policies.  Its outbox takes one thread at a time, so all calls come from one."""

    def __init__(
        self,
        *,
        pool: PoolId,
        registry: Registry,
        outbox: OutboxStore,
        pump: Callable[[], int],
        store: ShardStore,
        retention: Retention,
    ) -> None:
        """`pump` is `Sender.pump`; `retention` says which policies stay in the origin."""
        self._retention, self._refusals, self._watched_at = retention, 0, float("-inf")
        self._pool, self._registry, self._outbox, self._pump, self._store = pool, registry, outbox, pump, store

    def offer(self, folder: Path, step: Step) -> Hash:
        """Shards, then the manifest, into the origin; the manifest's hash.

        First those go that nobody needs any more: after a pause their room may be what is lacking.

        Raises OperatorError("another_policy") before the manifest of one that is on chain is replaced.
        """
        self._store.prune(self._pool, self._retention)
        manifest = add_shards(self._store, folder, pool=self._pool, step=step)
        manifest_hash = manifest.compute_hash()
        if self._registry.steps_of(self._pool) > step:
            self._require_ours(step, manifest_hash)
        self._store.add_manifest(manifest)
        return manifest_hash

    def advance(self, step: Step, manifest_hash: Hash) -> bool:
        """Move the publication on; True once the chain holds it.

        Raises OperatorError when the chain holds something else or keeps refusing, or the outbox something else;
        TransientError when a node is away or refuses for now, or has not or not any more the block that this builds on.
        """
        published = self._registry.steps_of(self._pool)
        if published < step:
            self._pump()  # which sends the earlier policies again
            raise _build_gone(step - 1)
        if published == step:
            key = self._put(step, manifest_hash)
            self._pump()
            published = self._registry.steps_of(self._pool)
        if published > step:
            self._require_ours(step, manifest_hash)
            self._refusals = 0
            return True
        entry = self._outbox.find(key)
        if entry is not None and entry.state is IntentState.REVERTED:
            self._refuse(step, entry.reason)
        if entry is not None and entry.refusal is not None:
            raise TransientError("publication_refused", f"the chain refuses policy {step} for now: {entry.reason}")
        if entry is not None and entry.state is IntentState.MINED:
            raise _build_gone(step)
        return False

    def watch(self, step: Step) -> None:
        """Send policies again that a reorganisation has dropped; all before `step` were published."""
        now = time.monotonic()
        if now - self._watched_at < WATCH_SECONDS:
            return
        self._watched_at = now
        if self._registry.steps_of(self._pool) < step:
            self._pump()

    def _put(self, step: Step, manifest_hash: Hash) -> str:
        """Have an intent that is not refused; its key.  What was refused once may pass later: a block was missing."""
        tries, key = 0, f"publish/{self._pool}/{step}"
        while (entry := self._outbox.find(key)) is not None and entry.state is IntentState.REVERTED:
            tries += 1
            key = f"publish/{self._pool}/{step}/{tries}"
        try:
            self._outbox.put(Intent(key=key, call=self._registry.publish(self._pool, step, manifest_hash)))
        except ProtocolError as error:
            raise OperatorError(
                "another_policy",
                f"the outbox holds another policy {step} than {manifest_hash}, which may be on its way to the chain",
                fix="Once no transaction of the trainer's key is pending, remove home/outbox.sqlite3 and start again",
            ) from error
        return key

    def _refuse(self, step: Step, reason: str) -> NoReturn:
        message = f"the chain refuses policy {step}: {reason}"
        self._refusals += 1
        if self._refusals < REFUSALS:
            raise TransientError("publication_refused", message)
        raise OperatorError(
            "publication_refused",
            message,
            fix="See that the pool is active and names this trainer's key, and start again",
        )

    def _require_ours(self, step: Step, manifest_hash: Hash) -> None:
        published = self._registry.policy_of(self._pool, step)
        if published != manifest_hash:
            raise OperatorError(
                "another_policy",
                f"the chain holds {published} for step {step}, this trainer has {manifest_hash}",
                fix="Resume with the home folder that this pool was trained with",
            )


def _build_gone(step: int) -> TransientError:
    return TransientError("reorganised", f"the block that published policy {step} is not on the chain any more")
