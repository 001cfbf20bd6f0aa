"""Whether a folder that `covey up` keeps is ready: its own coordinator answers, and each of its workers says so.

Anything may listen on the coordinator's port, for example the coordinator of another folder, so its answer is compared
with the folder: pool, operator, chain and contracts.
"""

import asyncio
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic

from coordinator.config import CoordinatorConfig
from covey.chain.deployment import Deployment
from covey.chain.wallet import load_key
from covey.client import CoordinatorClient
from covey.errors import OperatorError, ProtocolError, TransientError
from covey.local.joining import build_deployment
from covey.local.keeper import Kept
from covey.local.logs import has_said
from covey.protocol.wire import PoolView
from covey.runtime import listen

ASK_SECONDS = 1.0
"""Time between two looks."""
ANSWER_SECONDS = 2.0
WORKER_RUNS = '"worker runs"'
"""Event that a registered worker logs before its first claim."""
LOOPBACK = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104
"""Host to ask by the host that is listened on."""
SETTINGS = "coordinator.toml"


class Readiness:
    """Example: `Readiness(folder, keeper.kept).is_reached()`."""

    def __init__(self, folder: Path, kept: Sequence[Kept], *, clock: Callable[[], float] = monotonic) -> None:
        self._folder, self._clock, self._asked_at = folder, clock, -ASK_SECONDS
        words = [(each, shlex.split(each.command)[:2]) for each in kept]
        self._workers = [each for each, command in words if command in (["worker", "run"], ["worker", "cheat"])]
        serves = any(command == ["coordinator", "serve"] for _, command in words)
        self._coordinator = find_settings(folder) if serves else None

    def require_free_port(self) -> None:
        """Raise OperatorError("address_in_use") if the coordinator could not listen."""
        settings = self._coordinator
        if settings is None:
            return
        try:
            listen(settings.host, settings.port).close()
        except OperatorError as error:
            raise self._refuse("address_in_use", error.message.removesuffix(f". {error.fix}")) from error

    def is_reached(self) -> bool:
        """Look at most every ASK_SECONDS; between two looks it is False.

        Raises OperatorError("other_coordinator") if another service than the folder's coordinator answers.
        """
        now = self._clock()
        if now < self._asked_at + ASK_SECONDS:
            return False
        self._asked_at = now
        return all(map(_says_that_it_runs, self._workers)) and (self._coordinator is None or self._is_answered())

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
                "other_coordinator", f"port {settings.port} has another service: {error.message}"
            ) from error
        if (view.pool, view.operator, named) != (settings.pool, load_key(settings.key_file).address, deployment):
            other = f"pool {view.pool} of {view.operator}, chain {view.chain_id}"
            raise self._refuse("other_coordinator", f"port {settings.port} has the coordinator of {other}")
        return True

    def _refuse(self, code: str, message: str) -> OperatorError:
        file = self._folder / SETTINGS
        return OperatorError(code, message, fix=f"End what listens there, or change port in {file}")


def find_settings(folder: Path) -> CoordinatorConfig | None:
    """Settings of the folder's own coordinator; None where it has none."""
    file = folder / SETTINGS
    return CoordinatorConfig.load(file) if file.exists() else None


def find_url(settings: CoordinatorConfig) -> str:
    """URL of the coordinator on its own machine: the public one may not be reachable from there."""
    host = LOOPBACK.get(settings.host, settings.host)
    return f"http://[{host}]:{settings.port}" if ":" in host else f"http://{host}:{settings.port}"


def _says_that_it_runs(worker: Kept) -> bool:
    running = worker.running
    return running is not None and running.exit_code is None and has_said(running.log, running.begun, WORKER_RUNS)


async def _ask(url: str) -> PoolView:
    async with CoordinatorClient(url, None, chain_id=0, timeout_seconds=ANSWER_SECONDS) as client:
        return await client.get_pool()
