"""The policies on this machine. They are fetched from relays when needed, and checked against the chain."""

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Sequence
from pathlib import Path

from covey.chain.contracts import Contracts
from covey.errors import ProtocolError, TransientError
from covey.protocol.ids import Hash, PoolId, Step
from covey.shardcast.policy_fetch import PolicyClient


class Policies:
    """The policies in a store, which other processes of this machine may share."""

    def __init__(self, contracts: Contracts, client: PolicyClient, *, pool: PoolId) -> None:
        self._contracts, self._client, self._pool = contracts, client, pool
        self._fetching = asyncio.Lock()
        self._to_load: deque[Path] = deque()

    @property
    def is_fetching(self) -> bool:
        """Whether a policy is being downloaded now."""
        return self._fetching.locked()

    async def require(
        self, version: Step, record_hash: Hash | None = None, *, to_load: bool = False, may_skip: bool = False
    ) -> Path:
        """Return the folder of a policy. Fetch the policy first if it is not on this machine.

        `record_hash` is the hash that the caller read from the chain. None means that this method reads it.
        The last two policies that were required with `to_load` are kept even when newer ones arrive. An engine takes
        minutes to start, reads its policy again after a crash, and keeps the previous policy if it refuses one.
        With `may_skip` a download is given up if a newer policy is on chain that needs fewer bytes.
        Raises the errors of `PolicyClient.fetch`, for example TransientError("obsolete").
        """
        if record_hash is None:
            record_hash = await asyncio.to_thread(self.get_record_hash, version)
        store = self._client.store
        folder = store.get_folder(version, record_hash)
        is_here = await self._hold(asyncio.to_thread(store.hold_if_sound, folder), folder, threading.Event())
        if not is_here:  # A policy that is here need not wait for the download of another.
            await self._fetch(version, record_hash, may_skip=may_skip)
        self._keep(folder, to_load=to_load)
        return folder

    async def prefetch(self) -> bool:
        """Fetch pieces of the first policy while it is exported. Returns whether any have come."""
        stop = threading.Event()
        async with self._fetching:
            working = asyncio.ensure_future(asyncio.to_thread(self._client.prefetch, stop))
            try:
                return await asyncio.shield(working)
            except asyncio.CancelledError:
                stop.set()
                await asyncio.wait({working})
                working.exception()  # It was stopped, which asyncio would complain about.
                raise

    def list_versions(self, versions: Sequence[Step]) -> list[Step]:
        """Return the versions in `versions` that are already on this machine."""
        folders = self._client.store.list_folders()
        return [step for step in versions if self.get_record_hash(step) in folders]

    def get_record_hash(self, version: Step) -> Hash:
        """Return the record hash of a policy on chain. Raises ProtocolError("unknown_policy") if there is none."""
        try:
            return self._contracts.policies.policy_of(self._pool, version)
        except ProtocolError as error:
            raise ProtocolError("unknown_policy", f"policy {version} has not been published on chain") from error

    def get_trained_at(self, folder: Path) -> float:
        """Return the Unix time at which a policy on this machine was complete, by the trainer's clock."""
        return self._client.store.get_trained_at(folder)

    async def close(self) -> None:
        """Close the connections to the relays."""
        self._client.source.downloader.close()

    async def _fetch(self, version: Step, record_hash: Hash, *, may_skip: bool) -> None:
        """Fetch and hold a policy. One at a time, so that the newest has the whole bandwidth."""
        stop = threading.Event()

        def is_obsolete(missing: int) -> bool:
            return may_skip and self._has_cheaper(version, missing)

        async with self._fetching:
            work = asyncio.to_thread(self._client.fetch, version, record_hash, stop=stop, is_obsolete=is_obsolete)
            await self._hold(work, self._client.store.get_folder(version, record_hash), stop)

    async def _hold(self, work: Awaitable[object], folder: Path, stop: threading.Event) -> bool:
        """Return whether the work of a thread has held a folder, that is, whether it returned something.

        If this is cancelled, the thread is stopped, what it has downloaded is kept, and the folder is released.
        """
        working = asyncio.ensure_future(work)
        try:
            return bool(await asyncio.shield(working))
        except asyncio.CancelledError:
            stop.set()
            await asyncio.wait({working})
            if working.exception() is None and working.result():
                self._client.store.release(folder)
            raise

    def _keep(self, folder: Path, *, to_load: bool) -> None:
        """Hold the folder once if it is to be loaded, and release the one before the last."""
        store = self._client.store
        is_held_before = folder in self._to_load and store.count_holds(folder) > 1
        if not to_load or is_held_before:
            store.release(folder)
            return
        if folder in self._to_load:  # It was damaged, and its earlier hold is gone.
            self._to_load.remove(folder)
        self._to_load.append(folder)
        if len(self._to_load) > _LOADABLE:
            store.release(self._to_load.popleft())

    def _has_cheaper(self, version: Step, missing: int) -> bool:
        """Return whether the newest policy on chain is newer and needs fewer bytes than are missing of this one."""
        try:
            newest = Step(self._contracts.policies.steps_of(self._pool) - 1)
            if newest <= version:
                return False
            source, held = self._client.source, self._client.store.list_folders().keys()
            route = source.find_route(self.get_record_hash(newest), held)
        except (ProtocolError, TransientError):
            return False  # It is not at the relays yet, or the chain cannot be asked now.
        return route.size < missing


_LOADABLE = 2
"""Number of policies that are protected from removal because an engine may load them."""
