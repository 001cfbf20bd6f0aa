"""Commands for a pool on one machine: make its folder, open it on chain, keep its processes running."""

import contextlib
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from covey.cli.chain import Json, pool, show
from covey.errors import OperatorError, TransientError

if TYPE_CHECKING:
    from rich.console import Console

    from covey.local.keeper import Keeper
    from covey.local.screen import Screen

init = typer.Typer(help="Make folders with keys and settings.", no_args_is_help=True)

Folder = Annotated[Path, typer.Argument(help="Folder that `covey init pool` or `covey join` has made.")]
READY = "ready: "
"""A detached keeper has begun well once it has said this."""
READY_SECONDS = 300.0
CHAIN_SECONDS = 60.0


@init.command("pool")
def init_pool(
    folder: Annotated[Path, typer.Argument(help="New folder of the pool.")],
    chain: Annotated[
        str, typer.Option(help="Chain of the pool: devnet (one in the folder, for trying out) or the URL of a node.")
    ] = "devnet",
    deployment: Annotated[
        Path | None, typer.Option(help="File deployment.json of a chain that is named by its URL; see `covey deploy`.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Folder or hub name of the model to train; by default a tiny one.")
    ] = None,
    environment: Annotated[str, typer.Option(help="Kind of environment that asks and grades.")] = "reasoning_gym",
    validators: Annotated[int, typer.Option(min=1, max=32, help="Number of validators.")] = 3,
    device: Annotated[str, typer.Option(help="Device of trainer and validators, for example cuda.")] = "cpu",
    port: Annotated[
        int, typer.Option(min=1024, max=65532, help="First of four ports: coordinator, origin, relay, chain.")
    ] = 8000,
    as_json: Json = False,
) -> None:
    """Make a folder with everything that a pool's operator needs, and say what comes next.

    The folder holds the keys of operator, trainer, arbiter and validators, pool.toml with their addresses, and settings
    of every role.  Nothing is written that exists, and nothing is sent to a chain.

    Example: `covey init pool mypool --validators 3`
    """
    from dataclasses import replace

    from covey.chain.deployment import Deployment
    from covey.environments.registry import KINDS
    from covey.local.folder import PoolPlan, create_pool_folder

    if environment not in KINDS:
        raise OperatorError(
            "bad_environment", f"there is no environment of kind {environment}", fix=f"Use one of {', '.join(KINDS)}"
        )
    is_devnet = chain == "devnet"
    if is_devnet == (deployment is not None):
        what = "a devnet makes its own contracts" if is_devnet else f"{chain} needs the contracts' addresses"
        fix = "Leave --deployment out, or name the chain's URL with --chain" if is_devnet else "Add --deployment FILE"
        raise OperatorError("bad_settings", what, fix=fix)
    contracts = None if deployment is None else replace(Deployment.load(deployment), rpc_url=chain)
    if model is not None and Path(model).is_dir():
        model = str(Path(model).resolve())  # the trainer runs in the pool's folder
    elif model is not None and model.startswith((".", "/", "~")):
        raise OperatorError("model_unavailable", f"there is no folder {model}", fix="Name a folder or a model on a hub")
    plan = PoolPlan(
        validators=validators,
        environment=environment,
        model=model,
        deployment=contracts,
        port=port,
        device=device,
    )
    addresses = create_pool_folder(folder, plan)
    url = f"http://127.0.0.1:{port}"
    steps = [f"covey up {folder} --detach", f"covey join {url} worker --deployment {folder}/chain/deployment.json"]
    if not is_devnet:
        steps = [f"covey pool open {folder}", *steps]
    if as_json:
        show({"folder": str(folder), "addresses": addresses, "next": steps}, as_json)
        return
    for name, address in addresses.items():
        typer.echo(f"{name:>14}  {address}  {folder}/keys/{name}.key")
    typer.echo(f"\nLook at {folder}/pool.toml: nothing of it can be changed once the pool is open.  Then:")
    for step in steps:
        typer.echo(f"  {step}")


