"""`covey rewards`: show what a contributor has earned and how much of it is final, and claim it.

The chain proves claimable and claimed amounts, and a worker keeps the proofs. Only the coordinator reports work that is
not in a final epoch yet.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from covey.cli import waiting
from covey.cli.waiting import Awaited, wait_for
from covey.console import options
from covey.console.options import (
    CoordinatorUrl,
    DeploymentFile,
    FolderSource,
    Json,
    KeyFile,
    OptionalCoordinatorUrl,
    OptionalKeyFile,
    Pool,
    Raw,
)
from covey.console.terminal import Moment, describe_duration, quote
from covey.errors import OperatorError, ProtocolError, TransientError

if TYPE_CHECKING:
    from covey.chain.events import EpochPosted
    from covey.chain.outbox import Entry
    from covey.chain.structs import EpochRecord
    from covey.console.account import Account
    from covey.protocol.api.public import RewardView, SubmissionView
    from covey.protocol.ids import Address

CREDIT_COMMAND = "covey rewards withdraw-credit"
"""Command that withdraws a credit, which is what the pool's token refused to pay."""
rewards = typer.Typer(help="Show and claim earned rewards.", no_args_is_help=True)
LIMIT = 10_000
"""Maximum number of submissions to read. A contributor submits fewer within the windows of an epoch."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A contributor's work that is not in a final epoch."""

    pending: int
    """Number of submissions that are not judged yet."""
    units: int
    """Work units of the accepted submissions among them."""
    units_by_epoch: "Mapping[int | None, int]"
    """These units by epoch, because an epoch has its price and rounds a reward down once. None has those that no epoch
    holds."""
    final_at: int | None
    """Unix time in seconds when the first accepted submission becomes final. None if none is in a posted epoch."""


def sum_waiting(
    submissions: "Sequence[SubmissionView]", unfinal: "Sequence[EpochPosted]", *, final: int | None
) -> Waiting:
    """Return the work of one contributor that is not in a final epoch.

    `final` is the newest final epoch, and `unfinal` are the epochs on chain after it.
    """
    pending = sum(view.state == "SUBMITTED" for view in submissions)
    accepted = [
        view
        for view in submissions
        if view.state in ("ACCEPTED", "SETTLED")
        and view.reason == "none"
        and (view.epoch is None or final is None or view.epoch > final)
    ]
    units: Counter[int | None] = Counter()
    for view in accepted:
        units[view.epoch] += view.units
    times = [posted.record.final_at for posted in unfinal if posted.epoch in units]
    return Waiting(pending, units.total(), units, min(times, default=None))


@rewards.command("show")
def rewards_show(
    deployment: DeploymentFile,
    pool: Pool,
    coordinator_url: CoordinatorUrl,
    key_file: OptionalKeyFile = None,
    contributor: Annotated[
        str | None, typer.Option(help="Address of the contributor. Can be used instead of --key-file.")
    ] = None,
    folder: FolderSource = None,
    raw: Raw = False,
    as_json: Json = False,
) -> None:
    """Show a contributor's work and rewards: work not judged yet, rewards not final yet, claimable and claimed.

    Values that only the coordinator has are shown as unknown while it does not respond. What the token refused to pay
    is shown as a credit, with the command that withdraws it.

    Example: `covey rewards show myworker`
    """
    from covey.chain.amounts import Amount
    from covey.console.addresses import read_address
    from covey.protocol.prices import compute_reward

    account = options.open_account(deployment, None if contributor else key_file, pool, folder=folder)
    if contributor is None and key_file is None:
        raise OperatorError(
            "no_key",
            "the contributor is unknown, because neither --contributor nor --key-file is set",
            fix="Add --contributor ADDRESS or --key-file FILE",
        )
    who = read_address(contributor) if contributor else account.wallet.address
    unit, now = account.get_unit(raw=raw or as_json), account.get_time()
    final, unfinal = account.find_claimable(), account.history.list_unfinal(account.pool, now=now)
    ledger = account.contracts.ledger
    prices = account.history.read_prices(account.pool, [*([final] if final else []), *unfinal], now=now)
    claimed, deduction = ledger.claimed_of(account.pool, who), ledger.deduction_of(account.pool, who)
    credit = ledger.credit_of(account.pool, who)
    view, work = _ask_coordinator(account, coordinator_url, who, final, unfinal)
    units_by_epoch = work.units_by_epoch if work else {}
    accepted = sum(compute_reward(units, prices.find(epoch)) for epoch, units in units_by_epoch.items())
    earned = None if work is None else view.cumulative if view else 0
    values: dict[str, Any] = {
        "contributor": who,
        "pending": work and work.pending,
        "accepted": work and Amount(accepted, unit),
        "next_final_at": work.final_at if work else unfinal[0].record.final_at if unfinal else None,
        "epoch": final and final.epoch,
        "earned": None if earned is None else Amount(earned, unit),
        "claimed": Amount(claimed, unit),
        **({"paid_by_bond": Amount(deduction, unit)} if deduction else {}),
        "claimable": None if earned is None else Amount(max(0, earned - claimed - deduction), unit),
        **({"credit": Amount(credit, unit), "credit_command": CREDIT_COMMAND} if credit else {}),
    }
    at = values["next_final_at"]
    values["next_final_at"] = None if at is None else Moment(at, now)
    unknown = () if as_json or work is not None else ("pending", "accepted", "earned", "claimable")
    options.show(values | dict.fromkeys(unknown, "unknown"), as_json)


