"""`covey pool price`, `rotate` and `heir`: what the operator can change of a pool that exists."""

from typing import Annotated, Literal

import typer

from covey.console import options
from covey.console.options import DeploymentFile, FolderSource, Json, KeyFile, Pool, Raw, show
from covey.console.terminal import Moment
from covey.errors import OperatorError

RoleName = Literal["operator", "signer", "trainer", "arbiter"]


def pool_price(
    amount: Annotated[
        str, typer.Argument(metavar="AMOUNT", help='Reward of 1,000,000 tokens, for example 0.25 or "0.25 CVT".')
    ],
    deployment: DeploymentFile,
    key_file: KeyFile,
    pool: Pool,
    folder: FolderSource = None,
    raw: Raw = False,
    as_json: Json = False,
) -> None:
    """Change what a pool pays for 1,000,000 tokens. Operator only.

    A raise holds for epochs that begin after challenge_window, a lowering for those that begin after unbond_window. The
    present price cancels a change that does not hold yet.

    Example: `covey pool price 0.25 mypool`
    """
    from covey.chain.amounts import Amount, parse_amount

    account = options.open_account(deployment, key_file, pool, folder=folder)
    unit, pools = account.get_unit(raw=raw), account.contracts.pools
    price = parse_amount(amount, unit, least=0)
    entry = account.send(pools.set_price(account.pool, price))
    newest, shown = pools.get_prices(account.pool)[-1], account.get_unit(raw=raw or as_json)
    values = {
        "reward_per_million": Amount(newest.reward_per_million, shown),
        "holds_from": Moment(newest.start, account.get_time()) if newest.start else None,
    }
    show(values | {"transaction": entry.transaction_hash}, as_json)


def pool_rotate(
    role: Annotated[RoleName, typer.Argument(help="Role that passes to another account.")],
    address: Annotated[str, typer.Argument(help="Address of the account that gets the role.")],
    deployment: DeploymentFile,
    key_file: KeyFile,
    pool: Pool,
    folder: FolderSource = None,
    as_json: Json = False,
) -> None:
    """Pass a role of a pool to another account. Operator only; the arbiter can pass on its own role.

    It holds after unbond_window, for the arbiter after twice that time, without another transaction. The present
    account's address cancels a change that does not hold yet. Restart the role's process with the new key then.

    Example: `covey pool rotate signer ADDRESS mypool`
    """
    from covey.chain.structs import PoolRole
    from covey.console.addresses import read_address
    from covey.protocol.ids import ZERO_ADDRESS

    account = options.open_account(deployment, key_file, pool, folder=folder)
    pools, kind = account.contracts.pools, PoolRole[role.upper()]
    entry = account.send(pools.propose_role(account.pool, kind, read_address(address)))
    holder = pools.get_role(account.pool, kind)
    is_pending = holder.next != ZERO_ADDRESS
    values = {
        "role": role,
        "account": holder.account,
        "next": holder.next if is_pending else None,
        "holds_from": Moment(holder.next_from, account.get_time()) if is_pending else None,
    }
    show(values | {"transaction": entry.transaction_hash}, as_json)


def pool_heir(
    address: Annotated[str, typer.Argument(help='Address of the heir, or "none".')],
    deployment: DeploymentFile,
    key_file: KeyFile,
    pool: Pool,
    folder: FolderSource = None,
    as_json: Json = False,
) -> None:
    """Name who receives escrow and operator's bond of a closed pool, in case the operator's key is lost. Operator only.

    It holds at once. Anyone can then run `covey pool refund` and `covey stake withdraw --kind operator`.

    Example: `covey pool heir ADDRESS mypool`
    """
    from covey.console.addresses import is_example, read_address
    from covey.protocol.ids import ZERO_ADDRESS

    heir = ZERO_ADDRESS if address == "none" else read_address(address)
    if address != "none" and is_example(heir):
        raise OperatorError(
            "example_address", f"nobody has the key of {heir}", fix="Use an address of your own, or none"
        )
    account = options.open_account(deployment, key_file, pool, folder=folder)
    entry = account.send(account.contracts.pools.set_heir(account.pool, heir))
    show({"heir": None if heir == ZERO_ADDRESS else heir, "transaction": entry.transaction_hash}, as_json)
