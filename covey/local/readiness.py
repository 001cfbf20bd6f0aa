"""Checks whether the folder of a running `covey up` is ready: all processes run, and the slow ones have logged it.

A different service may listen on the coordinator's port, for example the coordinator of another folder. Its response is
therefore compared with the folder: pool, operator, chain and contracts.
"""

import asyncio
import shlex
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from time import monotonic

from coordinator.config import CoordinatorConfig
from covey.chain.deployment import Deployment
from covey.chain.wallet import load_key
from covey.console.folder_values import build_local_url
from covey.errors import OperatorError, ProtocolError, TransientError
from covey.local.folder import get_environment
from covey.local.keeper import KeptProcess
from covey.local.logs import contains_since
from covey.local.ports import SETTINGS, advise
from covey.network.coordinator_client import CoordinatorClient
from covey.network.pool_view import build_deployment
from covey.protocol.api.public import PoolView
from covey.runtime.http import listen

MAX_PORT = 65_535
ASK_SECONDS = 1.0
"""Seconds between two checks."""
ANSWER_SECONDS = 2.0
EVENTS = {
    "worker run": '"worker started"',
    "worker cheat": '"worker started"',
    "trainer run": '"trainer started"',
    "validator run": '"validator started"',
    "origin run": '"origin serves policies"',
    "relay run": '"relay serves policies"',
    "coordinator pages": '"coordinator serves pages"',
}
"""Event that a process logs once it is ready, by the first two words of its command.

Others are ready as soon as they run.
"""
COORDINATOR, PAGES = "coordinator serve", "coordinator pages"
DEFAULT_PORTS = {"devnet up": "8545", "origin run": "9000", "relay run": "9001"}
"""Default port of a command that has the option --port."""


class Readiness:
    """State of a folder's processes. Example: `Readiness(folder, keeper.kept).is_reached()`."""

    def __init__(self, folder: Path, kept: Sequence[KeptProcess], *, clock: Callable[[], float] = monotonic) -> None:
        self._folder, self._kept, self._clock, self._asked_at = folder, kept, clock, -ASK_SECONDS
        serves = any(_get_verb(each) == COORDINATOR for each in kept)
        self._coordinator = find_settings(folder) if serves else None
        self.awaited = tuple(each.name for each in kept)
        """Names of the processes that were not ready at the last check, in the folder's order."""

    def require_free_ports(self) -> None:
        """Raise OperatorError("address_in_use") if a process of the folder cannot listen on its port."""
        if self._coordinator is not None:
            self._require_free(self._coordinator.host, str(self._coordinator.port))
            if any(_get_verb(each) == PAGES for each in self._kept):
                self._require_free(self._coordinator.host, str(self._coordinator.pages_port))
        for kept in self._kept:
            if _get_verb(kept) in DEFAULT_PORTS:
                self._require_free(*find_address(kept.command))

    def _require_free(self, host: str, port: str) -> None:
        if not port.isdecimal() or int(port) > MAX_PORT:
            return  # the command itself refuses it and logs why
        try:
            listen(host, int(port)).close()
        except OperatorError as error:
            message = error.message.removesuffix(f". {error.fix}")
            raise self._refuse("address_in_use", message, int(port)) from error

    def is_reached(self) -> bool:
        """Return whether all processes are ready. It checks at most every ASK_SECONDS and returns False in between.

        Raises OperatorError("other_coordinator") if a service other than the folder's coordinator responds.
        """
        now = self._clock()
        if now < self._asked_at + ASK_SECONDS:
            return False
        self._asked_at = now
        self.awaited = tuple(each.name for each in self._kept if not self._works(each))
        return not self.awaited

    def _works(self, kept: KeptProcess) -> bool:
        """Return whether a process is ready. One that has finished its work or was given up is not waited for."""
        if kept.is_given_up:
            return True
        running, verb = kept.running, _get_verb(kept)
        if running is None or running.exit_code is not None:
            return running is not None and running.exit_code == 0
        if verb == COORDINATOR and self._coordinator is not None:
            return self._is_answered()
        return verb not in EVENTS or contains_since(running.log, running.begun, EVENTS[verb])

    def _is_answered(self) -> bool:
        assert self._coordinator is not None
        settings = self._coordinator
        try:
            view = asyncio.run(_ask(find_url(settings)))
            deployment = Deployment.load(settings.deployment)
            named = build_deployment(view, deployment.rpc_url)
        except TransientError:
            return False
        except ProtocolError as error:
            raise self._refuse(
                "other_coordinator",
                f"a service that is not the folder's coordinator listens on port {settings.port}: {error.message}",
                settings.port,
            ) from error
        if (view.pool, view.signer, named) != (settings.pool, load_key(settings.key_file).address, deployment):
            other = f"pool {view.pool} of {view.operator}, chain {view.chain_id}"
            raise self._refuse(
                "other_coordinator",
                f"a different coordinator, for {other}, listens on port {settings.port}",
                settings.port,
            )
        return True

    def _refuse(self, code: str, message: str, port: int) -> OperatorError:
        remedy = advise(self._folder, port)
        return OperatorError(code, message, fix=f"Stop the service that listens there, or {remedy}")


def find_settings(folder: Path) -> CoordinatorConfig | None:
    """Return the settings of the folder's own coordinator. None if it has none."""
    file = folder / SETTINGS
    return CoordinatorConfig.load(file, environment=get_environment()) if file.exists() else None


def find_url(settings: CoordinatorConfig) -> str:
    """Return the local URL of the coordinator. Its public URL may be unreachable from its own machine."""
    return build_local_url(settings.host, settings.port)


def _get_verb(kept: KeptProcess) -> str:
    """Return the first two words of the command, for example "trainer run"."""
    return " ".join(shlex.split(kept.command)[:2])


def find_address(command: str) -> tuple[str, str]:
    """Return the host and port in the command of a devnet, an origin or a relay."""
    words = [part for word in shlex.split(command) for part in word.split("=") if part]
    options = dict(pairwise(words))
    return options.get("--host", "127.0.0.1"), options.get("--port", DEFAULT_PORTS[" ".join(words[:2])])


async def _ask(url: str) -> PoolView:
    async with CoordinatorClient(url, None, chain_id=0, timeout_seconds=ANSWER_SECONDS) as client:
        return await client.get_pool()