def _ask_coordinator(
    account: "Account", url: str, who: "Address", final: "EpochPosted | None", unfinal: "Sequence[EpochPosted]"
) -> "tuple[RewardView | None, Waiting | None]":
    """Return the reward and the waiting work that the coordinator reports.

    If it does not respond, or the chain refutes its report, print a line on standard error and return (None, None).
    """
    try:
        view = account.get_reward(url, who, final) if final else None
        work = get_waiting(account, url, who, final, unfinal)
    except (TransientError, ProtocolError) as error:
        typer.echo(f"the coordinator's values are unknown: {quote(str(error))}", err=True)
        return None, None
    return view, work


def get_waiting(
    account: "Account", url: str, who: "Address", final: "EpochPosted | None", unfinal: "Sequence[EpochPosted]"
) -> Waiting:
    """Return a contributor's work that is in no final epoch, as the coordinator reports it."""
    submissions = account.list_submissions(url, limit=LIMIT, contributor=who)
    return sum_waiting(submissions, unfinal, final=final.epoch if final else None)


@rewards.command("statement")
def rewards_statement(
    contributor: Annotated[str, typer.Argument(help="Address of the contributor.")],
    deployment: DeploymentFile,
    pool: Pool,
    coordinator_url: CoordinatorUrl,
    folder: FolderSource = None,
    raw: Raw = False,
    as_json: Json = False,
) -> None:
    """List every submission of a contributor with its verdict, pay, epoch, and the transaction that posted the epoch.

    The pay is that of the submission alone. An epoch rounds down once for all work of a contributor, so it may pay a
    little more than the sum.

    With --json, each submission is one line of JSON. `covey submissions show` shows the proofs of one of them.

    Example: `covey rewards statement ADDRESS myworker`
    """
    import json
    from itertools import chain

    from covey.chain.amounts import Amount
    from covey.console.addresses import read_address
    from covey.protocol.prices import compute_reward

    account, who = options.open_account(deployment, None, pool, folder=folder), read_address(contributor)
    unit = account.get_unit(raw=raw or as_json)
    epochs = {each.epoch: each for each in account.history.list_epochs(account.pool)}
    prices = account.history.read_prices(account.pool, list(epochs.values()), now=account.get_time())
    pages = account.list_all_submissions(coordinator_url, contributor=who)
    first = next(pages, [])
    if not first:
        typer.echo(f"{who} has no submissions in pool {account.pool}", err=True)
        return
    if not as_json:
        columns = f"{'task':>8} {'node':42} {'state':9} {'reason':20} {'units':>8} {'pay':>18} {'epoch':>6}"
        typer.echo(f"{columns} {'receipt':66} transaction")
    for view in chain(first, chain.from_iterable(pages)):
        posted = None if view.epoch is None else epochs.get(view.epoch)
        is_paid = view.state in ("ACCEPTED", "SETTLED") and view.reason == "none"
        pay = compute_reward(view.units, prices.find(view.epoch)) if is_paid else 0
        transaction = posted and posted.transaction_hash
        if as_json:
            about = view.model_dump(mode="json", include={"task", "node", "state", "reason", "units", "epoch"})
            about |= {"receipt_hash": view.receipt_hash, "pay": pay, "epoch_transaction": transaction}
            typer.echo(json.dumps(about | {"epoch_final_at": posted and posted.record.final_at}, sort_keys=True))
        else:
            line = (
                f"{view.task:>8} {view.node} {view.state:9} {view.reason:20} {view.units:>8} {Amount(pay, unit)!s:>18}"
            )
            epoch = "none" if view.epoch is None else view.epoch
            typer.echo(f"{line} {epoch:>6} {view.receipt_hash} {transaction or 'none'}")


@rewards.command("claim")
def rewards_claim(
    deployment: DeploymentFile,
    key_file: KeyFile,
    pool: Pool,
    coordinator_url: OptionalCoordinatorUrl = None,
    proofs: Annotated[
        list[Path] | None,
        typer.Option(
            help="Folder with proofs that a worker or covey watch has kept. By default those of the worker's folder."
        ),
    ] = None,
    wait: Annotated[
        bool,
        typer.Option(
            "--wait",
            help="Wait until there is a reward to claim, for at most about twice the sum of challenge and veto window.",
        ),
    ] = False,
    folder: FolderSource = None,
    raw: Raw = False,
    as_json: Json = False,
) -> None:
    """Claim the rewards that the signer has earned up to the newest final epoch.

    If the coordinator does not respond, or its proof is false, the newest proof that a worker has kept is used. Then
    only a node of the chain is needed.

    Example: `covey rewards claim myworker`
    """
    from covey.chain.amounts import Amount
    from covey.network.kept_rewards import REWARDS_FOLDER

    account = options.open_account(deployment, key_file, pool, folder=folder)
    found = sorted(folder.glob(f"*/{REWARDS_FOLDER}")) if folder is not None and not proofs else proofs or []
    source = RewardSource(account, coordinator_url, found)
    record, view = (source.await_reward if wait else source.require_reward)()
    claimed, entry = claim(account, record, view)
    amount = Amount(claimed, account.get_unit(raw=raw or as_json))
    options.show({"claimed": amount, "transaction": entry.transaction_hash}, as_json)


