"""`covey up` and `covey down`: keep the processes of a folder running, and stop them."""

import contextlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from covey.console.options import Folder
from covey.console.terminal import quote
from covey.errors import OperatorError, TransientError

if TYPE_CHECKING:
    from rich.console import Console

    from covey.local.keeper import Keeper
    from covey.local.screen import Screen
READY = "ready: "
"""Prefix of the line that a keeper prints once all its processes are ready."""
WAITING = "waiting for "
"""Prefix of the line that a keeper prints when the list of processes that are not ready yet changes."""
ERROR = "covey: "
"""Prefix of the line with the error that ends a command."""
READY_SECONDS = 600.0
"""Timeout in seconds until a detached keeper is ready. Engines can compile for minutes for a large model."""
CHAIN_SECONDS = 60.0


def up(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[FOLDER]...",
            help="Folder created by covey init pool or covey join. Several of covey join work for several pools.",
        ),
    ] = None,
    detach: Annotated[
        bool,
        typer.Option(
            "--detach",
            "-d",
            help="Run in the background: return once all processes are ready. `covey down` stops them.",
        ),
    ] = False,
    port: Annotated[
        int | None,
        typer.Option(
            min=1024,
            max=65531,
            help="First of five consecutive ports to move a pool on a devnet to, in all files of its folder.",
        ),
    ] = None,
) -> None:
    """Start all processes of a folder and keep them running until Ctrl-C.

    If the folder has a devnet, its pool is opened first. A process that fails is restarted. One that keeps failing from
    its first start is given up, and the exit code is then 1. The logs are in FOLDER/logs.

    With several folders of workers, each worker works for all their pools, one at a time. The first folder has the logs
    and the settings of how to choose a pool, and `covey down` stops it.

    Example: `covey up mypool`
    """
    from rich.console import Console

    from covey.local.folder import merge_processes
    from covey.local.keeper import locked
    from covey.local.plan import PORTS
    from covey.local.ports import move_ports

    folder, *others = folders or [Path()]
    merge_processes(folder, others)  # raises for folders that cannot be run
    if port is not None:
        with locked(folder):
            move_ports(folder, port)
        typer.echo(
            f"{folder} uses the ports {port} to {port + len(PORTS) - 1}; in the folder of each worker that has joined, "
            f"set the port of coordinator_url in worker*.toml to {port}, and that of rpc_url in deployment.json to "
            f"{port + PORTS.index('chain')}"
        )
    if detach:
        _detach(folder, others)
    else:
        keep_up(folder, Console(), others)


def keep_up(folder: Path, console: "Console", others: Sequence[Path] = ()) -> None:
    """Keep the processes of a folder running until Ctrl-C, and print their status on `console`.

    The workers of the folder also work for the pools of `others`.
    """
    from covey.devnet.deploy import find_deployment
    from covey.local.folder import merge_processes
    from covey.local.keeper import Keeper, locked
    from covey.local.screen import Screen

    commands = merge_processes(folder, others)
    with contextlib.ExitStack() as locks:
        for each in (folder, *others):
            locks.enter_context(locked(each))
        if "chain" in commands:  # only under the lock, because a running chain may be writing its files
            renewal = (
                f"create another pool with covey init pool, because everything in {folder} belongs to the old chain"
            )
            find_deployment(folder / "chain", renewal=renewal)
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        # A shell may have started this process with Ctrl-C ignored.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        with Screen(console, folder, find_coordinator(folder)) as screen:
            keeper = Keeper(folder, commands, say=screen.say)
            try:
                _run(folder, keeper, screen)
            except KeyboardInterrupt:
                screen.say("ending")
            finally:
                signal.signal(signal.SIGINT, signal.SIG_IGN)  # the shutdown must not be interrupted
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                keeper.stop()
        keeper.require_none_failed()


