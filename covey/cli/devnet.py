"""`covey devnet`: a chain on this machine."""

from pathlib import Path
from typing import Annotated

import typer

from covey.console.options import Json, Raw, show
from covey.errors import OperatorError

devnet = typer.Typer(help="Run a test chain on this machine and distribute its test tokens.", no_args_is_help=True)


@devnet.command("up")
def devnet_up(
    folder: Annotated[
        Path, typer.Option(help="Folder with the files of the test chain: its state, deployment.json and the log.")
    ] = Path(".covey/devnet"),
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port that the test chain listens on. 0 chooses a free port.")
    ] = 8545,
    block_time: Annotated[
        float, typer.Option(help="Seconds between blocks. 0 mines each transaction immediately.")
    ] = 1.0,
    seed: Annotated[str, typer.Option(help="Seed for all keys of the devnet.")] = "devnet",
    fresh: Annotated[
        bool,
        typer.Option("--fresh", help="Start a new chain and rename the files of the old one with the suffix .old."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Start a test chain on this machine and keep it running until Ctrl-C or SIGTERM.

    In a new folder, the command starts a new chain, deploys the contracts and writes deployment.json. Later starts
    continue the same chain with its pools and balances.

    Example: `covey devnet up --folder net`
    """
    import signal

    from covey.devnet.deploy import up

    anvil, deployment = up(folder, port=port, block_time=block_time or None, seed=seed, is_fresh=fresh)
    signals = {signal.SIGINT, signal.SIGTERM, signal.SIGCHLD}
    # An unblocked signal would end this process at once and leave Anvil running.
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
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
            "anvil_ended",
            f"the test chain's Anvil process ended unexpectedly; its log is {folder / 'anvil.log'}",
            fix="Run covey devnet up again",
        )


@devnet.command("fund")
def devnet_fund(
    address: Annotated[str, typer.Argument(help="Address that receives ether and test tokens.")],
    folder: Annotated[
        Path, typer.Option(help="Folder of the running test chain, as passed to covey devnet up.")
    ] = Path(".covey/devnet"),
    tokens: Annotated[
        str,
        typer.Option(
            metavar="AMOUNT",
            help="Number of test tokens to send, for example 1.5. With 0, the address receives only ether.",
        ),
    ] = "1000",
    seed: Annotated[str, typer.Option(help="Seed of the devnet's keys, as passed to covey devnet up.")] = "devnet",
    raw: Raw = False,
    as_json: Json = False,
) -> None:
    """Send ether and test tokens to an address.

    Example: `covey devnet fund ADDRESS --folder net --tokens 1000`
    """
    from covey.chain.amounts import SMALLEST, Amount, parse_amount, read_unit
    from covey.chain.contracts import Contracts
    from covey.chain.deployment import Deployment
    from covey.chain.json_rpc import open_chain
    from covey.console.addresses import read_address
    from covey.devnet.deploy import derive_wallet, fund

    receiver = read_address(address)
    deployment = Deployment.load(folder / "deployment.json")
    unit = SMALLEST if raw else read_unit(Contracts(open_chain(deployment), deployment).token)
    amount = parse_amount(tokens, unit, least=0)
    fund(deployment, derive_wallet(seed, "deployer"), {receiver: amount})
    show({"address": address, "tokens": Amount(amount, unit)}, as_json)