class RewardSource:
    """Where the signer's reward is found: at the coordinator, or among the proofs in `folders`."""

    def __init__(self, account: "Account", coordinator_url: str | None, folders: "Sequence[Path]" = ()) -> None:
        self._account, self._url, self._folders = account, coordinator_url, folders

    def require_reward(self) -> "tuple[EpochRecord, RewardView]":
        """Return the record of the newest final epoch that has a proof, and the signer's cumulative reward.

        Raises OperatorError("not_final") or ProtocolError("no_reward"), whose messages say how long to wait, and
        OperatorError("no_proof") if neither the coordinator nor a folder has a proof.
        """
        account = self._account
        final, who = account.find_claimable(), account.wallet.address
        if final is None:
            raise OperatorError("not_final", "no epoch is final yet", fix=str(describe_next(account)))
        if self._url is None:
            return self._require_kept()
        try:
            view = account.get_reward(self._url, who, final)
        except (TransientError, ProtocolError) as error:
            if not self._folders:
                raise
            typer.echo(f"the coordinator gave no proof, so a kept one is used: {quote(str(error))}", err=True)
            return self._require_kept()
        if view is None and self._folders:
            typer.echo("the coordinator says that nothing is earned, so a kept proof is used", err=True)
            return self._require_kept()
        if view is None:
            nothing = f"{who} has earned nothing up to epoch {final.epoch}"
            raise ProtocolError("no_reward", f"{nothing}. {describe_next(account)}")
        return final.record, view

    def _require_kept(self) -> "tuple[EpochRecord, RewardView]":
        from covey.network.kept_rewards import KeptRewards, find_kept

        account = self._account
        found = find_kept(
            [KeptRewards(folder) for folder in self._folders],
            account.history,
            pool=account.pool,
            contributor=account.wallet.address,
            now=account.get_time(),
        )
        if found is None:
            where = ", ".join(map(str, self._folders)) or "any folder"
            raise OperatorError(
                "no_proof",
                f"no proof of a final epoch for {account.wallet.address} is in {where}",
                fix="Name the folder rewards in a worker's home with --proofs, or add --coordinator-url",
            )
        return found

    def await_reward(self) -> "tuple[EpochRecord, RewardView]":
        """Wait until a reward can be claimed, for at most twice the pool's windows plus `waiting.SPARE_SECONDS`.

        Raises the errors of `require_reward` then.
        """
        terms = self._account.contracts.pools.get_terms(self._account.pool)
        found = wait_for(
            lambda: self.find_reward() or describe_next(self._account),
            seconds=2 * (terms.challenge_window + terms.veto_window) + waiting.SPARE_SECONDS,
        )
        return self.require_reward() if isinstance(found, Awaited) else found

    def find_reward(self) -> "tuple[EpochRecord, RewardView] | None":
        """Return what `require_reward` does. None if there is nothing to claim."""
        try:
            record, view = self.require_reward()
        except (OperatorError, ProtocolError) as error:
            if error.code not in ("not_final", "no_reward"):
                raise
            return None
        return (record, view) if view.cumulative > _get_claimed(self._account) else None


def _get_claimed(account: "Account") -> int:
    return account.contracts.ledger.claimed_of(account.pool, account.wallet.address)


def claim(account: "Account", record: "EpochRecord", view: "RewardView") -> "tuple[int, Entry]":
    """Claim a reward. Return the amount that is paid, in the token's smallest unit, and the transaction.

    What the operator's bond has paid for the same work is deducted.
    """
    claimed, ledger = _get_claimed(account), account.contracts.ledger
    deduction = ledger.deduction_of(account.pool, account.wallet.address)
    entry = account.send(ledger.claim(account.pool, record, account.wallet.address, view.cumulative, view.proof))
    return max(0, view.cumulative - claimed - deduction), entry


def _find_next(account: "Account") -> "EpochPosted | None":
    """Return the epoch that becomes final next. None if it is not posted yet."""
    unfinal = account.history.list_unfinal(account.pool, now=account.get_time())
    return unfinal[0] if unfinal else None


def describe_next(account: "Account") -> Awaited:
    """Return the next final epoch as what a claim waits for."""
    next_epoch, now = _find_next(account), account.get_time()
    if next_epoch is not None:
        what = f"Claim when epoch {next_epoch.epoch} is final"
        return Awaited(what=what, at=next_epoch.record.final_at, now=now)
    terms = account.contracts.pools.get_terms(account.pool)
    windows = describe_duration(terms.challenge_window + terms.veto_window)
    what = f"Wait until the coordinator has posted the next epoch, which becomes final {windows} later"
    return Awaited(what=what, at=None, now=now)
