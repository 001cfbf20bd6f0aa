"""Commands that set a pool up, in this order: deploy the contracts, make the pool's folder, open the pool on chain."""

from pathlib import Path
from typing import Annotated

import typer

from covey.cli.chain import Json, pool, show
from covey.cli.local import Folder
from covey.errors import OperatorError

init = typer.Typer(help="Make folders with keys and settings.", no_args_is_help=True)


def deploy(
    rpc: Annotated[str, typer.Option(envvar="COVEY_RPC_URL", help="URL of a node of the chain.")],
    token: Annotated[str, typer.Option(help="Address of the ERC-20 that pools pay and stake in.")],
    key_file: Annotated[
        Path, typer.Option(help="Key that pays for the contracts; it may pause new work, nothing else.")
    ],
    out: Annotated[Path, typer.Option(help="File to write, which must not exist.")] = Path("deployment.json"),
    as_json: Json = False,
) -> None:
    """Deploy Covey's contracts to a chain and write deployment.json for everyone who uses them.

    The file names the node only if its URL is a host alone: a path, a query or a user may be a provider's key.

    Example: `covey deploy --rpc http://node:8545 --token TOKEN --key-file admin.key`
    """
    from dataclasses import asdict

    from covey.chain import deploying
    from covey.chain.client import ChainClient
    from covey.chain.wallet import load_key
    from covey.cli.addresses import read_address
    from covey.urls import show_host

    if out.exists():
        raise OperatorError("file_exists", f"{out} exists", fix="Name a new file with --out")
    if not out.resolve().parent.is_dir():
        raise OperatorError("no_folder", f"{out} has no folder", fix="Name a file in a folder that exists")
    address = read_address(token)
    if not ChainClient(rpc).has_code(address):
        raise OperatorError(
            "no_token", f"there is no contract at {address} on {show_host(rpc)}", fix="Name an ERC-20 with --token"
        )
    deployment = deploying.deploy(rpc, load_key(key_file), token=address, say=lambda line: typer.echo(line, err=True))
    deployment.save(out)
    published = asdict(deployment.without_secrets())
    show(published if as_json else {"contracts": str(out), "chain": deployment.chain_id}, as_json)


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
    from covey.chain.deployment import Deployment
    from covey.environments.registry import KINDS
    from covey.local.folder import NamedChain, PoolPlan, create_pool_folder

    if environment not in KINDS:
        raise OperatorError(
            "bad_environment", f"there is no environment of kind {environment}", fix=f"Use one of {', '.join(KINDS)}"
        )
    is_devnet = chain == "devnet"
    if is_devnet == (deployment is not None):
        what = "a devnet makes its own contracts" if is_devnet else f"{chain} needs the contracts' addresses"
        fix = "Leave --deployment out, or name the chain's URL with --chain" if is_devnet else "Add --deployment FILE"
        raise OperatorError("bad_settings", what, fix=fix)
    named = None if deployment is None else NamedChain(deployment=Deployment.load(deployment), rpc_url=chain)
    if model is not None and Path(model).is_dir():
        model = str(Path(model).resolve())  # the trainer runs in the pool's folder
    elif model is not None and model.startswith((".", "/", "~")):
        raise OperatorError("model_unavailable", f"there is no folder {model}", fix="Name a folder or a model on a hub")
    plan = PoolPlan(
        validators=validators,
        environment=environment,
        model=model,
        chain=named,
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