def _run(folder: Path, keeper: "Keeper", screen: "Screen") -> None:
    """Run the processes until an interrupt."""
    from covey.local.folder_status import StatesFile
    from covey.local.keeper import LOOK_SECONDS, REPEAT_SECONDS
    from covey.local.readiness import Readiness
    from covey.local.terms import require_trainable_pool

    Readiness(folder, keeper.kept).require_free_ports()
    _require_database(folder)
    require_trainable_pool(folder)
    keeper.prepare()
    names = [process.name for process in keeper.kept]
    if "chain" in names:
        keeper.start("chain")
        _await_chain(folder, keeper)
    if (folder / "pool.toml").exists():
        _prepare_pool(folder, screen)
    keeper.start()
    readiness = Readiness(folder, keeper.kept)  # only now, because opening the pool corrects its number in settings
    is_ready, waiting = False, threading.Event()
    said, said_at = "", time.monotonic()
    states = StatesFile(folder)
    while True:
        keeper.look()
        if not is_ready and readiness.is_reached():
            is_ready = True
            working = ", ".join(process.name for process in keeper.kept if not process.is_given_up)
            screen.say(f"{READY}{working}; logs are in {folder / 'logs'}{_name_pages(folder, working)}")
        awaited = f"{WAITING}{', '.join(readiness.awaited)}"
        if not is_ready and awaited != said and time.monotonic() >= said_at + REPEAT_SECONDS:
            said, said_at = awaited, time.monotonic()
            screen.say(awaited)
        screen.show(keeper.kept)
        states.write(keeper.kept)
        waiting.wait(LOOK_SECONDS)


def _name_pages(folder: Path, working: str) -> str:
    """Return where the pages are, as the end of a sentence. Empty if the folder does not serve them."""
    from covey.local.readiness import find_settings

    settings = find_settings(folder) if "pages" in working.split(", ") else None
    return "" if settings is None else f"; open {settings.pages_base_url}"


def _require_database(folder: Path) -> None:
    """Raise OperatorError("database_refused") if the server of the coordinator's database refuses its user.

    A server that does not answer is left to the coordinator, which is restarted until it does.
    """
    from covey.local.readiness import find_settings

    settings = find_settings(folder)
    if settings is None or not settings.database_url.startswith("postgresql"):
        return
    from coordinator.db import connection

    engine = connection.build(settings.database_url)
    try:
        with contextlib.suppress(TransientError):
            connection.require_admitted(engine)
    finally:
        engine.dispose()


def _prepare_pool(folder: Path, screen: "Screen") -> None:
    """Open a devnet's pool, or write the number of an open pool into the settings.

    Raises OperatorError("pool_not_open") on a chain where opening a pool costs money.
    """
    from covey.cli.pool_open import ESCROW, OPERATOR_BOND
    from covey.local.folder import has_own_chain, set_pool_number
    from covey.local.pool_opening import find_open_pool, open_pool, plan_opening

    number = find_open_pool(folder)
    if number is not None:
        set_pool_number(folder, number)
    elif has_own_chain(folder):
        open_pool(folder, plan_opening(folder, escrow=ESCROW, operator_bond=OPERATOR_BOND), say=screen.say)
    else:
        raise OperatorError(
            "pool_not_open",
            f"the pool of {folder} has not been opened on its chain",
            fix=f"Run covey pool open {folder}",
        )


def _await_chain(folder: Path, keeper: "Keeper") -> None:
    """Wait until the folder's own chain responds. Raises OperatorError("chain_failed")."""
    from covey.chain.deployment import Deployment
    from covey.chain.json_rpc import ChainClient
    from covey.local.logs import contains_since, read_last
    from covey.local.plan import DEPLOYMENT_FILE

    (chain,) = (process for process in keeper.kept if process.name == "chain")
    assert chain.running is not None
    deadline, waiting = time.monotonic() + CHAIN_SECONDS, threading.Event()
    while True:
        if chain.running.exit_code is not None or time.monotonic() >= deadline:
            last = read_last(chain.running.log)
            raise OperatorError(
                "chain_failed",
                f"the test chain did not start; the last line of its log is: {last}",
                fix=f"Read {chain.running.log}",
            )
        # This is the last line of `covey devnet up`, which has deployed the contracts by then.
        if contains_since(chain.running.log, chain.running.begun, "token "):
            with contextlib.suppress(TransientError):
                ChainClient(Deployment.load(folder / DEPLOYMENT_FILE).choose_node()).chain_id()
                return
        waiting.wait(0.1)


