"""The policies on this machine. They are fetched from relays when needed, and checked against the chain."""

import asyncio
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from covey.chain.contracts import Contracts
from covey.errors import ProtocolError, TransientError
from covey.protocol.ids import Hash, PoolId, Step
from covey.shardcast.client import ShardClient, get_policy_folder, prune_policies


class Policies:
    """The policies on this machine. It keeps the newest `keep` and the last two that were required for loading."""

    def __init__(self, contracts: Contracts, client: ShardClient, *, pool: PoolId, root: Path, keep: int) -> None:
        self._contracts, self._client, self._pool, self._root, self._keep = contracts, client, pool, root, keep
        self._fetching = asyncio.Lock()
        self._to_load: deque[Path] = deque(maxlen=2)
        root.mkdir(parents=True, exist_ok=True)

    async def require(self, version: Step, manifest_hash: Hash | None = None, *, to_load: bool = False) -> Path:
        """Return the folder of a policy. Fetch the policy first if it is not on this machine.

        `manifest_hash` is the hash that the caller read from the chain. None means that this method reads it.
        The last two policies that were required with `to_load` are kept even when newer ones arrive. An engine takes
        minutes to start, reads its policy again after a crash, and keeps the previous policy if it refuses one.
        Raises TransientError while no relay has the policy, or if the disk is full.
        """
        if manifest_hash is None:
            manifest_hash = await asyncio.to_thread(self.get_manifest_hash, version)
        folder = get_policy_folder(self._root, version, manifest_hash)
        if to_load and folder not in self._to_load:
            self._to_load.append(folder)
        if folder.exists():  # Checked before the lock, so that it need not wait for another download.
            return folder
        async with self._fetching:  # Two downloads in one process would write the same files.
            try:
                await self._client.fetch(pool=self._pool, step=version, manifest_hash=manifest_hash, folder=folder)
            except OSError as error:  # The disk is full. There may be room later, and older policies can be used.
                raise TransientError(
                    "disk_full", f"the files of policy {version} could not be written: {error}"
                ) from error
            prune_policies(self._root, keep=self._keep, spare={folder, *self._to_load})
            return folder

    def list_versions(self, versions: Sequence[Step]) -> list[Step]:
        """Return the versions in `versions` that are already on this machine."""
        return [step for step in versions if get_policy_folder(self._root, step, self.get_manifest_hash(step)).exists()]

    def get_manifest_hash(self, version: Step) -> Hash:
        """Return the manifest hash of a policy on chain. Raises ProtocolError("unknown_policy") if there is none."""
        try:
            return self._contracts.policies.policy_of(self._pool, version)
        except ProtocolError as error:
            raise ProtocolError("unknown_policy", f"policy {version} has not been published on chain") from error

    async def close(self) -> None:
        """Close the connections to the relays."""
        await self._client.close()
