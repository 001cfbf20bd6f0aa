"""`covey worker leave`: end the workers of a folder, and take back their stake and rewards."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from covey.cli import waiting
from covey.cli.enroll import open_workers
from covey.cli.rewards import RewardSource, Waiting, claim, describe_next, get_waiting
from covey.cli.waiting import Awaited, wait_for
from covey.console.options import Json, show
from covey.console.terminal import Moment, quote
from covey.errors import OperatorError, ProtocolError, TransientError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from covey.console.account import Account
    from covey.local.leaving import Remainder
    from covey.protocol.ids import Address


def worker_leave(
    folder: Annotated[Path, typer.Argument(help="Worker folder, as created by covey join.")] = Path(),
    key_file: Annotated[
        Path | None,
        typer.Option(
            help="Key file of the account that put up the stake. By default contributor.key in the folder's subfolder "
            "keys."
        ),
    ] = None,
    wait: Annotated[
        bool,
        typer.Option("--wait", help="Wait for the unbonding window and the last rewards, until nothing is left to do."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Leave a pool: end the workers of a folder, remove their nodes, and take back stake and rewards.

    Does in this order what `covey down`, `covey worker remove`, `covey stake unbond --kind contributor`, `covey rewards
    claim`, `covey stake withdraw --kind contributor` and again `covey rewards claim` do. Stake that backs nodes on
    other machines stays. Stake can be withdrawn one unbonding window after it was unbonded, and is liable until then.
    The command prints what is left to do and when. Run it again then, also after a crash: it skips what is done.

    Example: `covey worker leave myworker --wait`
    """
    from covey.chain.amounts import Amount
    from covey.console.folder_values import CONTRIBUTOR_KEY
    from covey.local.keeper import stop_keeper

    def say(line: str) -> None:
        typer.echo(line, err=True)

    account, wallets, url = open_workers(folder, key_file or folder / CONTRIBUTOR_KEY)
    nodes = [wallet.address for wallet in wallets]
    registered = _list_registered(account, nodes)
    if stop_keeper(folder, say=say):
        say(f"{folder}: ended")
    for node in registered:
        account.send(account.contracts.nodes.remove_node(account.pool, node))
        say(f"removed the node {node}")
    departure = _Departure(account, url, say)
    left = departure.advance()
    if wait and left is not None:
        left = wait_for(departure.advance, seconds=departure.limit_seconds())
    work = departure.work
    unit, bond, now = account.get_unit(raw=as_json), departure.bond, account.get_time()
    values: dict[str, Any] = {
        "contributor": account.wallet.address,
        "nodes": nodes,
        "claimed": Amount(departure.claimed, unit),
        "kept": Amount(bond.staked, unit),
        "unbonding": Amount(bond.leaving, unit),
        "locked": Amount(bond.locked, unit),
        "withdraw_from": Moment(bond.available_at, now) if bond.available_at else None,
        "pending": work and work.pending,
        "accepted_units": work and work.units,
    }
    show(values | ({"done": left is None} if as_json else {}), as_json)
    if not as_json:
        again = f"Run covey worker leave {folder} again then, or now with --wait."
        typer.echo(f"\n{left}. {again}" if left is not None else f"\nNothing is left to do. {_describe_key(account)}")


def _describe_key(account: "Account") -> str:
    """Say what the account holds, because its only key may be in the folder."""
    from covey.chain.amounts import ETHER, format_amount

    tokens = format_amount(account.token.balance_of(account.wallet.address), account.get_unit(raw=False))
    ether = format_amount(account.client.get_balance(account.wallet.address), ETHER)
    return f"Keep the key of {account.wallet.address}: its account holds {tokens} and {ether}."


def _list_registered(account: "Account", nodes: "Sequence[Address]") -> "list[Address]":
    """Return those nodes that the account has registered.

    Raises OperatorError("node_taken") if another account has registered one.
    """
    contributor = account.wallet.address
    owners = {node: account.contracts.nodes.contributor_of(account.pool, node) for node in nodes}
    for node, owner in owners.items():
        if owner not in (None, contributor):
            raise OperatorError(
                "node_taken",
                f"the node {node} is registered for contributor {owner}, not for {contributor}",
                fix=f"Add --key-file with the key of {owner}",
            )
    return [node for node, owner in owners.items() if owner is not None]


class _Departure:
    """The steps of leaving that take time: stake is unbonded and withdrawn, and rewards are claimed."""

    bond: "Remainder"
    """Stake that remains after the last step."""

    def __init__(self, account: "Account", url: str, say: "Callable[[str], None]") -> None:
        self._account, self._url, self._say = account, url, say
        self.claimed = 0
        """Rewards that were claimed, in the token's smallest unit."""
        self.work: Waiting | None = None
        """Work that is in no final epoch. None if the coordinator does not respond."""

    def advance(self) -> Awaited | None:
        """Do what the chain allows now. Return what has to be waited for, or None if nothing is left."""
        from covey.chain.structs import BondKind
        from covey.local.leaving import take_back

        account = self._account
        others = len(account.history.list_nodes(account.pool, account.wallet.address))
        keep = others * account.contracts.pools.get_terms(account.pool).min_stake
        self.bond = take_back(account, BondKind.CONTRIBUTOR, keep=keep, say=self._say)
        self._claim()
        now = account.get_time()
        if self.bond.leaving and self.bond.locked:
            return Awaited(what="Withdraw the stake when the open case is decided: covey case show", at=None, now=now)
        if self.bond.leaving:
            return Awaited(what="Withdraw the stake", at=self.bond.available_at, now=now)
        if self.work is None:
            return Awaited(what="Claim the rewards when the coordinator responds", at=None, now=now)
        return describe_next(account) if self.work.pending or self.work.units else None

    def limit_seconds(self) -> float:
        """Return the longest time that leaving takes by the pool's windows."""
        terms = self._account.contracts.pools.get_terms(self._account.pool)
        return terms.unbond_window + 2 * (terms.challenge_window + terms.veto_window) + waiting.SPARE_SECONDS

    def _claim(self) -> None:
        """Claim what is final, and count what is not. A coordinator that does not respond keeps nobody's stake."""
        from covey.chain.amounts import format_amount

        account = self._account
        try:
            if (found := RewardSource(account, self._url).find_reward()) is not None:
                amount, _ = claim(account, *found)
                self.claimed += amount
                self._say(f"claimed {format_amount(amount, account.get_unit(raw=False))}")
            final, now = account.find_claimable(), account.get_time()
            unfinal = account.history.list_unfinal(account.pool, now=now)
            self.work = get_waiting(account, self._url, account.wallet.address, final, unfinal)
        except (TransientError, ProtocolError) as error:
            self.work = None
            self._say(f"rewards are unknown: {quote(str(error))}")