def find_coordinator(folder: Path) -> str | None:
    """Return the local URL of the folder's coordinator, without a proxy. None if the folder has no coordinator."""
    from covey.local.readiness import find_settings, find_url

    settings = find_settings(folder)
    return None if settings is None else find_url(settings)


def _detach(folder: Path, others: Sequence[Path]) -> None:
    """Start a keeper that continues after this command, and show its output until it is ready.

    If the keeper ends with an error, that error is raised. Raises OperatorError("process_died") if it ends otherwise,
    and OperatorError("not_ready") after READY_SECONDS.
    """
    from covey.local.logs import read_last

    logs = folder / "logs"
    logs.mkdir(exist_ok=True)
    log = logs / "up.log"
    log.touch()
    begun = log.stat().st_size
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "covey", "up", *map(str, (folder, *others))],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    awaited = _show_until_ready(folder, process, log, begun)
    if awaited is None:
        return
    if process.poll() is None:
        raise OperatorError(
            "not_ready",
            f"{folder} was not ready after {READY_SECONDS:.0f} s; it was still {awaited}",
            fix=f"Read {log}, or stop the processes with covey down {folder}",
        )
    last, fix = read_last(log), f"Read {log}"
    if not last.startswith(ERROR):  # the end of a traceback or of a library's output
        raise OperatorError(
            "process_died",
            f"covey up ended with exit code {process.returncode}; the last line of its log is: {last}",
            fix=fix,
        )
    code, _, message = last.removeprefix(ERROR).partition(": ")
    raise OperatorError(code, message, fix=fix)


def _show_until_ready(folder: Path, process: "subprocess.Popen[bytes]", log: Path, begun: int) -> str | None:
    """Print the new lines of a keeper's log until it is ready. Return None then, or else what the keeper waits for.

    Also returns when the process ends, or after READY_SECONDS. After REPEAT_SECONDS without a new line, it prints again
    what the keeper waits for.
    """
    from covey.local.keeper import REPEAT_SECONDS

    deadline, waiting = time.monotonic() + READY_SECONDS, threading.Event()
    awaited, spoken_at = f"{WAITING}the processes to start", time.monotonic()
    with log.open(errors="replace") as lines:
        lines.seek(begun)
        while process.poll() is None and time.monotonic() < deadline:
            line = lines.readline()
            if line.startswith(READY):
                typer.echo(f"running: {quote(line.removeprefix(READY).strip())}\nstop them with covey down {folder}")
                return None
            if line.startswith(WAITING):
                awaited = quote(line.rstrip())
            if not line and time.monotonic() < spoken_at + REPEAT_SECONDS:
                waiting.wait(0.1)
            elif not line.startswith(ERROR):  # `_detach` raises an error, which is printed then
                spoken_at = time.monotonic()
                typer.echo(quote(line.rstrip()) or awaited)
    return awaited


def down(folder: Folder = Path()) -> None:
    """Stop the processes that `covey up --detach` keeps running. No data is lost.

    Example: `covey down mypool`
    """
    from covey.local.folder import read_processes
    from covey.local.keeper import stop_keeper

    has_ended = stop_keeper(folder, say=typer.echo)
    if not has_ended:
        read_processes(folder)  # raises for a folder without processes, whose name is probably mistyped
    typer.echo(f"{folder}: ended" if has_ended else f"{folder}: nothing was running")
