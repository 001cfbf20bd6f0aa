"""Commands that prepare a pool: deploy the contracts to a chain, create the pool's folder."""

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from covey.console.options import Json, show
from covey.errors import OperatorError
from covey.runtime.files import write_atomically
from covey.runtime.urls import hide_secrets, is_plain_url, is_public_url, show_host

if TYPE_CHECKING:
    from covey.chain.chain_profile import ChainProfile
    from covey.environments.base import EnvironmentSpec
    from covey.local.plan import NamedChain, PoolPlan
    from covey.local.sizing import Sizes

FILE_BYTES = 4096
"""Bytes that must fit on the disk for deployment.json. The file is always smaller."""

init = typer.Typer(help="Create a pool's folder with keys and settings.", no_args_is_help=True)


def deploy(
    rpc: Annotated[str, typer.Option(envvar="COVEY_RPC_URL", help="RPC URL of a node of the chain.")],
    token: Annotated[str, typer.Option(help="Address of the ERC-20 token in which pools pay rewards and hold stake.")],
    key_file: Annotated[
        Path,
        typer.Option(
            help="Key file of the account that pays for the deployment. Its only later power is to pause new work."
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(
            help="New file to write the deployment to, as JSON. The journal and the folder for source verification are "
            "next to it."
        ),
    ] = Path("deployment.json"),
    chain: Annotated[
        Path | None,
        typer.Option(
            help="Profile of the chain, for example configs/chains/base-sepolia.toml: chain id, ceilings of fees and "
            "confirmations."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Deploy Covey's contracts to a chain and write a deployment.json for everyone who uses them.

    If the command is interrupted, the same command goes on: it finds in the journal what was signed, and deploys
    nothing twice. It refuses to go on with contracts of another version. One command at a time deploys with the
    account. The ceilings of fees hold, with `max_spend_per_day`.

    The file contains the URL of the chain node only if the URL has no path, query or user name, because these may
    contain a secret key.

    Example: `covey deploy --rpc http://node:8545 --token TOKEN --key-file admin.key`
    """
    from dataclasses import asdict

    from covey.chain import deploying
    from covey.chain.fee_settings import FeeSettings
    from covey.chain.fees import FeeLimits
    from covey.chain.json_rpc import ChainClient
    from covey.chain.verification import write_verification
    from covey.chain.wallet import load_key
    from covey.console.addresses import read_address

    journal, sources = out.with_name(f"{out.name}.journal"), out.with_name(f"{out.stem}-verification")
    _require_new(out, journal)
    profile = _read_profile(chain, rpc)
    address = read_address(token)
    if not ChainClient(rpc).has_code(address):
        raise OperatorError(
            "no_token",
            f"there is no contract at the token address {address} on {show_host(rpc)}",
            fix="Set --token to the address of an ERC-20 token",
        )
    deployment = deploying.deploy(
        rpc,
        load_key(key_file),
        token=address,
        start="finalized" if profile is None else profile.finality,
        journal=journal,
        limits=FeeLimits.of(profile or FeeSettings.load(None)),
        confirmations=0 if profile is None else profile.confirmations,
        say=lambda line: typer.echo(line, err=True),
    )
    deployment.save(out)
    if not write_verification(sources, journal):
        typer.echo(
            f"the sources are not in this installation. For source verification run the same command again in a "
            f"checkout of Covey after make setup; it only writes {sources}",
            err=True,
        )
    published = asdict(deployment.without_secrets())
    shown = {"contracts": str(out), "chain": deployment.chain_id, "verification": str(sources)}
    show(published if as_json else shown, as_json)


def _read_profile(file: Path | None, rpc: str) -> "ChainProfile | None":
    """Read a profile. Raises OperatorError("wrong_chain") if the node is of another chain."""
    from covey.chain.chain_profile import ChainProfile
    from covey.chain.json_rpc import ChainClient

    if file is None:
        return None
    profile = ChainProfile.load(file)
    found = ChainClient(rpc).chain_id()
    if found != profile.chain_id:
        raise OperatorError(
            "wrong_chain",
            f"{file} is for {profile.name}, chain {profile.chain_id}, but {show_host(rpc)} has chain {found}",
            fix=f"Use a node of {profile.name}, or another profile",
        )
    return profile


def _require_new(out: Path, journal: Path) -> None:
    """Check that the output file is new or of a deployment to resume, and that it can be written, before gas is paid.

    Raises OperatorError("file_exists") or OperatorError("no_folder").
    """
    if out.exists() and not journal.exists():
        raise OperatorError("file_exists", f"the output file {out} already exists", fix="Choose a new file with --out")
    probe = out.with_name(f".{out.name}.probe")
    try:
        # An empty file could be created even on a full disk.
        write_atomically(probe, b" " * FILE_BYTES)
    except OSError as error:
        what = f"{out} cannot be written: {error.strerror}"
        raise OperatorError("no_folder", what, fix="Choose a file in a folder that you can write to") from error
    finally:
        probe.unlink(missing_ok=True)


@init.command("pool")
def init_pool(
    folder: Annotated[Path, typer.Argument(help="New folder to create for the pool.")],
    chain: Annotated[
        str | None,
        typer.Option(
            help="Chain of the pool: devnet (a test chain in the folder) or the RPC URL of a node. "
            "The default is devnet, or with --deployment the URL in the environment variable "
            "COVEY_RPC_URL."
        ),
    ] = None,
    deployment: Annotated[
        Path | None,
        typer.Option(
            help="File deployment.json with the contracts on the chain, as written by covey deploy. "
            "Required if --chain is a URL."
        ),
    ] = None,
    public_url: Annotated[
        str | None,
        typer.Option(help="Public base URL of the coordinator. Required if --chain is a URL."),
    ] = None,
    relay: Annotated[
        list[str] | None,
        typer.Option(
            help="Public base URL of a relay; may be repeated. By default the host of --public-url "
            "with the relay's port."
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="Model to train: a folder or a name on the Hugging Face Hub. By default the tiny model of the demo."
        ),
    ] = None,
    environment: Annotated[
        str | None,
        typer.Option(
            help="Environment that sets the tasks: a kind such as math, reasoning_gym:GENERATOR, or mixture for all "
            "task types of --dataset. By default the demo's, or the only task type of --dataset."
        ),
    ] = None,
    from_file: Annotated[
        Path | None,
        typer.Option(
            "--from",
            help="TOML file of covey train, or the folder or manifest.json of a run. The pool gets its model, "
            "questions, lengths, loss and seed. --model names another model, for example my-run/exports/40.",
        ),
    ] = None,
    dataset: Annotated[
        str | None,
        typer.Option(
            help="Rows of the tasks, as covey tasks import reads them (a file, a folder or OWNER/NAME of a hub), or a "
            "data set that it has written."
        ),
    ] = None,
    validators: Annotated[
        int, typer.Option(min=1, max=32, help="Number of validators to create keys and settings for.")
    ] = 3,
    device: Annotated[
        str, typer.Option(help="Device that trainer and validators compute on, for example cuda.")
    ] = "cpu",
    port: Annotated[
        int | None,
        typer.Option(
            min=1024,
            max=65531,
            help="First of five consecutive ports, for the coordinator, the origin, the relay, the chain and the "
            "pages. By default 8000, or on a devnet the next free ones.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Create a folder with everything that a pool's operator needs, and print the next steps.

    The folder contains the keys of operator, trainer, arbiter and validators, a pool.toml with their addresses, and the
    settings of every role. Nothing is overwritten, and nothing is sent to a chain. With --model or --dataset, lengths
    and sizes are chosen by the model's context and the lengths of the questions, and shown with the reasons.

    On an existing chain, --public-url is required, because contributors must reach the coordinator. The command lists
    where each public URL must lead.

    With --from, a run on one machine becomes a pool.

    Example: `covey init pool mypool --model ./my-model --dataset rows.jsonl --environment math`
    """
    from covey.engines.installation import describe_hardware
    from covey.local.folder import create_pool_folder, open_scratch, require_new
    from covey.local.new_environment import choose_environment, import_data_set
    from covey.local.plan import FIRST_PORT, PoolPlan
    from covey.local.ports import find_free_block
    from covey.model.model_names import find_model

    model = model and find_model(model)  # an absolute path, because the trainer runs in the pool's folder
    describe_hardware(device)  # refuses a device that torch does not find, which would end trainer and validators
    # As an option, the URL would show a provider's key in the list of processes.
    if chain is None and deployment is not None:
        chain = os.environ.get("COVEY_RPC_URL")
    named_chain = _read_chain(chain or "devnet", deployment, public_url, relay or [])
    chosen_port = port or (FIRST_PORT if named_chain else find_free_block())
    plan = PoolPlan(validators=validators, model=model, chain=named_chain, port=chosen_port, device=device)
    with open_scratch(require_new(folder)) as scratch:
        if from_file is not None:
            _require_alone(from_file, {"--environment": environment, "--dataset": dataset})
            plan = _plan_from_run(plan, from_file, scratch)
        else:
            data_set = None
            if dataset is not None:
                data_set = scratch / "tasks"
                import_data_set(dataset, data_set, environment)
            spec = choose_environment(environment, data_set)
            sizes = None if model is None and spec is None else _choose_sizes(model, spec, data_set)
            plan = replace(plan, environment=spec, sizes=sizes, data_set=data_set)
        addresses = create_pool_folder(folder, plan)
    places = plan.describe_public_urls() if plan.chain else {}
    steps = _list_next_steps(folder, plan)
    choices = {} if plan.sizes is None else plan.sizes.list_choices()
    if as_json:
        shown = {name: {"value": choice.value, "reason": choice.reason} for name, choice in choices.items()}
        values = {"folder": str(folder), "addresses": addresses, "sizes": shown, "reachable": places, "next": steps}
        show(values, as_json)
        return
    for name, address in addresses.items():
        typer.echo(f"{name:>14}  {address}  {folder}/keys/{name}.key")
    if choices:
        typer.echo("\nSizes that suit the model and the questions:")
    for name, choice in choices.items():
        typer.echo(f"  {name:>21}  {choice.value:<8}  {choice.reason}")
    if plan.port != (port or FIRST_PORT):
        typer.echo(f"\nThe ports are {plan.port} to {plan.port + 3}, because one from {FIRST_PORT} on is in use.")
    typer.echo(f"\nCheck {folder}/pool.toml before you open the pool: it cannot be changed afterwards.")
    if places:
        typer.echo("These URLs must be reachable by everyone, including this machine:")
    for url, place in places.items():
        typer.echo(f"  {url}  ({place})")
    typer.echo("Then:")
    for step in steps:
        typer.echo(f"  {step}")


def _require_alone(file: Path, others: Mapping[str, str | None]) -> None:
    """Raise OperatorError("bad_settings") if --from is combined with an option whose value the file has."""
    if named := [name for name, value in others.items() if value is not None]:
        raise OperatorError(
            "bad_settings",
            f"--from cannot be combined with {' and '.join(named)}, because {file} has their values",
            fix="Write them into the file, or leave --from out",
        )


def _plan_from_run(plan: "PoolPlan", file: Path, scratch: Path) -> "PoolPlan":
    from covey.model.model_names import find_model
    from covey.standalone.pool_exchange import draft_pool, load_run

    config = load_run(file)
    if plan.model is not None:
        config = config.model_copy(update={"model": config.model.model_copy(update={"path": plan.model})})
    draft = draft_pool(config, scratch / "run")
    return replace(
        plan,
        environment=draft.environment,
        model=draft.model and find_model(draft.model),
        data_set=draft.data_set,
        sizes=draft.sizes,
        training=draft.training,
        learning=draft.learning,
        device=draft.device,
    )


def _choose_sizes(model: str | None, spec: "EnvironmentSpec | None", data_set: Path | None) -> "Sizes":
    """Choose the sizes of a new pool. None means the tiny model, and the environment of the shipped pool.toml."""
    from covey.environments import registry
    from covey.local.plan import read_shipped_params
    from covey.local.sizing import choose_sizes
    from covey.model.tiny import tiny_folder
    from covey.tasks.catalog import DataSetCatalog

    environment = registry.load(spec or registry.DEMO, DataSetCatalog([] if data_set is None else [data_set]))
    return choose_sizes(model or tiny_folder(), environment, read_shipped_params())


def _read_chain(
    chain: str, deployment: Path | None, public_url: str | None, relays: Sequence[str]
) -> "NamedChain | None":
    """Return the existing chain that the options specify. None if the pool is for a devnet.

    Raises OperatorError("bad_settings") if options contradict each other, OperatorError("no_public_url") or
    OperatorError("bad_url").
    """
    from covey.chain.deployment import Deployment
    from covey.local.plan import NamedChain

    if chain == "devnet":
        if deployment is not None:
            raise OperatorError(
                "bad_settings",
                "--deployment cannot be combined with a devnet, which deploys its own contracts",
                fix="Remove --deployment, or set the chain's URL with --chain or in COVEY_RPC_URL",
            )
        if public_url is not None or relays:
            raise OperatorError(
                "bad_settings",
                "--public-url and --relay cannot be combined with a devnet, which only this machine can reach",
                fix="Remove --public-url and --relay, or set the chain's URL with --chain",
            )
        return None
    if not is_plain_url(chain):
        raise OperatorError(
            "bad_url",
            f"--chain is {hide_secrets(chain)}, which is neither devnet nor the URL of a chain node",
            fix="Set --chain to devnet or to a URL such as https://rpc.example",
        )
    if deployment is None:
        what = f"--deployment is missing, so the contract addresses on {show_host(chain)} are unknown"
        raise OperatorError(
            "bad_settings", what, fix="Add --deployment FILE with the file that covey deploy has written"
        )
    if public_url is None:
        raise OperatorError(
            "no_public_url",
            f"--public-url is missing, so contributors of a pool on {show_host(chain)} cannot reach its coordinator",
            fix="Add --public-url URL, for example --public-url https://pool.example",
        )
    return NamedChain(
        deployment=Deployment.load(deployment),
        rpc_url=chain,
        public_url=_read_url("--public-url", public_url),
        relays=tuple(_read_url("--relay", text) for text in relays),
    )


def _read_url(option: str, text: str) -> str:
    """Return a public base URL without a trailing slash. Raises OperatorError("bad_url")."""
    if not is_public_url(text):
        raise OperatorError(
            "bad_url",
            f"{option} is {hide_secrets(text)}, which is not a public base URL",
            fix="Use a URL without user name and query, for example https://pool.example",
        )
    return text.rstrip("/")


def _list_next_steps(folder: Path, plan: "PoolPlan") -> list[str]:
    """List the commands that open the pool, run it and join it."""
    name, file = shlex.quote(str(folder)), shlex.quote(f"{folder}/chain/deployment.json")
    up = f"covey up {name} --detach"
    join = f"covey join {shlex.quote(plan.coordinator_url)} worker --deployment {file}"
    if plan.chain is None:
        return [up, join]
    needs_node = plan.chain.deployment.without_secrets().rpc_url is None
    return [f"covey pool open {name}", up, f"{join} --rpc URL" if needs_node else join]
