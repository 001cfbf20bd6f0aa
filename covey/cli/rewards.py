"""`covey rewards`: show what a contributor has earned and how much of it is final, and claim it.

The chain proves claimable and claimed amounts. Only the coordinator reports work that is not in a final epoch yet.
"""

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from covey.console import options
from covey.console.options import CoordinatorUrl, DeploymentFile, Json, KeyFile, Pool, Raw
from covey.console.terminal import describe_time, quote
from covey.errors import OperatorError, ProtocolError, TransientError

if TYPE_CHECKING:
    from covey.chain.events import EpochPosted
    from covey.console.account import Account
    from covey.protocol.api.public import RewardView, SubmissionView
    from covey.protocol.ids import Address

rewards = typer.Typer(help="Show and claim earned rewards.", no_args_is_help=True)
MIN_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 5.0, 60.0
"""Minimum and maximum pause in seconds between two checks for a reward."""
SPARE_SECONDS = 600.0
"""Additional seconds, after the pool's windows, for judging the work and closing its epoch."""
LIMIT = 10_000
"""Maximum number of submissions to read. A contributor submits fewer within the windows of an epoch."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A contributor's work that is not in a final epoch."""

    pending: int
    """Number of submissions that are not judged yet."""
    units: int
    """Work units of the accepted submissions among them."""
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
    epochs = {view.epoch for view in accepted}
    times = [posted.record.final_at for posted in unfinal if posted.epoch in epochs]
    return Waiting(pending, sum(view.units for view in accepted), min(times, default=None))


@rewards.command("show")
def rewards_show(
    deployment: DeploymentFile,
    pool: Pool,
    key_file: Annotated[
        Path | None,
        typer.Option(
            "--key-file",
            envvar="COVEY_KEY_FILE",
            help="Key file of the contributor. Required unless --contributor is set.",
        ),
    ] = None,
    contributor: Annotated[
        str | None, typer.Option(help="Address of the contributor. Can be used instead of --key-file.")
    ] = None,
    coordinator_url: CoordinatorUrl = "http://127.0.0.1:8000",
    raw: Raw = False,
    as_json: Json = False,
) -> None:
    """Show a contributor's work and rewards: work not judged yet, rewards not final yet, claimable and claimed.

    Values that only the coordinator has are shown as unknown while it does not respond.

    Example: `covey rewards show --contributor ADDRESS --deployment net/deployment.json --pool 1`
    """
    from covey.chain.amounts import Amount
    from covey.console.addresses import read_address

    account = options.open_account(deployment, None if contributor else key_file, pool)
    if contributor is None and key_file is None:
        raise OperatorError(
            "no_key",
            "the contributor is unknown, because neither --contributor nor --key-file is set",
            fix="Add --contributor ADDRESS or --key-file FILE",
        )
    who = read_address(contributor) if contributor else account.wallet.address
    unit, now = account.get_unit(raw=raw or as_json), account.get_time()
    final, unfinal = account.find_claimable(), account.history.list_unfinal(account.pool, now=now)
    claimed = account.contracts.ledger.claimed_of(account.pool, who)
    view, waiting = _ask_coordinator(account, coordinator_url, who, final, unfinal)
    price = account.contracts.pools.get_terms(account.pool).reward_per_unit
    earned = None if waiting is None else view.cumulative if view else 0
    values: dict[str, Any] = {
        "contributor": who,
        "pending": waiting and waiting.pending,
        "accepted": waiting and Amount(waiting.units * price, unit),
        "next_final_at": waiting.final_at if waiting else unfinal[0].record.final_at if unfinal else None,
        "epoch": final and final.epoch,
        "earned": None if earned is None else Amount(earned, unit),
        "claimed": Amount(claimed, unit),
        "claimable": None if earned is None else Amount(earned - claimed, unit),
    }
    if as_json:
        options.show(values, as_json)
        return
    unknown = ("pending", "accepted", "earned", "claimable") if waiting is None else ()
    at = values["next_final_at"]
    shown = values | dict.fromkeys(unknown, "unknown")
    options.show(shown | {"next_final_at": None if at is None else describe_time(at, now=now)}, as_json)


def _ask_coordinator(
    account: "Account", url: str, who: "Address", final: "EpochPosted | None", unfinal: "Sequence[EpochPosted]"
) -> "tuple[RewardView | None, Waiting | None]":
    """Return the reward and the waiting work that the coordinator reports.

    If it does not respond, or the chain refutes its report, print a line on standard error and return (None, None).
    """
    try:
        view = account.get_reward(url, who, final) if final else None
        submissions = account.list_submissions(url, limit=LIMIT, contributor=who)
    except (TransientError, ProtocolError) as error:
        typer.echo(f"the coordinator's values are unknown: {quote(str(error))}", err=True)
        return None, None
    return view, sum_waiting(submissions, unfinal, final=final.epoch if final else None)