@pool.command("open")
def pool_open(
    folder: Folder,
    escrow: Annotated[str, typer.Option(help="Amount that the escrow holds afterwards, at least, in tokens.")] = "100",
    bond: Annotated[str, typer.Option(help="Amount of the operator's bond afterwards, at least, in tokens.")] = "10",
    as_json: Json = False,
) -> None:
    """Open the pool of a folder on its chain.

    Creates and funds it, puts up the bonds of operator and validators, and starts it.  What is done already is
    not done again, so the command can be repeated after any failure.

    Example: `covey pool open mypool --escrow 100`
    """
    from covey.local.opening import open_pool

    number = open_pool(folder, escrow=escrow, operator_bond=bond, say=lambda line: typer.echo(line, err=as_json))
    if as_json:
        show({"pool": number}, as_json)


def up(
    folder: Folder = Path(),
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Return once all runs; `covey down` ends it.")] = False,
) -> None:
    """Start all processes of a folder and keep them running until Ctrl-C.

    A devnet's pool is opened on its chain first.  A process that fails is started again.  Logs are in FOLDER/logs.

    Example: `covey up mypool`
    """
    from rich.console import Console

    from covey.local.folder import read_processes

    if detach:
        read_processes(folder)
        _detach(folder)
    else:
        keep_up(folder, Console())


def keep_up(folder: Path, console: "Console") -> None:
    """Keep the processes of a folder running until Ctrl-C, and show them on `console`."""
    from covey.local.folder import read_processes
    from covey.local.keeper import Keeper, locked
    from covey.local.screen import Screen

    commands = read_processes(folder)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # also where a shell has started us with Ctrl-C ignored
    with locked(folder), Screen(console, folder, find_coordinator(folder)) as screen:
        keeper = Keeper(folder, commands, say=screen.say)
        try:
            _run(folder, keeper, screen)
        except KeyboardInterrupt:
            screen.say("ending")
        finally:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # ending is not to be interrupted
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            keeper.stop()


def _run(folder: Path, keeper: "Keeper", screen: "Screen") -> None:
    """Until an interrupt."""
    from covey.local.keeper import LOOK_SECONDS
    from covey.local.opening import ESCROW, OPERATOR_BOND, find_open_pool, open_pool
    from covey.local.readiness import Readiness

    Readiness(folder, keeper.kept).require_free_port()
    keeper.prepare()
    names = [each.name for each in keeper.kept]
    if "chain" in names:
        keeper.start("chain")
        _await_chain(folder, keeper)
    if (folder / "pool.toml").exists() and find_open_pool(folder) is None:
        if "chain" not in names:
            raise OperatorError(
                "pool_not_open", f"the pool of {folder} is not open on its chain", fix=f"Run covey pool open {folder}"
            )
        open_pool(folder, escrow=ESCROW, operator_bond=OPERATOR_BOND, say=screen.say)
    keeper.start()
    readiness = Readiness(folder, keeper.kept)  # only now: the opening corrects the pool's number
    is_ready, waiting = False, threading.Event()
    while True:
        keeper.look()
        if not is_ready and readiness.is_reached():
            is_ready = True
            screen.say(f"{READY}{', '.join(names)}; logs are in {folder / 'logs'}")
        screen.show(keeper.kept)
        waiting.wait(LOOK_SECONDS)


def _await_chain(folder: Path, keeper: "Keeper") -> None:
    """Until the folder's own chain answers; raise OperatorError("chain_failed")."""
    from covey.chain.client import ChainClient
    from covey.chain.deployment import Deployment
    from covey.local.folder import DEPLOYMENT_FILE
    from covey.local.logs import has_said, read_last

    (chain,) = (each for each in keeper.kept if each.name == "chain")
    assert chain.running is not None
    deadline, waiting = time.monotonic() + CHAIN_SECONDS, threading.Event()
    while True:
        if chain.running.exit_code is not None or time.monotonic() >= deadline:
            last = read_last(chain.running.log)
            raise OperatorError("chain_failed", f"the chain does not run: {last}", fix=f"Read {chain.running.log}")
        if has_said(chain.running.log, chain.running.begun, "token "):  # its last line: the contracts are there
            with contextlib.suppress(TransientError):
                ChainClient(Deployment.load(folder / DEPLOYMENT_FILE).rpc_url).chain_id()
                return
        waiting.wait(0.1)


