"""`covey status`: what runs, what is wrong, and how much money is left, in the terminal."""

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from covey.console.options import Json
from covey.console.terminal import describe_duration, quote
from covey.errors import CoveyError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from covey.local.folder_status import FolderStatus
    from covey.protocol.api.overview import OverviewView
    from covey.protocol.api.public import NodeDetail

WATCH_SECONDS = 2.0
ANSWER_SECONDS = 5.0
"""Timeout in seconds of a request to the coordinator."""
LAST_LINE = 90
"""Maximum number of characters of an error or a log line in the table."""


def status(
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="FOLDER|URL",
            help="Folder of a pool or a worker, or the base URL of a coordinator. By default the working directory.",
        ),
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Show it again every two seconds, until Ctrl-C.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show every process of a folder with its last error, the pool in ten lines, and alarms with their remedies.

    The exit status is 1 if a process has failed or is stopped, or if the coordinator does not answer.

    Example: `covey status mypool --watch`
    """
    from rich.console import Console, Group
    from rich.live import Live

    console = Console()
    if not watch:
        seen = _Seen(target)
        if as_json:
            typer.echo(seen.to_json())
        else:
            console.print(Group(*seen.render()))
        raise typer.Exit(0 if seen.is_well else 1)
    waiting = threading.Event()
    with Live(console=console, auto_refresh=False, screen=console.is_terminal) as live:
        while True:
            live.update(Group(*_Seen(target).render()), refresh=True)
            waiting.wait(WATCH_SECONDS)


class _Seen:
    """What one look at a folder and its coordinator has found."""

    def __init__(self, target: str | None) -> None:
        import asyncio

        from covey.console.folder_values import read_folder_values

        self.title = target or str(Path().resolve())
        self.folder: FolderStatus | None = None
        self.pages = ""
        """Base URL of the pool's pages. Empty if it is not known."""
        self.overview: OverviewView | None = None
        self.nodes: list[NodeDetail] = []
        self.problem = ""
        """Why the coordinator could not be asked. Empty if it was."""
        addresses: list[Any] = []
        if target is not None and "://" in target:
            url = target
        else:
            from covey.local.folder_status import read_folder_status

            folder = Path(target or "")
            self.folder = read_folder_status(folder)
            url = read_folder_values(folder).coordinator_url
            addresses = _list_nodes(folder)
        try:
            asyncio.run(self._ask(url, addresses))
        except CoveyError as error:
            who = f"the pages at {self.pages} do" if self.pages else f"{url} does"
            self.problem = f"{who} not answer: {error.message}"

    async def _ask(self, url: str, addresses: list[Any]) -> None:
        from covey.network.coordinator_client import CoordinatorClient

        async with CoordinatorClient(url, None, chain_id=0, timeout_seconds=ANSWER_SECONDS) as client:
            self.pages = await client.find_pages()
            for address in addresses:
                self.nodes.append(await client.get_node(address))
        async with CoordinatorClient(self.pages, None, chain_id=0, timeout_seconds=ANSWER_SECONDS) as client:
            self.overview = await client.get_overview()

    @property
    def is_well(self) -> bool:
        """Whether all processes run or are done, and the coordinator has answered."""
        processes = () if self.folder is None else self.folder.processes
        return not self.problem and all(each.state in ("runs", "done") for each in processes)

    def to_json(self) -> str:
        """Return everything as one JSON object."""
        import json
        from dataclasses import asdict

        return json.dumps(
            {
                "processes": None if self.folder is None else [asdict(each) for each in self.folder.processes],
                "keeper": None if self.folder is None else self.folder.keeper,
                "pool": None if self.overview is None else self.overview.model_dump(mode="json"),
                "nodes": [each.model_dump(mode="json") for each in self.nodes],
                "problem": self.problem,
            },
            sort_keys=True,
        )

    def render(self) -> "list[RenderableType]":
        """Return a table of processes, the pool in ten lines, and alarms."""
        from rich.markup import escape

        shown: list[RenderableType] = [] if self.folder is None else [_build_process_table(self.title, self.folder)]
        if self.overview is not None:
            shown.append(_build_pool_table(self.overview))
            shown += [f"[red]{escape(quote(line))}[/red]" for line in _describe_alarms(self.overview)]
            shown.append(escape(quote(f"more at {self.pages}")))
        for node in self.nodes:
            shown.append(escape(quote(f"node {node.node}: {node.sentence}")))
        if self.problem:
            shown.append(f"[red]{escape(quote(self.problem))}[/red]")
        if self.folder is not None and self.folder.keeper is None:
            shown.append(escape(quote(f"nothing runs; start it with: covey up {self.title}")))
        return shown


