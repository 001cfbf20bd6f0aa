"""`covey join`: check a pool, create a worker's folder, and optionally stake, register and work."""

import shlex
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from covey.cli.enroll import enroll_workers
from covey.cli.up_down import keep_up
from covey.console.options import Bandwidth, Json, is_terminal, show
from covey.console.terminal import quote
from covey.errors import OperatorError, ProtocolError, TransientError

if TYPE_CHECKING:
    from covey.chain.amounts import TokenUnit
    from covey.chain.deployment import Deployment
    from covey.cli.doctor.snapshot import Check
    from covey.local.joining import CheckedPool
    from covey.protocol.api.public import PoolView

LATER = ("registration", "stake")
"""Checks of `covey doctor` that fail until the worker is enrolled."""
ANSWER_SECONDS = 60.0
"""Timeout in seconds for a coordinator that is still starting."""


def join(
    url: Annotated[str, typer.Argument(help="Base URL of the pool's coordinator.")],
    folder: Annotated[Path, typer.Argument(help="New folder to create for keys and settings.")] = Path("worker"),
    deployment: Annotated[
        Path | None,
        typer.Option(
            help="File deployment.json as published by the pool's operator. It says which contracts to trust."
        ),
    ] = None,
    rpc: Annotated[
        str | None,
        typer.Option(
            envvar="COVEY_RPC_URL", help="RPC URL of a node of the chain. By default the URL in deployment.json."
        ),
    ] = None,
    gpus: Annotated[
        int | None, typer.Option(min=0, help="Number of GPUs to use. By default all; 0 uses the CPU.")
    ] = None,
    together: Annotated[
        bool,
        typer.Option(
            "--together", help="Run one worker on all GPUs with tensor parallelism, instead of one worker per GPU."
        ),
    ] = False,
    key_file: Annotated[
        Path | None,
        typer.Option(
            help="Key file of the account that puts up the stake. With it, the workers are enrolled and "
            "started once all checks pass."
        ),
    ] = None,
    measure: Annotated[
        float | None,
        typer.Option(
            min=1.0,
            max=600.0,
            metavar="SECONDS",
            help="Measure this machine at the pool's work for SECONDS, and show what it would earn.",
        ),
    ] = None,
    bandwidth: Bandwidth = None,
    force: Annotated[
        bool, typer.Option("--force", help="Join although this machine lacks hardware that the pool asks for.")
    ] = False,
    yes: Annotated[
        bool,
        typer.Option(
            "--yes",
            help="Skip all confirmations: trust the contracts that the coordinator reports, and stake with --key-file.",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Prepare to work for a pool: check it against its chain, create keys and settings, and print the next steps.

    Tokens are staked only with --key-file. The command then shows the stake, asks for confirmation, stakes, registers,
    and works until Ctrl-C. If a check of `covey doctor` fails, the command ends with exit code 1 before it stakes
    anything. A machine that lacks hardware that the pool asks for is refused, unless --force is set.

    Example: `covey join http://127.0.0.1:8000 worker --deployment deployment.json`
    """
    from dataclasses import asdict

    from covey.chain.amounts import read_unit
    from covey.chain.contracts import Contracts
    from covey.chain.json_rpc import ChainClient
    from covey.local import joining
    from covey.local.folder import require_new
    from covey.runtime.log import log_to_stderr

    log_to_stderr()
    require_new(folder)
    _require_can_stake(key_file, is_agreed=yes)
    view = _wait_for_pool(url)
    chosen = _choose_deployment(view, url, deployment, rpc, is_agreed=yes)
    pool = joining.check_pool(view, url, chosen)
    unit = read_unit(Contracts(ChainClient(chosen.choose_node()), chosen).get_token(pool.pool))
    devices, tensor_parallel_size = choose_devices(gpus, is_together=together)
    gpus_used = 0 if devices == ["cpu"] else len(devices) * tensor_parallel_size
    misfits = _list_misfits(pool, folder, gpus_used, bandwidth)
    _require_fit(pool, misfits, is_forced=force)
    files = joining.create_worker_folder(folder, pool, devices, tensor_parallel_size)
    _give_test_money(pool, key_file or folder / "keys" / "contributor.key", len(files), unit)
    if not as_json:
        _describe(pool, folder, devices, tensor_parallel_size, unit)
    checks = _examine(files[0], raw=as_json)
    is_ready = all(check.status != "fail" for check in checks)
    for check in () if as_json else checks:
        if check.status in ("warn", "fail"):
            typer.echo(quote(f"{check.status}: {check.name}: {check.detail}.  {check.fix}"))
    earnings = _measure(files, measure, unit) if measure is not None and is_ready else {}
    if earnings and not as_json:
        typer.echo()
        show(earnings, as_json)
    enrolled = enroll_workers(folder, key_file, is_agreed=yes) if key_file is not None and is_ready else None
    steps = [] if enrolled else _list_steps(folder, files, key_file, is_ready=is_ready)
    if as_json:
        rows = [asdict(check) for check in checks]
        about = {"folder": str(folder), "workers": list(map(str, files)), "checks": rows, "misfits": misfits}
        show(about | {"earnings": earnings or None, "enrolled": enrolled, "next": steps}, as_json)
    elif enrolled:
        show(enrolled, as_json)
    else:
        typer.echo("\n".join(["", "Then:", *(f"  {step}" for step in steps)]))
    if enrolled:
        _work(folder, is_quiet=as_json)
    elif key_file is not None:
        raise typer.Exit(1)


def _require_can_stake(key_file: Path | None, *, is_agreed: bool) -> None:
    """Raise OperatorError before anything is created if the key is unreadable or nobody can confirm the stake."""
    from covey.chain.wallet import load_key

    if key_file is None:
        return
    load_key(key_file)
    if not is_agreed and not is_terminal():
        raise OperatorError(
            "not_confirmed",
            "with --key-file this command stakes tokens, but there is no terminal to ask for confirmation",
            fix="Add --yes, or remove --key-file and run covey worker enroll later",
        )


def _wait_for_pool(url: str) -> "PoolView":
    """Return the coordinator's description of the pool. Retry until ANSWER_SECONDS while the coordinator starts."""
    import asyncio

    from covey.local.joining import ask_for_pool

    deadline, waiting, is_said = time.monotonic() + ANSWER_SECONDS, threading.Event(), False
    while True:
        try:
            return asyncio.run(ask_for_pool(url))
        except TransientError:
            if time.monotonic() >= deadline:
                raise
            if not is_said:
                is_said = True
                typer.echo(f"waiting at most {ANSWER_SECONDS:.0f} s for {url} to respond", err=True)
            waiting.wait(0.5)


def _choose_deployment(
    view: "PoolView", url: str, deployment: Path | None, rpc: str | None, *, is_agreed: bool
) -> "Deployment":
    """Return the contracts to trust: those in the operator's file, or those from the coordinator if the user confirms
    them.
    """
    from covey.chain.deployment import Deployment
    from covey.local.joining import with_node
    from covey.network.pool_view import build_deployment, require_same_contracts

    if deployment is not None:
        loaded = with_node(Deployment.load(deployment), rpc)
        require_same_contracts(view, loaded)
        return loaded
    if rpc is None:
        raise OperatorError(
            "no_deployment",
            "it is unknown which contracts to trust with your stake, because neither --deployment nor --rpc is set",
            fix="Add --deployment with the operator's deployment.json, or --rpc with a node of the chain",
        )
    named = build_deployment(view, rpc)
    if is_agreed:
        return named
    for name, value in ({"chain": named.chain_id} | named.get_contracts() | {"token": named.token}).items():
        typer.echo(f"{name:>16}  {value}", err=True)
    question = (
        f"These contracts, reported by {url}, will hold your stake. Are they the contracts that the operator published?"
    )
    if not is_terminal():
        raise OperatorError(
            "not_confirmed",
            question,
            fix="Compare the contracts and add --yes, or set the operator's file with --deployment",
        )
    typer.confirm(question, abort=True, err=True)
    return named


def choose_devices(gpus: int | None, *, is_together: bool) -> tuple[list[str], int]:
    """Return one device per worker, and the number of GPUs that each worker uses."""
    from covey.engines.installation import list_accelerators

    available = len(list_accelerators()) if gpus != 0 else 0
    count = available if gpus is None else gpus
    if count > available:
        raise OperatorError(
            "bad_device",
            f"{count} GPUs were requested with --gpus, but torch finds {available}",
            fix=f"Use --gpus {available} or fewer",
        )
    if count == 0:
        return ["cpu"], 1
    if is_together:
        return ["cuda"], count
    return ([f"cuda:{i}" for i in range(count)] if count > 1 else ["cuda"]), 1


def _list_misfits(pool: "CheckedPool", folder: Path, gpus: int, bandwidth: float | None) -> list[str]:
    from covey.cli.doctor.machine_facts import look_at_machine
    from covey.protocol.hardware_needs import list_misfits

    machine = look_at_machine(folder, gpus=gpus, bandwidth_mbits=bandwidth)
    return list_misfits(pool.params.needs, machine, models=pool.params.verification.list_models())


def _require_fit(pool: "CheckedPool", misfits: Sequence[str], *, is_forced: bool) -> None:
    """Raise OperatorError("machine_misfit") if this machine lacks what the pool asks for, or warn with --force."""
    if misfits and not is_forced:
        raise OperatorError(
            "machine_misfit",
            f"this machine does not fit pool {pool.pool}: {quote(' '.join(misfits))}",
            fix="Choose a pool that covey market --fits lists, or join anyway with --force",
        )
    for sentence in misfits:
        typer.echo(quote(f"warn: {sentence}"), err=True)


def _give_test_money(pool: "CheckedPool", key_file: Path, workers: int, unit: "TokenUnit") -> None:
    """On a devnet, send ether, and the stake if the pool's token is the devnet's own. Return whether this succeeded."""
    from covey.chain.amounts import format_amount
    from covey.chain.wallet import load_key
    from covey.local.joining import is_devnet
    from covey.local.pool_opening import SPARE, give_test_money

    if not is_devnet(pool.deployment):
        return
    address, is_own = load_key(key_file).address, pool.terms.token == pool.deployment.token
    amount = SPARE * workers * pool.terms.min_stake if is_own else 0
    try:
        give_test_money(pool.deployment, {address: amount})
    except (ProtocolError, TransientError) as error:
        typer.echo(quote(f"warn: no test tokens were received: {error.message}"), err=True)
        return
    gift = f"{format_amount(amount, unit)} and ether for gas" if is_own else "ether for gas"
    typer.echo(f"test chain: {address} received {gift}", err=True)


def _describe(
    pool: "CheckedPool", folder: Path, devices: list[str], tensor_parallel_size: int, unit: "TokenUnit"
) -> None:
    from covey.chain.amounts import format_amount

    params = pool.params
    values = {
        "pool": quote(f"{pool.pool}, {params.name}, operated by {pool.operator}"),
        "chain": f"{pool.deployment.chain_id}; the coordinator's terms and parameters match the chain",
        "work": f"{quote(params.environment.kind)}, up to {params.model.longest} tokens, {params.model.compute_dtype}",
        "engine": params.verification.worker_engine,
        "hardware": params.verification.hardware if params.verification.mode == "calibrated" else "as in the contracts",
        "reward": f"{format_amount(pool.terms.reward_per_million, unit)} per million tokens of accepted work",
        "stake": f"{format_amount(pool.terms.min_stake, unit)} per worker; a cheat loses "
        f"{format_amount(pool.terms.slash_amount, unit)}",
        "workers": ", ".join(devices)
        + (f", on {tensor_parallel_size} GPUs with tensor parallelism" if tensor_parallel_size > 1 else ""),
        "folder": folder,
    }
    for digest, contract in params.verification.list_digests().items():
        values[f"contract {digest[:10]}"] = contract.describe()
    if pool.terms.is_invite_only:
        values["invitation"] = (
            "required: the operator must run covey pool invite with the address of the key that stakes"
        )
    show(values, as_json=False)


def _examine(file: Path, *, raw: bool) -> "list[Check]":
    """Return the rows of `covey doctor` for a worker, without the checks that fail until it is enrolled."""
    from covey.cli.doctor.role_checks import check_role
    from covey.local.folder import get_environment
    from worker.config import WorkerConfig

    rows = check_role("worker", WorkerConfig.load(file, environment=get_environment()), raw=raw)
    return [check for check in rows if check.name not in LATER]


def _measure(files: Sequence[Path], seconds: float, unit: "TokenUnit") -> dict[str, Any]:
    """Measure the first worker, and return what all workers of the folder would earn together."""
    from covey.console.earnings_lines import describe_earnings
    from covey.local.folder import get_environment
    from covey.network.earnings import expect_earnings
    from worker.config import WorkerConfig
    from worker.measuring import measure

    speed = measure(WorkerConfig.load(files[0], environment=get_environment()), seconds)
    total = len(files) * speed.tokens_per_second
    return {"tokens_per_second": round(total, 1)} | describe_earnings(
        expect_earnings(speed.terms, speed.params, total), unit
    )


def _list_steps(folder: Path, files: Sequence[Path], key_file: Path | None, *, is_ready: bool) -> list[str]:
    """List the commands that the user still has to run."""
    look = [] if is_ready else [["doctor", "--config", files[0]]]
    enroll = ["worker", "enroll", folder, *(["--key-file", key_file] if key_file else [])]
    return [shlex.join(["covey", *map(str, words)]) for words in (*look, enroll, ["up", folder, "--detach"])]


def _work(folder: Path, *, is_quiet: bool) -> None:
    """Run the workers until Ctrl-C. Status lines go to standard error if standard output is JSON."""
    from rich.console import Console

    keep_up(folder, Console(stderr=is_quiet))
