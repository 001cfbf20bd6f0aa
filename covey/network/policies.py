"""Policies on this machine, fetched from relays when they are needed and checked against the chain."""

import asyncio
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from covey.chain.contracts import Contracts
from covey.errors import ProtocolError, TransientError
from covey.protocol.ids import Hash, PoolId, Step
from covey.shardcast.client import ShardClient, get_policy_folder, prune_policies


class Policies:
    """Policies on this machine, fetched when they are needed and checked against the chain."""

    def __init__(self, contracts: Contracts, client: ShardClient, *, pool: PoolId, root: Path, keep: int) -> None:
        self._contracts, self._client, self._pool, self._root, self._keep = contracts, client, pool, root, keep
        self._fetching = asyncio.Lock()
        self._to_load: deque[Path] = deque(maxlen=2)
        root.mkdir(parents=True, exist_ok=True)

    async def require(self, version: Step, manifest_hash: Hash | None = None, *, to_load: bool = False) -> Path:
        """The folder of a policy whose manifest hash is the one that the caller had from the chain, or by default the
        chain's; raise TransientError while nobody has it.

        The last two that were required `to_load` stay, whatever newer ones come: an engine takes minutes to start, one
        that dies reads its policy again, and one that refuses a policy keeps the one before.
        """
        if manifest_hash is None:
            manifest_hash = await asyncio.to_thread(self.get_manifest_hash, version)
        folder = get_policy_folder(self._root, version, manifest_hash)
        if to_load and folder not in self._to_load:
            self._to_load.append(folder)
        if folder.exists():  # whatever else is being fetched
            return folder
        async with self._fetching:  # two of one process would write the same files
            try:
                await self._client.fetch(pool=self._pool, step=version, manifest_hash=manifest_hash, folder=folder)
            except OSError as error:  # a full disk: there may be room later, and older policies are there
                raise TransientError("disk_full", f"policy {version} could not be written: {error}") from error
            prune_policies(self._root, keep=self._keep, spare={folder, *self._to_load})
            return folder

    def list_versions(self, versions: Sequence[Step]) -> list[Step]:
        """Those of some versions that are on this machine already."""
        return [each for each in versions if get_policy_folder(self._root, each, self.get_manifest_hash(each)).exists()]

    def get_manifest_hash(self, version: Step) -> Hash:
        """What the chain says; raise ProtocolError("unknown_policy")."""
        try:
            return self._contracts.policies.policy_of(self._pool, version)
        except ProtocolError as error:
            raise ProtocolError("unknown_policy", f"the chain holds no policy {version}") from error

    async def close(self) -> None:
        await self._client.close()