def _list_nodes(folder: Path) -> list[Any]:
    """Return the addresses of the nodes whose settings are in a folder. A pool's folder has none."""
    import tomllib

    from covey.chain.wallet import load_key

    settings = [tomllib.loads(file.read_text()) for file in sorted(folder.glob("worker*.toml"))]
    return [load_key(folder / values["key_file"]).address for values in settings if "key_file" in values]


def _build_process_table(title: str, folder: "FolderStatus") -> "RenderableType":
    from rich.markup import escape
    from rich.table import Table

    kept = "nothing runs" if folder.keeper is None else f"kept by covey up, process {folder.keeper}"
    table = Table("process", "state", "pid", "failures", "last error or log line", title=f"{escape(title)}: {kept}")
    colors = {"runs": "green", "done": "green", "restarting": "yellow", "failed": "red", "stopped": "red"}
    for each in folder.processes:
        color = colors.get(each.state, "")
        state = f"[{color}]{each.state}[/{color}]" if color else each.state
        line = each.error if each.state in ("restarting", "failed") else each.last_line
        pid = "" if each.pid is None else str(each.pid)
        table.add_row(escape(each.name), state, pid, str(each.failures or ""), escape(quote(line[:LAST_LINE])))
    return table


def _describe_alarms(view: "OverviewView") -> list[str]:
    """Return a line for each alarm."""
    return [f"alarm {alarm.code}: {alarm.line}" for alarm in view.alarms]


def _build_pool_table(view: "OverviewView") -> "RenderableType":
    """Return the pool in ten lines."""
    from rich.markup import escape
    from rich.table import Table

    table = Table(show_header=False, title=escape(quote(f"pool {view.pool} {view.name}")))
    for name, text in _describe_pool(view).items():
        table.add_row(name, escape(quote(text)))
    return table


def _describe_pool(view: "OverviewView") -> dict[str, str]:
    from covey.chain.amounts import Amount, TokenUnit

    hour, money, newest = view.hour, view.money, view.newest
    unit = TokenUnit(money.decimals, money.symbol)
    oldest = view.oldest_undecided_seconds
    state = "ended" if view.ended else "tasks are assigned"
    if view.paused_since is not None:
        state = f"paused for {describe_duration(max(0, view.time - view.paused_since))}"
    learned = "no step is trained yet"
    if newest is not None:
        learned = (
            f"{newest.reward_mean:.3f}, {newest.live_share:.0%} of rollouts have an advantage, "
            f"{newest.truncated_share:.0%} are cut, {newest.tokens_per_second:.0f} tokens/s"
        )
    if view.task_types:
        learned += "; " + ", ".join(f"{each.name} {each.reward_mean:.3f}" for each in view.task_types)
    ready = view.readiness
    known = money.escrow is not None and money.promised is not None
    lasts = "as long as nothing is accepted" if money.days_left is None else f"{money.days_left:.1f} days"
    return {
        "state": f"{state}, step {view.step}, block {view.block}",
        "reward": learned,
        "nodes": _join(view.nodes.model_dump())
        + (
            "" if ready is None else f"; a policy takes {ready.p50_seconds:.0f} s, and {ready.p95_seconds:.0f} s at p95"
        ),
        "tasks": _join(view.tasks),
        "submissions": _join(view.submissions)
        + ("" if oldest is None else f"; the oldest one has waited {describe_duration(oldest)} for its verdict"),
        "last hour": _join(hour.model_dump(include={"submitted", "accepted", "rejected", "void"})),
        "rejected for": _join(view.reasons),
        "cases": _join(view.cases),
        "escrow": f"{Amount(money.escrow or 0, unit)}, of which {Amount(money.promised or 0, unit)} is promised"
        if known
        else "the chain's node does not answer",
        "lasts": lasts,
    }


def _join(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {name.lower().replace('_', ' ')}" for name, count in counts.items() if count) or "none"
