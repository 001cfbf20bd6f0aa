"""Loads the policies of a pool into the engine of a worker or a validator."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

from covey.engines.base import Engine
from covey.errors import ProtocolError, TransientError
from covey.model.prompts import require_policy_format
from covey.network.policies import Policies
from covey.protocol.ids import Hash, Step
from covey.protocol.params import ModelParams
from covey.runtime.cycle import or_stop
from covey.runtime.log import get_logger


class PolicyLoader:
    """Loads one policy at a time and remembers which one is in the engine.

    The version alone does not identify the policy, because a reorganisation can replace a version's policy.
    """

    def __init__(
        self, engine: Engine, policies: Policies, params: ModelParams, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._engine, self._policies, self._params, self._clock = engine, policies, params, clock
        self._loading = asyncio.Lock()
        self.folder: Path | None = None
        """Folder of the policy in the engine. None if no policy was loaded, or if the last load failed."""

        self.fetched: set[Step] = set()
        """Versions that were fetched to the disk for this engine. Some may have been deleted since."""

        self.refused: set[Step] = set()
        """Versions whose record is invalid, or that the pool or the engine has refused. They stay refused."""

    @property
    def newest(self) -> Step | None:
        """Newest version that was fetched and not refused. None if there is none."""
        return max(self.fetched - self.refused, default=None)

    async def load(self, version: Step, record_hash: Hash | None = None, *, stop: asyncio.Event | None = None) -> None:
        """Load a policy, by default the one that is on chain now. Returns at once if it is already in the engine.

        Logs `seconds_to_ready`, the time from the last optimizer step to the policy in the engine, by the clocks of
        trainer and this machine, and `pause`, the time for which the engine could not generate.

        Raises TransientError("stopped") if `stop` is set before the policy is on this machine, and ProtocolError if the
        pool does not allow the policy. Also raises the errors of `Policies.require` and `Engine.load_policy`.
        """
        async with self._loading:
            required = self._policies.require(version, record_hash, to_load=True)
            folder = await (required if stop is None else or_stop(stop, required))
            if folder is None:
                raise TransientError("stopped", f"this process was stopped before policy {version} was downloaded")
            if (self._engine.policy_version, self.folder) == (version, folder):
                return
            self.folder = None  # If loading fails, the content of the engine is unknown.
            try:
                await asyncio.to_thread(load_pool_policy, self._engine, folder, version, self._params)
            except ProtocolError:
                self.refused.add(version)
                raise
            self.folder = folder
            get_logger().info(
                "policy is live",
                step=version,
                seconds_to_ready=round(self._clock() - self._policies.get_trained_at(folder), 3),
                pause=round(self._engine.load_pause, 3),
            )


def load_pool_policy(engine: Engine, folder: Path, version: int, params: ModelParams) -> None:
    """Load the policy in `folder` into the engine, with the checks that every role of a pool makes.

    Raises the errors of `Engine.load_policy`. Raises ProtocolError("policy_mismatch") if the chat template or the end
    tokens differ from those in `params`. In this case the policy is already loaded, and the caller must not use it.
    """
    engine.load_policy(folder, version)
    require_policy_format(engine.tokenizer, engine.end_tokens, params)