def find_coordinator(folder: Path) -> str | None:
    """The URL of the folder's own coordinator on this machine; None where it has none."""
    from covey.local.readiness import find_settings, find_url

    settings = find_settings(folder)
    return None if settings is None else find_url(settings)


def _detach(folder: Path) -> None:
    """Start a keeper that outlives this command, and show what it says until it is ready."""
    from covey.local.logs import read_last

    logs = folder / "logs"
    logs.mkdir(exist_ok=True)
    log = logs / "up.log"
    log.touch()
    begun = log.stat().st_size
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "covey", "up", str(folder)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    deadline, waiting = time.monotonic() + READY_SECONDS, threading.Event()
    with log.open() as lines:
        lines.seek(begun)
        while process.poll() is None and time.monotonic() < deadline:
            line = lines.readline()
            if not line:
                waiting.wait(0.1)
            elif line.startswith(READY):
                typer.echo(f"running: {line.removeprefix(READY).strip()}\nend them with covey down {folder}")
                return
            else:
                typer.echo(line.rstrip())
    if process.poll() is None:
        raise OperatorError(
            "not_ready",
            f"{folder} is not ready after {READY_SECONDS:.0f} s",
            fix=f"Read {log}; covey down {folder} ends it",
        )
    code, _, message = read_last(log).removeprefix("covey: ").partition(": ")
    raise OperatorError(
        code or "process_died", message or f"covey up ended with {process.returncode}", fix=f"Read {log}"
    )


def down(folder: Folder = Path()) -> None:
    """End what `covey up --detach` keeps running; all work is kept.

    Example: `covey down mypool`
    """
    from covey.local.keeper import stop_keeper

    typer.echo(f"{folder}: ended" if stop_keeper(folder) else f"{folder}: nothing ran")


def deploy(
    rpc: Annotated[str, typer.Option(help="URL of a node of the chain.")],
    token: Annotated[str, typer.Option(help="Address of the ERC-20 that pools pay and stake in.")],
    key_file: Annotated[
        Path, typer.Option(help="Key that pays for the contracts; it may pause new work, nothing else.")
    ],
    out: Annotated[Path, typer.Option(help="File to write, which must not exist.")] = Path("deployment.json"),
    as_json: Json = False,
) -> None:
    """Deploy Covey's contracts to a chain and write deployment.json for everyone who uses them.

    Example: `covey deploy --rpc http://node:8545 --token TOKEN --key-file admin.key`
    """
    from dataclasses import asdict

    from covey.chain.client import ChainClient
    from covey.chain.wallet import load_key
    from covey.cli.addresses import read_address
    from covey.devnet import deploy as deploy_contracts

    if out.exists():
        raise OperatorError("file_exists", f"{out} exists", fix="Name a new file with --out")
    if not out.resolve().parent.is_dir():
        raise OperatorError("no_folder", f"{out} has no folder", fix="Name a file in a folder that exists")
    address = read_address(token)
    if ChainClient(rpc).request("eth_getCode", address, "latest") == "0x":
        raise OperatorError(
            "no_token", f"there is no contract at {address} on {rpc}", fix="Name an ERC-20 with --token"
        )
    deployment = deploy_contracts(rpc, load_key(key_file), token=address, say=lambda line: typer.echo(line, err=True))
    deployment.save(out)
    show(asdict(deployment) if as_json else {"contracts": str(out), "chain": deployment.chain_id}, as_json)
