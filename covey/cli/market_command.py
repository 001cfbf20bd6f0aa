"""`covey market`: find the pools of a deployment, what they pay, and what is known about their operators."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from covey.console import options
from covey.console.options import Bandwidth, DeploymentFile, FolderSource, Json
from covey.console.terminal import describe_duration, quote
from covey.errors import OperatorError

if TYPE_CHECKING:
    from covey.chain.history import History
    from covey.network.market import ListedPool, Market
    from covey.protocol.hardware_needs import MachineHardware

market = typer.Typer(help="Find pools on chain, and what they pay.", invoke_without_command=True)


MarketOrder = Literal["price", "earnings", "money", "age"]
Order = Annotated[
    MarketOrder,
    typer.Option(
        "--sort",
        help="Order of the listed pools, the best first. earnings: what the newest epochs paid per hour and node, both "
        "counted on chain; pools for which that is unknown are last.",
    ),
]
Fits = Annotated[
    bool,
    typer.Option("--fits", help="List only pools that this machine fits, and say of each other one why it does not."),
]
Limit = Annotated[
    int, typer.Option("--limit", min=1, max=500, help="Maximum number of listed pools. The newest ones are listed.")
]
Timeout = Annotated[
    float,
    typer.Option(
        "--timeout",
        min=1.0,
        metavar="SECONDS",
        help="Deadline in seconds for reading the chain and asking coordinators. What was not read by then is counted.",
    ),
]
All = Annotated[
    bool, typer.Option("--all", help="Also list pools that have ended or have no money left that is not promised.")
]
Node = Annotated[
    str | None,
    typer.Option("--rpc", envvar="COVEY_RPC_URL", help="RPC URL of a node of the chain. By default the deployment's."),
]


@market.callback()
def list_pools(
    context: typer.Context,
    deployment: Annotated[
        Path | None,
        typer.Option(
            "--deployment",
            envvar="COVEY_DEPLOYMENT",
            help="File deployment.json with the addresses of Covey's contracts on the chain.",
        ),
    ] = None,
    rpc: Node = None,
    sort: Order = "price",
    limit: Limit = 50,
    timeout: Timeout = 60.0,
    everything: All = False,
    fits: Fits = False,
    bandwidth: Bandwidth = None,
    as_json: Json = False,
) -> None:
    """List the pools of a deployment: what they train, what they pay, and whether their coordinators answer.

    The list has the newest pools with money, at most --limit of them. Everything about money is read from the chain.
    Pools whose coordinator does not answer, or describes another pool than the chain, are shown as such.

    Example: `covey market --deployment deployment.json --fits --sort earnings`
    """
    if context.invoked_subcommand is not None:
        return
    if deployment is None:
        raise OperatorError("no_deployment", "no file names the contracts", fix="Set --deployment or COVEY_DEPLOYMENT")
    found = _read(_open(deployment, rpc), limit=limit, seconds=timeout, everything=everything)
    _print(found, sort, fits=fits, bandwidth=bandwidth, as_json=as_json)


def _print(found: "Market", sort: MarketOrder, *, fits: bool, bandwidth: float | None, as_json: bool) -> None:
    keys: dict[MarketOrder, Any] = {
        "price": lambda each: -each.terms.reward_per_million,
        "earnings": _rank_earnings,
        "money": lambda each: -each.free_escrow,
        "age": lambda each: each.created_at,
    }
    pools = sorted(found.pools, key=keys[sort])
    machine = _look_at_machine(bandwidth) if fits else None
    misfits = {each.pool: each.list_misfits(machine) if machine else [] for each in pools}
    fitting = [each for each in pools if not misfits[each.pool]]
    if as_json:
        rows = [_describe(each, found.now, as_json=True) for each in fitting]
        counts = {"total": found.total, "closed": found.closed, "unread": found.unread, "is_late": found.is_late}
        options.show({"pools": rows, "misfits": {pool: why for pool, why in misfits.items() if why}} | counts, as_json)
        return
    _print_table(fitting, found.now)
    for pool, reasons in misfits.items():
        if reasons:
            typer.echo(quote(f"pool {pool} does not fit this machine: {' '.join(reasons)}"))
    for line in _describe_rest(found, shown=len(fitting)):
        typer.echo(line)


def _describe_rest(found: "Market", *, shown: int) -> list[str]:
    """Return sentences about the pools of the deployment that are not shown."""
    lines = [f"{found.total:,} pools, {shown:,} shown"]
    if found.closed:
        lines.append(f"{found.closed:,} pools have ended or have no money left; --all lists them, too")
    if found.unread and found.is_late:
        lines.append(f"{found.unread:,} pools were not read before the deadline; --timeout allows more seconds")
    elif found.unread:
        lines.append(f"{found.unread:,} older pools were not read; --limit lists more")
    return lines


def _rank_earnings(found: "ListedPool") -> tuple[bool, float]:
    """Return the key of a pool in the order of earnings, in whole tokens. Pools with different tokens are compared by
    number.
    """
    hourly = found.expected_per_hour
    return hourly is None, -(hourly or 0) / 10**found.unit.decimals


def _look_at_machine(bandwidth: float | None) -> "MachineHardware":
    from covey.cli.doctor.machine_facts import look_at_machine

    return look_at_machine(Path(), gpus=None, bandwidth_mbits=bandwidth)


def list_pools_of_chain(
    deployment: DeploymentFile,
    rpc: Node = None,
    sort: Order = "price",
    limit: Limit = 50,
    timeout: Timeout = 60.0,
    everything: All = False,
    fits: Fits = False,
    bandwidth: Bandwidth = None,
    folder: FolderSource = None,
    as_json: Json = False,
) -> None:
    """List the pools of a deployment, as `covey market` does.

    Example: `covey pool list mypool`
    """
    found = _read(_open(deployment, rpc), limit=limit, seconds=timeout, everything=everything)
    _print(found, sort, fits=fits, bandwidth=bandwidth, as_json=as_json)


@market.command("show")
def show_pool(
    number: Annotated[int, typer.Argument(metavar="POOL", min=1, help="Number of the pool on chain.")],
    deployment: DeploymentFile,
    rpc: Node = None,
    tokens_per_second: Annotated[
        float | None,
        typer.Option(min=0.0, help="Completion tokens per second that your machine generates with the pool's model."),
    ] = None,
    measure: Annotated[
        float | None,
        typer.Option(
            min=1.0,
            max=600.0,
            metavar="SECONDS",
            help="Measure that speed on this machine for SECONDS, after downloading the pool's newest policy.",
        ),
    ] = None,
    policies: Annotated[
        Path | None,
        typer.Option(help="Folder in which --measure keeps the policy, for a worker. By default it is deleted."),
    ] = None,
    bandwidth: Bandwidth = None,
    folder: FolderSource = None,
    as_json: Json = False,
) -> None:
    """Show one pool, what it pays for the work of a machine, when that can be claimed, and what is at stake.

    `needs` says what hardware the pool asks for, and `misfits` what this machine lacks of it.

    Example: `covey market show 1 --deployment deployment.json --tokens-per-second 2500`
    """
    from covey.local.joining import is_devnet
    from covey.network.market import read_pool
    from covey.protocol.ids import PoolId

    if tokens_per_second is not None and measure is not None:
        raise OperatorError(
            "two_speeds", "--tokens-per-second and --measure exclude each other", fix="Remove one of them"
        )
    history = _open(deployment, rpc)
    found = read_pool(history, PoolId(number), is_devnet=is_devnet(history.contracts.deployment))
    values = _describe(found, history.client.get_block("latest").timestamp, as_json=as_json)
    values["misfits"] = found.list_misfits(_look_at_machine(bandwidth))
    if measure is not None:
        tokens_per_second = _measure(history, found, measure, policies)
    if tokens_per_second is not None:
        values |= _expect(found, tokens_per_second)
    options.show(values, as_json)


@market.command("history")
def show_history(
    account: Annotated[str, typer.Argument(metavar="ADDRESS", help="Operator, contributor or validator.")],
    deployment: DeploymentFile,
    rpc: Node = None,
    folder: FolderSource = None,
    as_json: Json = False,
) -> None:
    """Show what the chain knows about an account in all pools, as operator, contributor and validator.

    The facts are counted from events. There is no score.

    Example: `covey market history ADDRESS --deployment deployment.json`
    """
    from dataclasses import asdict

    from covey.console.addresses import read_address
    from covey.network.market_history import summarize_history

    found = asdict(summarize_history(_open(deployment, rpc).list_all(), read_address(account)))
    if as_json:
        options.show(found, as_json)
        return
    for role, facts in found.items():
        if any(facts.values()):
            typer.echo(f"as {role}")
            options.show({name.replace("_", " "): value for name, value in facts.items()}, as_json)
    if not any(value for facts in found.values() for value in facts.values()):
        typer.echo(f"the chain knows nothing about {read_address(account)}")


def _measure(history: "History", found: "ListedPool", seconds: float, policies: Path | None) -> float:
    """Return the speed of this machine at the work of a pool. A new node key and a temporary folder suffice for it.

    Raises OperatorError("pool_not_served") if its coordinator cannot be asked, and the errors of `measure`.
    """
    from tempfile import TemporaryDirectory

    from covey.cli.join import choose_devices
    from covey.local.joining import CheckedPool, create_worker_folder
    from covey.network.market import PoolService
    from worker.config import WorkerConfig
    from worker.measuring import measure

    if found.service is not PoolService.SERVED or found.params is None:
        raise OperatorError(
            "pool_not_served",
            f"pool {found.pool} is {found.service.value}, so its policy cannot be downloaded",
            fix="Choose a pool that is served, or give --tokens-per-second",
        )
    checked = CheckedPool(
        url=found.url,
        deployment=history.contracts.deployment,
        pool=found.pool,
        terms=found.terms,
        params=found.params,
        operator=found.operator,
    )
    devices, tensor_parallel_size = choose_devices(None, is_together=False)
    with TemporaryDirectory(prefix="covey-measure-") as parent:
        first, *_ = create_worker_folder(Path(parent) / "worker", checked, devices, tensor_parallel_size)
        config = WorkerConfig.load(first, {"policies": policies and str(policies.absolute())}, environment={})
        return len(devices) * measure(config, seconds).tokens_per_second


def _open(deployment: Path, rpc: str | None) -> "History":
    from covey.chain.contracts import Contracts
    from covey.chain.deployment import Deployment
    from covey.chain.history import History
    from covey.chain.json_rpc import open_node

    known = Deployment.load(deployment)
    client = open_node(known, rpc)
    return History(client=client, contracts=Contracts(client, known))


def _read(history: "History", *, limit: int, seconds: float, everything: bool) -> "Market":
    from covey.local.joining import is_devnet
    from covey.network.market import list_market

    typer.echo("reading the chain and asking the coordinators", err=True)
    known = is_devnet(history.contracts.deployment)
    return list_market(history, is_devnet=known, limit=limit, seconds=seconds, everything=everything)


def _describe(found: "ListedPool", now: int, *, as_json: bool) -> dict[str, Any]:
    from dataclasses import asdict

    from covey.chain.amounts import Amount

    terms, params, days, unit = found.terms, found.params, found.days_left, found.unit
    record = {} if found.record is None else asdict(found.record)
    return {
        "pool": found.pool,
        "name": "unreadable parameters" if params is None else quote(params.name),
        "state": found.state.name.lower(),
        "service": found.service.value,
        "trouble": quote(found.trouble),
        "url": quote(found.url),
        "tasks": None if params is None else quote(params.environment.kind),
        "max_tokens": None if params is None else params.model.longest,
        "pay_per_million_tokens": Amount(terms.reward_per_million, unit),
        "token": terms.token,  # Its symbol proves nothing: anybody can deploy a token of that name.
        "stake": Amount(terms.min_stake, unit),
        "free_escrow": Amount(found.free_escrow, unit),
        "days_left": days if as_json or days is None else f"{days:.1f}",
        "steps": found.steps,
        "nodes": found.nodes,
        "expected_per_hour": None if found.expected_per_hour is None else Amount(found.expected_per_hour, unit),
        "age": now - found.created_at if as_json else describe_duration(max(0, now - found.created_at)),
        "operator": found.operator,
        **{f"operator_{name}": count for name, count in record.items()},
        "invite_only": terms.is_invite_only,
        "needs": _describe_needs(found, as_json=as_json),
    }


def _describe_needs(found: "ListedPool", *, as_json: bool) -> dict[str, Any] | str | None:
    if found.params is None:
        return None
    needs, models = found.params.needs, found.params.verification.list_models()
    if as_json:
        return needs.model_dump(mode="json") | {"models": models}
    return quote("; ".join([*([" or ".join(models)] if models else []), *needs.list_texts()]))


def _expect(found: "ListedPool", tokens_per_second: float) -> dict[str, Any]:
    """Return the expected pay of a machine, as `describe_earnings` does."""
    from covey.console.earnings_lines import describe_earnings
    from covey.network.earnings import expect_earnings

    return describe_earnings(expect_earnings(found.terms, found.params, tokens_per_second), found.unit)


def _print_table(found: "list[ListedPool]", now: int) -> None:
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    heads = {
        "pool": "pool",
        "name": "name",
        "pay_per_million_tokens": "per 1M tokens",
        "stake": "stake",
        "free_escrow": "left",
        "days_left": "days",
        "nodes": "nodes",
        "expected_per_hour": "per hour",
        "service": "service",
    }
    table = Table(*heads.values(), box=SIMPLE)
    for each in found:
        row = _describe(each, now, as_json=False)
        table.add_row(*(escape("" if row[name] is None else str(row[name])) for name in heads))
    Console().print(table)
    for each in found:
        if each.trouble:
            typer.echo(quote(f"pool {each.pool} is {each.service.value}: {each.trouble}"))
