"""A pool's opening on chain, from its folder: money, the pool itself, its escrow, its bonds, its start.

Every step looks at the chain first, so an opening that broke off goes on where it was, and a repeated one does nothing.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

from coordinator.config import CoordinatorConfig
from covey.chain.amounts import format_amount, parse_amount, read_unit
from covey.chain.contracts import Token
from covey.chain.deployment import Deployment
from covey.chain.structs import BondKind, PoolState
from covey.chain.wallet import load_key
from covey.cli.account import Account, read_pool_file
from covey.cli.pool_terms import require_offices
from covey.devnet import DEVNET_SEED, derive_wallet, fund
from covey.errors import OperatorError
from covey.local.folder import is_devnet, set_pool_number
from covey.protocol.ids import Address, PoolId

ESCROW, OPERATOR_BOND = "100", "10"
"""Amounts in tokens that a pool is opened with where the command names no others."""
OPERATOR_KEY = Path("keys") / "operator.key"
SPARE = 2
"""A devnet's accounts get this many times what the opening takes."""


def open_pool(folder: Path, *, escrow: str, operator_bond: str, say: Callable[[str], None]) -> PoolId:
    """Open the folder's pool and write its number into the settings of every role.

    `escrow` and `operator_bond` are what is there afterwards, at least, in tokens.  Example: escrow="100".
    Raises OperatorError("unfunded") with every account that lacks something, before anything is sent.
    """
    operator = _open_account(folder, OPERATOR_KEY)
    contracts = operator.contracts
    terms, validators, params = read_pool_file(folder / "pool.toml", contracts.deployment.token)
    require_offices(folder / "pool.toml", terms, validators, operator.wallet.address)
    token = Token(operator.client, terms.token)
    unit = read_unit(token)
    files = sorted((folder / "keys").glob("validator-*.key"))
    held = {load_key(file).address: file.relative_to(folder) for file in files}
    keys = {address: held[address] for address in validators if address in held}  # others bond by themselves
    pool = operator.history.find_pool(operator.wallet.address, terms.params_hash)
    if pool is not None and contracts.pools.state_of(pool) is PoolState.ENDED:
        raise OperatorError(
            "pool_ended", f"pool {pool} of {folder} has ended", fix="Make another folder for another pool"
        )

    def lacks(kind: BondKind, address: Address, amount: int) -> int:
        staked = 0 if pool is None else contracts.stakes.stake_of(pool, kind, address)
        return max(0, amount - staked)

    missing_escrow = max(
        0, parse_amount(escrow, unit, least=0) - (0 if pool is None else contracts.ledger.escrow_of(pool))
    )
    bonds = {address: lacks(BondKind.VALIDATOR, address, terms.validator_bond) for address in keys}
    bond = lacks(BondKind.OPERATOR, operator.wallet.address, parse_amount(operator_bond, unit, least=0))
    needs = {operator.wallet.address: missing_escrow + bond, terms.trainer: 0, **bonds}
    _require_money(folder, operator, token, needs)

    if pool is None:
        say(f"creating the pool {params.name}")
        operator.send(contracts.pools.create_pool(terms, validators, params.to_text()))
        pool = operator.history.find_pool(operator.wallet.address, terms.params_hash)
        if pool is None:
            raise OperatorError("no_pool", "the chain does not show the pool that was created", fix="Run this again")
    set_pool_number(folder, pool)
    operator = _open_account(folder, OPERATOR_KEY, pool)
    if missing_escrow:
        say(f"pool {pool}: funding the escrow")
        operator.approve(contracts.ledger.address, missing_escrow)
        operator.send(contracts.ledger.fund_pool(pool, missing_escrow))
    if bond:
        say(f"pool {pool}: bonding the operator")
        operator.stake(BondKind.OPERATOR, bond)
    for address, amount in bonds.items():
        if amount:
            say(f"pool {pool}: bonding {keys[address].stem}")
            _open_account(folder, keys[address], pool).stake(BondKind.VALIDATOR, amount)
    if contracts.pools.state_of(pool) is PoolState.CREATED:
        operator.send(contracts.pools.start_pool(pool))
    say(f"pool {pool} is open")
    return pool


def find_open_pool(folder: Path) -> PoolId | None:
    """The number of the folder's pool once it was started; also of one that has ended, whose work is still settled."""
    operator = _open_account(folder, OPERATOR_KEY)
    terms, _, _ = read_pool_file(folder / "pool.toml", operator.contracts.deployment.token)
    pool = operator.history.find_pool(operator.wallet.address, terms.params_hash)
    has_begun = pool is not None and operator.contracts.pools.state_of(pool) in (PoolState.ACTIVE, PoolState.ENDED)
    return pool if has_begun else None


def _open_account(folder: Path, key_file: Path, pool: int = 0) -> Account:
    """An account of the folder, which asks the node that the folder's coordinator asks."""
    settings = CoordinatorConfig.load(folder / "coordinator.toml")
    return Account(settings.deployment, folder / key_file, pool, rpc_url=settings.rpc_url)


def _require_money(folder: Path, operator: Account, token: Token, needs: Mapping[Address, int]) -> None:
    """Have every account hold ether for gas and the tokens that it needs: given on a devnet, asked for elsewhere.

    A devnet gives its own test token and no other one.  Raises OperatorError("unfunded").
    """
    poor = _find_poor(operator, token, needs)
    if poor and is_devnet(folder):
        is_own = token.address == operator.contracts.deployment.token
        give_test_money(
            operator.contracts.deployment, {address: SPARE * amount * is_own for address, amount in poor.items()}
        )
        poor = _find_poor(operator, token, needs)
    if not poor:
        return
    unit = read_unit(token)
    wanted = "; ".join(
        f"{address} needs ether for gas and {format_amount(amount, unit)}" for address, amount in poor.items()
    )
    raise OperatorError("unfunded", wanted, fix=f"Send them that, and run covey pool open {folder} again")


def _find_poor(operator: Account, token: Token, needs: Mapping[Address, int]) -> dict[Address, int]:
    """The accounts that lack ether or tokens, with what each of them needs."""
    return {
        address: amount
        for address, amount in needs.items()
        if operator.client.get_balance(address) == 0 or token.balance_of(address) < amount
    }


def give_test_money(deployment: Deployment, tokens: Mapping[Address, int]) -> None:
    """Ether and test tokens on a devnet."""
    fund(deployment, derive_wallet(DEVNET_SEED, "deployer"), tokens)
