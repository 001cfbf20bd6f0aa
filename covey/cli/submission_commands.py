"""`covey submissions`: list a coordinator's submissions, and show one of them with its records on chain.

All texts come from the coordinator. `covey.protocol.api.public` bounds them, and receipt and verdicts are checked by
hash and signature before they are shown.
"""

import re
import shlex
from typing import TYPE_CHECKING, Annotated, Any

import typer

from covey.console import options as chain
from covey.console.options import CoordinatorUrl, DeploymentFile, FolderSource, Json, Pool
from covey.console.terminal import Moment
from covey.errors import OperatorError
from covey.runtime.urls import is_plain_url

if TYPE_CHECKING:
    from covey.console.account import Account
    from covey.network.coordinator_client import CoordinatorClient
    from covey.protocol.api.public import SubmissionDetail, SubmissionView
    from covey.protocol.ids import Hash

submissions = typer.Typer(help="List and show submissions.", no_args_is_help=True)
NO_RELAY = "RELAY_URL"
"""Placeholder in the audit command if no relay is known."""
_PREFIX = re.compile("(0x)?[0-9a-f]{8,64}")


@submissions.command("list")
def submissions_list(
    coordinator_url: CoordinatorUrl,
    node: Annotated[str | None, typer.Option(help="Address of a node. Only its submissions are listed.")] = None,
    contributor: Annotated[
        str | None, typer.Option(help="Address of a contributor. Only its submissions are listed.")
    ] = None,
    state: Annotated[
        str | None,
        typer.Option(
            help="State to filter by: submitted, accepted, rejected, void or settled. Without it, all "
            "states are listed."
        ),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Maximum number of submissions to list.")] = 20,
    folder: FolderSource = None,
    as_json: Json = False,
) -> None:
    """List submissions, newest first, with task, state, reason, work units, epoch, receipt, node and evidence hashes.

    Example: `covey submissions list mypool --state rejected --limit 5`
    """
    import asyncio

    from covey.console.addresses import read_address
    from covey.console.served_pool import ask
    from covey.protocol.status import SubmissionState

    try:
        wanted = SubmissionState(state.upper()) if state else None
    except ValueError as error:
        names = ", ".join(SubmissionState).lower()
        raise OperatorError(
            "bad_state", f"there is no submission state called {state}", fix=f"Use one of {names}"
        ) from error
    by = read_address(node) if node else None
    of = read_address(contributor) if contributor else None

    async def list_them(client: "CoordinatorClient") -> "list[SubmissionView]":
        return await client.list_submissions(limit=limit, node=by, contributor=of, state=wanted)

    views = asyncio.run(ask(coordinator_url, folder, list_them))
    if as_json:
        chain.show({"submissions": [view.model_dump(mode="json") for view in views]}, as_json)
        return
    if not views:
        typer.echo("no submissions found", err=True)
        return
    typer.echo(f"{'task':>6} {'state':9} {'reason':20} {'units':>7} {'epoch':>5} {'receipt':10} {'node':42} evidence")
    for view in views:
        epoch = "none" if view.epoch is None else view.epoch
        typer.echo(
            f"{view.task:>6} {view.state:9} {view.reason:20} {view.units:>7} {epoch:>5} "
            f"{view.receipt_hash[:10]} {view.node} {' '.join(dict.fromkeys(view.evidence_hashes)) or 'none'}"
        )


@submissions.command("show")
def submissions_show(
    receipt_hash: Annotated[
        str, typer.Argument(help="Hash of the receipt, or at least its first 8 hexadecimal digits.")
    ],
    deployment: DeploymentFile,
    pool: Pool,
    coordinator_url: CoordinatorUrl,
    relay: Annotated[
        list[str] | None,
        typer.Option(
            help="Base URL of the relay to use in the printed audit command. By default one that the coordinator lists."
        ),
    ] = None,
    folder: FolderSource = None,
    as_json: Json = False,
) -> None:
    """Show everything public about a submission: receipt, verdicts, epoch, case, and the command that audits it.

    Receipt and verdicts become public once the submission is decided, and its file once its epoch is closed.

    Example: `covey submissions show 0x12345678 mypool`
    """
    import asyncio

    from covey.network.false_verdicts import require_true

    prefix = receipt_hash.lower()
    if not _PREFIX.fullmatch(prefix):
        raise OperatorError(
            "bad_hash",
            f"{receipt_hash} is not a receipt hash or the start of one",
            fix="Use at least the first 8 hexadecimal digits of the hash",
        )
    prefix = "0x" + prefix.removeprefix("0x")
    account = chain.open_account(deployment, None, pool, folder=folder)
    detail, relays = asyncio.run(_ask(account, coordinator_url, prefix))
    require_true(detail, prefix, pool=account.pool, domain=account.receipt_domain)
    options = ["--deployment", str(deployment), "--storage", coordinator_url, "--pool", str(pool)]
    for url in relay or relays or [NO_RELAY]:
        options += ["--relay", url]
    report = describe(account, detail, options)
    if as_json:
        chain.show(report, as_json)
        return
    parts = {name: report.pop(name) for name in ("verdicts", "case")}
    chain.show(report, as_json)
    for name, rows in parts.items():
        for row in rows:
            typer.echo(f"\n{name.removesuffix('s')}")
            chain.show(row, as_json)
    if not parts["verdicts"]:
        typer.echo("\nno verdicts are public: the submission is not decided yet, or it needed no verdict", err=True)
    elif detail.epoch is None:
        typer.echo("\nthe submission cannot be audited yet: its file becomes public once its epoch is closed", err=True)


async def _ask(account: "Account", url: str, prefix: str) -> "tuple[SubmissionDetail, list[str]]":
    async with account.open_client(url) as client:
        return await client.get_submission(prefix), [
            relay for relay in (await client.get_pool()).relays if is_plain_url(relay)
        ]


def describe(account: "Account", detail: "SubmissionDetail", options: list[str]) -> dict[str, Any]:
    """Return all values to print. `options` are options for `covey validator audit`."""
    from covey.protocol.verdict import Decision, Reason

    receipt, now = detail.receipt, account.get_time()
    epoch = None if detail.epoch is None else account.history.find_epoch(account.pool, detail.epoch)
    values: dict[str, Any] = {name: getattr(detail, name) for name in _FIELDS}
    values |= {name: getattr(receipt, name) if receipt else None for name in ("lease", "work_key", "groups")}
    values |= {"claimed_units": receipt and receipt.units, "deadline": receipt and Moment(receipt.deadline, now)}
    values["epoch_transaction"] = epoch and epoch.transaction_hash
    values["epoch_final_at"] = epoch and Moment(epoch.record.final_at, now)
    known = {reason.value for reason in Reason}
    values["verdicts"] = [
        {
            "validator": verdict.validator,
            "outcome": Decision(verdict.outcome).name.lower(),
            "reason": Reason(verdict.reason).name.lower() if verdict.reason in known else verdict.reason,
            "units": verdict.units,
            "evidence_hash": verdict.evidence_hash,
            "audit": shlex.join(["covey", "validator", "audit", verdict.evidence_hash, *options]),
        }
        for verdict in detail.verdicts
    ]
    values["case"] = _describe_case(account, detail.receipt_hash)
    return values


_FIELDS = ("receipt_hash", "task", "node", "contributor", "policy_version", "state", "reason", "units", "epoch")


def _describe_case(account: "Account", receipt_hash: "Hash") -> list[dict[str, Any]]:
    return [
        {
            "event": type(event).__name__,
            "transaction": event.transaction_hash,
            "block": event.block_number,
        }
        for event in account.history.list_case_events(receipt_hash)
    ]
