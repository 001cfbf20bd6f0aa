"""Loads the policies of a pool into an engine, for workers and validators alike."""

import asyncio
from pathlib import Path

from covey.engines.base import Engine
from covey.engines.pool_policies import load_pool_policy
from covey.errors import TransientError
from covey.network.policies import Policies
from covey.protocol.ids import Hash, Step
from covey.protocol.params import ModelParams
from covey.runtime.cycle import or_stop


class PolicyLoader:
    """Loads one policy at a time and remembers which one the engine holds.

    The version alone does not say: a reorganisation may give it to another policy.
    """

    def __init__(self, engine: Engine, policies: Policies, params: ModelParams) -> None:
        self._engine, self._policies, self._params = engine, policies, params
        self._loading = asyncio.Lock()
        self.folder: Path | None = None
        """Folder of the policy in the engine. None: nothing was loaded, or the last load failed."""

    async def load(
        self, version: Step, manifest_hash: Hash | None = None, *, stop: asyncio.Event | None = None
    ) -> None:
        """Load a policy, by default the one that the chain holds now; return at once if the engine holds it.

        Raises TransientError("stopped") if `stop` is set before the policy is on this machine, ProtocolError for a
        policy that the pool does not allow, and as `Policies.require` and `Engine.load_policy`.
        """
        async with self._loading:
            required = self._policies.require(version, manifest_hash, to_load=True)
            folder = await (required if stop is None else or_stop(stop, required))
            if folder is None:
                raise TransientError("stopped", f"policy {version} was not there when the work was over")
            if (self._engine.policy_version, self.folder) == (version, folder):
                return
            self.folder = None  # whatever is in the engine if this fails
            await asyncio.to_thread(load_pool_policy, self._engine, folder, version, self._params)
            self.folder = folder