@rewards.command("statement")
def rewards_statement(
    contributor: Annotated[str, typer.Argument(help="Address of the contributor.")],
    deployment: DeploymentFile,
    pool: Pool,
    coordinator_url: CoordinatorUrl = "http://127.0.0.1:8000",
    raw: Raw = False,
    as_json: Json = False,
) -> None:
    """List every submission of a contributor with its verdict, pay, epoch, and the transaction that posted the epoch.

    With --json, each submission is one line of JSON. `covey submissions show` shows the proofs of one of them.

    Example: `covey rewards statement ADDRESS --deployment net/deployment.json --pool 1`
    """
    import json
    from itertools import chain

    from covey.chain.amounts import Amount
    from covey.console.addresses import read_address

    account, who = options.open_account(deployment, None, pool), read_address(contributor)
    unit = account.get_unit(raw=raw or as_json)
    price = account.contracts.pools.get_terms(account.pool).reward_per_unit
    epochs = {posted.epoch: posted for posted in account.history.list_epochs(account.pool)}
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
        pay = view.units * price if view.state in ("ACCEPTED", "SETTLED") and view.reason == "none" else 0
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
    coordinator_url: CoordinatorUrl = "http://127.0.0.1:8000",
    wait: Annotated[
        bool,
        typer.Option(
            "--wait",
            help="Wait until there is a reward to claim, for at most about twice the sum of challenge and veto window.",
        ),
    ] = False,
    raw: Raw = False,
    as_json: Json = False,
) -> None:
    """Claim the rewards that the signer has earned up to the newest final epoch.

    Example: `covey rewards claim --deployment net/deployment.json --pool 1 --key-file contributor.key`
    """
    from covey.chain.amounts import Amount

    account = options.open_account(deployment, key_file, pool)
    final, view = (_wait_for_reward if wait else _require_reward)(account, coordinator_url)
    claimed = _get_claimed(account)
    call = account.contracts.ledger.claim(
        account.pool, final.record, account.wallet.address, view.cumulative, view.proof
    )
    entry = account.send(call)
    amount = Amount(view.cumulative - claimed, account.get_unit(raw=raw or as_json))
    options.show({"claimed": amount, "transaction": entry.transaction_hash}, as_json)


def _require_reward(account: "Account", coordinator_url: str) -> "tuple[EpochPosted, RewardView]":
    """Return the newest final epoch with the signer's cumulative reward.

    Raises OperatorError("not_final") or ProtocolError("no_reward"), whose messages say how long to wait.
    """
    final, who = account.find_claimable(), account.wallet.address
    if final is None:
        raise OperatorError("not_final", "no epoch is final yet", fix=_say_when(account))
    view = account.get_reward(coordinator_url, who, final)
    if view is None:
        raise ProtocolError("no_reward", f"{who} has earned nothing up to epoch {final.epoch}. {_say_when(account)}")
    return final, view


def _get_claimed(account: "Account") -> int:
    return account.contracts.ledger.claimed_of(account.pool, account.wallet.address)


def _wait_for_reward(account: "Account", coordinator_url: str) -> "tuple[EpochPosted, RewardView]":
    """Wait until a reward can be claimed. Print what it waits for whenever that changes.

    Transient errors are retried until the deadline: twice the pool's windows plus `SPARE_SECONDS`. After the deadline
    the last error is raised.
    """
    terms = account.contracts.pools.get_terms(account.pool)
    deadline = time.monotonic() + 2 * (terms.challenge_window + terms.veto_window) + SPARE_SECONDS
    waiting, said = threading.Event(), ""
    while True:
        is_last, pause = time.monotonic() >= deadline, MIN_PAUSE_SECONDS
        try:
            reward = _find_reward(account, coordinator_url)
            if reward is not None or is_last:
                return reward or _require_reward(account, coordinator_url)
            next_epoch, now = _find_next(account), account.get_time()
            line, pause = _spell_wait(account, next_epoch, now), choose_pause(next_epoch, now)
        except TransientError as error:
            if is_last:
                raise
            line = f"{quote(str(error))}; retrying every {MIN_PAUSE_SECONDS:.0f} s"
        if line.partition(": ")[0] != said:
            said = line.partition(": ")[0]
            typer.echo(line, err=True)
        waiting.wait(min(pause, max(0.0, deadline - time.monotonic())))


def choose_pause(next_epoch: "EpochPosted | None", now: int) -> float:
    """Return the seconds until the next check: the time until the next epoch is final, between the minimum and the
    maximum.

    If no epoch is posted, it is the minimum.
    """
    if next_epoch is None:
        return MIN_PAUSE_SECONDS
    return min(MAX_PAUSE_SECONDS, max(MIN_PAUSE_SECONDS, next_epoch.record.final_at - now))


def _find_reward(account: "Account", coordinator_url: str) -> "tuple[EpochPosted, RewardView] | None":
    """Return the reward as `_require_reward` does. None if there is nothing to claim."""
    try:
        final, view = _require_reward(account, coordinator_url)
    except (OperatorError, ProtocolError) as error:
        if error.code not in ("not_final", "no_reward"):
            raise
        return None
    return (final, view) if view.cumulative > _get_claimed(account) else None


def _find_next(account: "Account") -> "EpochPosted | None":
    """Return the epoch that becomes final next. None if it is not posted yet."""
    unfinal = account.history.list_unfinal(account.pool, now=account.get_time())
    return unfinal[0] if unfinal else None


def _say_when(account: "Account") -> str:
    return _spell_wait(account, _find_next(account), account.get_time())


def _spell_wait(account: "Account", next_epoch: "EpochPosted | None", now: int) -> str:
    """Return a sentence about the time until the next final epoch."""
    if next_epoch is not None:
        return f"Claim when epoch {next_epoch.epoch} is final: {describe_time(next_epoch.record.final_at, now=now)}"
    terms = account.contracts.pools.get_terms(account.pool)
    windows = terms.challenge_window + terms.veto_window
    return f"Wait until the coordinator has posted the next epoch, which becomes final {windows} s later"
