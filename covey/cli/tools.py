"""Commands for one machine: a chain of one's own, keys, the tiny model, the demo."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from covey.cli.chain import Json, Raw, show
from covey.errors import OperatorError

devnet = typer.Typer(help="Run a chain on this machine and give its test tokens.", no_args_is_help=True)
wallet = typer.Typer(help="Make and show keys in files.", no_args_is_help=True)
model = typer.Typer(help="Make the demo's model.", no_args_is_help=True)


@devnet.command("up")
def devnet_up(
    folder: Annotated[Path, typer.Option(help="Folder of the chain: its state, deployment.json, log.")] = Path(
        ".covey/devnet"
    ),
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the chain; 0 takes a free one.")] = 8545,
    block_time: Annotated[float, typer.Option(help="Seconds per block; 0 mines each transaction at once.")] = 1.0,
    seed: Annotated[str, typer.Option(help="Seed that the keys of the devnet follow from.")] = "devnet",
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Begin a new chain; the old one's files are kept with the ending .old.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Start a chain on this machine and stay until a stop signal.

    A new folder gets a chain with the contracts and their deployment.json; later starts go on with that chain, its
    pools and its balances.

    Example: `covey devnet up --folder net`
    """
    import signal

    from covey.devnet.deploy import up

    anvil, deployment = up(folder, port=port, block_time=block_time or None, seed=seed, is_fresh=fresh)
    signals = {signal.SIGINT, signal.SIGTERM, signal.SIGCHLD}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)  # one that is not blocked ends us at once and leaves Anvil behind
    if as_json:
        show({"chain": anvil.url, "contracts": str(folder / "deployment.json"), "token": deployment.token}, as_json)
    else:
        typer.echo(f"chain     {anvil.url}\ncontracts {folder / 'deployment.json'}\ntoken     {deployment.token}")
    try:
        has_ended = anvil.process.poll() is not None or signal.sigwait(signals) == signal.SIGCHLD
    finally:
        anvil.stop()
    if has_ended:
        raise OperatorError(
            "anvil_ended", f"the node ended by itself; {folder / 'anvil.log'} may say why", fix="Start it again"
        )


@devnet.command("fund")
def devnet_fund(
    address: Annotated[str, typer.Argument(help="Address that receives ether and test tokens.")],
    folder: Annotated[Path, typer.Option(help="Folder of `covey devnet up`.")] = Path(".covey/devnet"),
    tokens: Annotated[
        str, typer.Option(metavar="AMOUNT", help="Amount of test tokens, for example 1.5; 0 gives ether alone.")
    ] = "1000",
    seed: Annotated[str, typer.Option(help="Seed of `covey devnet up`.")] = "devnet",
    raw: Raw = False,
    as_json: Json = False,
) -> None:
    """Give an address ether and test tokens.

    Example: `covey devnet fund ADDRESS --folder net --tokens 1000`
    """
    from covey.chain.amounts import SMALLEST, Amount, parse_amount, read_unit
    from covey.chain.contracts import Contracts
    from covey.chain.deployment import Deployment
    from covey.chain.json_rpc import ChainClient
    from covey.cli.addresses import read_address
    from covey.devnet.deploy import derive_wallet, fund

    receiver = read_address(address)
    deployment = Deployment.load(folder / "deployment.json")
    unit = SMALLEST if raw else read_unit(Contracts(ChainClient(deployment.choose_node()), deployment).token)
    given = parse_amount(tokens, unit, least=0)
    fund(deployment, derive_wallet(seed, "deployer"), {receiver: given})
    show({"address": address, "tokens": Amount(given, unit)}, as_json)


@wallet.command("new")
def wallet_new(
    file: Annotated[Path, typer.Argument(help="Key file to make, which must not exist.")], as_json: Json = False
) -> None:
    """Make a key in a new file and print its address.

    Example: `covey wallet new operator.key`
    """
    from covey.cli.account import make_key

    _show_address(make_key(file).address, as_json)


