"""`covey worker enroll`: stake for the workers of a folder and register them."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from covey.console.options import Json, show
from covey.errors import OperatorError
from worker.cli import worker

if TYPE_CHECKING:
    from covey.chain.wallet import Wallet
    from covey.console.account import Account
    from covey.local.enrolling import Enrollment


@worker.command("enroll")
def worker_enroll(
    folder: Annotated[Path, typer.Argument(help="Worker folder, as created by covey join.")] = Path(),
    key_file: Annotated[
        Path | None,
        typer.Option(
            help="Key file of the account that puts up the stake. By default contributor.key in the "
            "folder's subfolder keys."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Add the missing stake for the workers of a folder, and register each worker's node.

    The stake backs all nodes of the contributor, including nodes on other machines. Steps already done are skipped.

    Example: `covey worker enroll worker`
    """
    show(enroll_workers(folder, key_file or folder / "keys" / "contributor.key", is_agreed=True) or {}, as_json)


def enroll_workers(folder: Path, key_file: Path, *, is_agreed: bool) -> dict[str, Any] | None:
    """Stake and register what is missing. Ask for confirmation unless `is_agreed`. Return None if the user declines.

    Raises the errors of `plan_enrollment`.
    """
    from covey.chain.amounts import Amount
    from covey.local.enrolling import enroll, plan_enrollment

    account, nodes, _ = open_workers(folder, key_file)
    plan = plan_enrollment(account, nodes)
    if not is_agreed and not _is_confirmed(account, plan):
        typer.echo("cancelled: nothing was staked or registered", err=True)
        return None
    enroll(account, plan)
    return {
        "contributor": account.wallet.address,
        "added": Amount(plan.stake, account.get_unit(raw=False)),
        "stake": Amount(account.get_stake("contributor"), account.get_unit(raw=False)),
        "backed": plan.backed,
        "nodes": [node.address for node in nodes],
        "registered": len(plan.missing),
    }


def open_workers(folder: Path, key_file: Path) -> "tuple[Account, list[Wallet], str]":
    """Return the contributor's account, the nodes of a folder's workers, and the coordinator's URL.

    Raises OperatorError("no_processes"), OperatorError("no_workers") or OperatorError("bad_settings") if it is not the
    folder of workers.
    """
    from covey.chain.wallet import load_key
    from covey.console.account import Account
    from covey.local.folder import get_environment, read_processes
    from covey.local.ports import SETTINGS
    from worker.config import WorkerConfig

    environment = get_environment()
    commands = read_processes(folder)
    others = [name for name, command in commands.items() if command.split()[0] != "worker"]
    if others:
        kind = "a pool's folder" if (folder / SETTINGS).exists() else "not a folder of workers"
        raise OperatorError(
            "no_workers",
            f"{folder} is {kind}: it runs {', '.join(others)}",
            fix="Use the worker folder that covey join has created",
        )
    files = [folder / f"{name}.toml" for name in commands]
    configs = [WorkerConfig.load(file, environment=environment) for file in files]
    account = Account(configs[0].deployment, key_file, configs[0].pool, rpc_url=configs[0].rpc_url)
    return account, [load_key(config.key_file) for config in configs], configs[0].coordinator_url


def _is_confirmed(account: "Account", plan: "Enrollment") -> bool:
    """Show the plan's cost and the contracts that receive it, and ask for confirmation on the terminal."""
    from covey.chain.amounts import format_amount

    contracts, stake = account.contracts, format_amount(plan.stake, account.get_unit(raw=False))
    rows = {
        "contributor": account.wallet.address,
        "stake": f"{stake}, to back {plan.backed} node(s)",
        "token": account.token.address,
        "chain": contracts.deployment.chain_id,
        "StakeManager": contracts.stakes.address,
        "NodeRegistry": contracts.nodes.address,
    }
    for name, value in rows.items():
        typer.echo(f"{name:>18}  {value}", err=True)
    question = f"Stake {stake} in pool {account.pool} and register {len(plan.missing)} node(s)?"
    return typer.confirm(question, err=True)