@wallet.command("show")
def wallet_show(file: Annotated[Path, typer.Argument(help="Key file to read.")], as_json: Json = False) -> None:
    """Print the address of a key file.

    Example: `covey wallet show operator.key`
    """
    from covey.chain.wallet import load_key

    _show_address(load_key(file).address, as_json)


def _show_address(address: str, as_json: bool) -> None:
    """The address alone, as in `$(covey wallet show FILE)`, or JSON."""
    typer.echo(json.dumps({"address": address}) if as_json else address)


@model.command("tiny")
def model_tiny(
    folder: Annotated[Path, typer.Argument(help="Folder that the model is written into.")],
    seed: Annotated[int, typer.Option(help="Seed that the weights follow from; the shipped model has 1.")] = 1,
) -> None:
    """Make the demo's model: a warm-started Qwen2 of a quarter million parameters, in about a minute.

    Example: `covey model tiny my-model --seed 2`
    """
    from covey.engines.hf.engine import prepare_process
    from trainer.tiny_model import warm_start_tiny

    prepare_process(threads=1)
    reward = warm_start_tiny(seed, folder, lambda step, loss: typer.echo(f"step {step:4d}  loss {loss:.3f}"))
    typer.echo(f"{folder}: mean reward {reward:.3f} on held-out prompts at temperature 1")


def demo(
    environment: Annotated[
        str,
        typer.Option(help="Task that is trained: math, code, mixture or reasoning_gym:chain_sum, for example math."),
    ] = "reasoning_gym:spell_backward",
    steps: Annotated[
        int | None,
        typer.Option(min=1, max=1000, help="Number of policies to train. Without it, 24, or fewer for slower tasks."),
    ] = None,
    workers: Annotated[int, typer.Option(min=1, max=16, help="Number of honest workers.")] = 2,
    cheats: Annotated[int, typer.Option(min=0, max=16, help="Number of dishonest workers, of two kinds in turn.")] = 2,
    max_staleness: Annotated[
        int,
        typer.Option(
            min=0, max=8, help="Steps by which the policy of a rollout may be older than the one that learns."
        ),
    ] = 1,
    seed: Annotated[int, typer.Option(help="Seed that keys and all randomness follow from.")] = 0,
    engine: Annotated[str, typer.Option(help="Inference engine of the workers: hf or vllm.")] = "hf",
    json_file: Annotated[
        Path | None, typer.Option("--json", help="File that the summary is written into as JSON.")
    ] = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Let the pool go on after these steps, until Ctrl-C, and say how to join it.")
    ] = False,
) -> None:
    """Run a whole network on this machine: chain, coordinator, trainer, workers, cheats, validators.

    Exit 0 only if the model learned, every cheat was slashed, no honest worker was, and all work was paid.

    The first run with another task than the default one makes its model, in about a minute, and keeps it in
    ~/.cache/covey.

    Example: `covey demo --environment math --steps 8 --workers 3 --cheats 1`
    """
    from covey.demo.cast import DemoOptions
    from covey.demo.environments import find_preset
    from covey.demo.run import run_demo
    from covey.runtime.files import write_atomically

    if json_file is not None and not json_file.resolve().parent.is_dir():
        raise OperatorError("no_folder", f"{json_file} has no folder", fix="Name a file in a folder that exists")
    options = DemoOptions(
        environment=environment,
        steps=steps or find_preset(environment).steps,
        workers=workers,
        cheats=cheats,
        max_staleness=max_staleness,
        seed=seed,
        engine=engine,
        keep=keep,
    )

    def write(summary: dict[str, Any]) -> None:
        if json_file is not None:
            write_atomically(json_file, json.dumps(summary, indent=2, sort_keys=True).encode() + b"\n")

    if run_demo(options, on_summary=write):
        raise typer.Exit(1)
