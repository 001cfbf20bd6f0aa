"""Opens a folder's pool on chain: test money, the pool itself, its escrow, its bonds and its start.

Every step checks the chain first, so an interrupted opening is resumed, and a repeated one does nothing.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from coordinator.config import CoordinatorConfig
from covey.chain.amounts import format_amount, parse_amount, read_unit
from covey.chain.contracts import MAX_URL
from covey.chain.deployment import Deployment
from covey.chain.structs import BondKind, PoolState, PoolTerms
from covey.chain.token import Token
from covey.chain.wallet import load_key
from covey.console.account import Account
from covey.console.pool_terms import require_separate_roles
from covey.devnet.deploy import DEVNET_SEED, derive_wallet, fund
from covey.errors import OperatorError
from covey.local.folder import get_environment, has_own_chain, set_pool_number
from covey.local.plan import DEPLOYMENT_FILE
from covey.local.terms import read_terms, require_trainable_pool
from covey.protocol.ids import Address, PoolId
from covey.protocol.params import PoolParams
from covey.runtime.urls import is_public_url

OPERATOR_KEY = Path("keys") / "operator.key"
SPARE = 2
"""Factor between the test money that an account receives and the amount that it spends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """What a folder's pool still lacks on chain.

    Amounts are in the token's smallest unit, and 0 if nothing is missing.
    """

    pool: PoolId | None
    """Number of the pool. None before it is created."""
    operator: Account
    terms: PoolTerms
    validators: tuple[Address, ...]
    params: PoolParams
    token: Token
    """Token in the pool's terms, which may differ from the deployment's."""
    escrow: int
    """Amount that the operator adds to the escrow."""
    operator_bond: int
    """Amount that the operator adds to its bond."""
    validator_bonds: Mapping[Path, int]
    """Amount that each validator adds to its bond, by key file. Validators with keys elsewhere are not included."""
    absent_bonds: Mapping[Address, int]
    """Amount missing from the bond of each validator whose key is elsewhere, by address. Its owner must add it."""

    @property
    def costs(self) -> dict[Address, int]:
        """Amount that each account spends, by address. As the trainer, an account spends only gas."""
        costs = {self.operator.wallet.address: self.escrow + self.operator_bond}
        costs.setdefault(self.terms.trainer, 0)
        for file, amount in self.validator_bonds.items():
            address = load_key(file).address
            costs[address] = costs.get(address, 0) + amount
        return costs


def plan_opening(folder: Path, *, escrow: str, operator_bond: str) -> Opening:
    """Return what the folder's pool lacks. Nothing is sent.

    `escrow` and `operator_bond` are minimum amounts after the opening, in tokens. Example: escrow="100".

    Raises OperatorError("no_deployment") if the folder's own chain has not run yet.
    Raises the errors of `require_trainable_pool` if the folder's trainer would refuse the pool.
    Raises OperatorError("pending_transaction") if a transaction of an earlier opening is not mined yet.
    Raises OperatorError("pool_differs") if pool.toml was changed since the pool was created.
    Raises OperatorError("pool_ended") if the pool has ended. Raises OperatorError("unfunded") with every account that
    lacks money, unless the chain is the folder's devnet, where `open_pool` funds the accounts.
    """
    if has_own_chain(folder) and not (folder / DEPLOYMENT_FILE).exists():
        raise OperatorError(
            "no_deployment",
            f"the test chain of {folder} has not been started yet",
            fix=f"Run covey up {folder}, which also opens the pool",
        )
    require_trainable_pool(folder)
    operator = _open_account(folder, folder / OPERATOR_KEY)
    contracts = operator.contracts
    terms, validators, params = read_terms(folder, operator.deployment.token)
    require_separate_roles(folder / "pool.toml", terms, validators, operator.wallet.address)
    files = {load_key(file).address: file for file in sorted((folder / "keys").glob("validator-*.key"))}
    for file in (folder / OPERATOR_KEY, *files.values()):
        _open_account(folder, file).require_nothing_pending()
    token = Token(operator.client, terms.token)
    unit = read_unit(token)
    pool = _find_pool(folder, operator, terms, params)
    if pool is not None and contracts.pools.state_of(pool) is PoolState.ENDED:
        raise OperatorError(
            "pool_ended", f"pool {pool} of {folder} has ended", fix="Create another folder for a new pool"
        )

    def lacks(kind: BondKind, address: Address, amount: int) -> int:
        staked = 0 if pool is None else contracts.stakes.stake_of(pool, kind, address)
        return max(0, amount - staked)

    missing = {address: lacks(BondKind.VALIDATOR, address, terms.validator_bond) for address in validators}
    escrowed = 0 if pool is None else contracts.ledger.escrow_of(pool)
    opening = Opening(
        pool=pool,
        operator=operator,
        terms=terms,
        validators=tuple(validators),
        params=params,
        token=token,
        escrow=max(0, parse_amount(escrow, unit, least=0) - escrowed),
        operator_bond=lacks(BondKind.OPERATOR, operator.wallet.address, parse_amount(operator_bond, unit, least=0)),
        validator_bonds={files[address]: amount for address, amount in missing.items() if address in files},
        absent_bonds={address: amount for address, amount in missing.items() if address not in files},
    )
    if not has_own_chain(folder):
        _require_money(folder, opening)
    return opening


def open_pool(folder: Path, opening: Opening, *, say: Callable[[str], None]) -> PoolId:
    """Send the transactions that the pool still needs, and write the pool's number into the settings of every role.

    Raises OperatorError("unfunded") before the pool is created.
    """
    if has_own_chain(folder):
        _give_what_is_missing(opening)
        _require_money(folder, opening)
    pool = _create(opening, say) if opening.pool is None else opening.pool
    set_pool_number(folder, pool)
    operator = _open_account(folder, folder / OPERATOR_KEY, pool)
    if opening.escrow:
        say(f"pool {pool}: adding tokens to the escrow")
        operator.fund(opening.escrow)
    if opening.operator_bond:
        say(f"pool {pool}: adding the operator's bond")
        operator.stake(BondKind.OPERATOR, opening.operator_bond)
    for file, amount in opening.validator_bonds.items():
        if amount:
            say(f"pool {pool}: adding the bond of {file.stem}")
            _open_account(folder, file, pool).stake(BondKind.VALIDATOR, amount)
    for address, amount in opening.absent_bonds.items():
        if amount:
            say(
                f"pool {pool}: the owner of {address} must add the validator's bond with: covey "
                f"stake add {amount} --raw --kind validator --pool {pool} --deployment FILE "
                "--key-file FILE"
            )
    if operator.contracts.pools.state_of(pool) is PoolState.CREATED:
        operator.send(operator.contracts.pools.start_pool(pool))
    announce_pool(folder, say=say)
    say(f"pool {pool} is open")
    return pool


def announce_pool(folder: Path, url: str | None = None, *, say: Callable[[str], None]) -> str:
    """Announce on chain where the folder's pool is served, unless the newest announcement says so. Return the URL.

    `url` is None for the coordinator's base URL in the folder's settings. Raises OperatorError("bad_url").
    """
    settings = CoordinatorConfig.load(folder / "coordinator.toml", environment=get_environment())
    chosen = require_announceable(settings.base_url if url is None else url)
    operator = _open_account(folder, folder / OPERATOR_KEY)
    if operator.history.find_announcement(operator.pool) != chosen:
        say(f"pool {operator.pool}: announcing {chosen or 'that it is served nowhere'}")
        operator.send(operator.contracts.pools.announce(operator.pool, chosen))
    return chosen


def require_announceable(url: str) -> str:
    """Return a URL without a slash at its end, or an empty text, which takes an announcement back.

    Raises OperatorError("bad_url") if it cannot be announced.
    """
    chosen = url.rstrip("/")
    if chosen and not (is_public_url(chosen) and len(chosen) <= MAX_URL):
        raise OperatorError(
            "bad_url",
            f"{chosen} cannot be announced, because it is not a plain URL of at most {MAX_URL} characters",
            fix="Use a URL such as https://pool.example",
        )
    return chosen


def _create(opening: Opening, say: Callable[[str], None]) -> PoolId:
    """Create the pool and return its number."""
    operator, terms, params = opening.operator, opening.terms, opening.params
    say(f"creating the pool {params.name}")
    operator.send(operator.contracts.pools.create_pool(terms, opening.validators, params.to_text()))
    pool = operator.history.find_pool(operator.wallet.address, terms.params_hash)
    if pool is None:
        raise OperatorError(
            "no_pool", "the pool was created, but the chain does not show it yet", fix="Run this command again"
        )
    return pool


def find_open_pool(folder: Path) -> PoolId | None:
    """Return the number of the folder's pool if it was started. None if not.

    A pool that has ended counts, because its work is still being settled.
    Raises OperatorError("pool_differs") if pool.toml was changed since the pool was created.
    """
    operator = _open_account(folder, folder / OPERATOR_KEY)
    terms, _, params = read_terms(folder, operator.deployment.token)
    pool = _find_pool(folder, operator, terms, params)
    has_begun = pool is not None and operator.contracts.pools.state_of(pool) in (PoolState.ACTIVE, PoolState.ENDED)
    return pool if has_begun else None


_CHANGEABLE = {"params_hash", "quorum", "reward_per_million", "signer", "trainer", "arbiter", "heir"}
"""Terms that are compared elsewhere, or that may have another value on chain by now."""


def _find_pool(folder: Path, operator: Account, terms: PoolTerms, params: PoolParams) -> PoolId | None:
    """Return the pool in the settings, or else a pool with these parameters. None before it is created.

    Raises OperatorError("pool_differs") if parameters or terms on chain differ that cannot be changed.
    """
    pool = operator.history.find_pool(operator.wallet.address, terms.params_hash)
    if pool is None and operator.contracts.pools.operator_of(operator.pool) == operator.wallet.address:
        pool = operator.pool
    if pool is None:
        return None
    created = operator.contracts.pools.get_terms(pool)
    published = params
    if created.params_hash != terms.params_hash:
        published = PoolParams.from_text(operator.history.find_params(pool) or "", created.params_hash)
    differing = [
        f"{name} in [terms] is {value}, but {getattr(created, name)} on chain"
        for name, value in asdict(terms).items()
        if name not in _CHANGEABLE and value != getattr(created, name)
    ]
    differing += [f"{name} in [params]" for name, value in published if value != getattr(params, name)]
    if differing:
        raise OperatorError(
            "pool_differs",
            f"{folder / 'pool.toml'} differs from what pool {pool} was created with: {'; '.join(differing)}",
            fix="Undo the change, or create another folder for a new pool; if only environment "
            "differs, install the library version with which the pool was created",
        )
    return pool


def _open_account(folder: Path, key_file: Path, pool: int | None = None) -> Account:
    """Open an account of the folder, with the same node as the folder's coordinator.

    `pool` is the number of its pool. None means the number in the settings, even if that pool does not exist.
    """
    file = folder / "coordinator.toml"
    if not file.exists():
        raise OperatorError(
            "no_pool_file", f"{folder} has no {file.name}", fix="Use a folder that covey init pool has created"
        )
    settings = CoordinatorConfig.load(file, environment=get_environment())
    return Account(settings.deployment, key_file, pool or settings.pool, rpc_url=settings.rpc_url)


def _find_poor(opening: Opening) -> dict[Address, int]:
    """Return the accounts that lack ether or tokens, with the token amount that each must spend."""
    return {
        address: amount
        for address, amount in opening.costs.items()
        if opening.operator.client.get_balance(address) == 0 or opening.token.balance_of(address) < amount
    }


def _require_money(folder: Path, opening: Opening) -> None:
    """Raise OperatorError("unfunded") unless every account has ether for gas and the tokens that it spends."""
    poor = _find_poor(opening)
    if not poor:
        return
    unit = read_unit(opening.token)
    wanted = "; ".join(
        f"{address} needs ether for gas and {format_amount(amount, unit)}" for address, amount in poor.items()
    )
    raise OperatorError(
        "unfunded", wanted, fix=f"Send them the missing amounts, and run covey pool open {folder} again"
    )


def _give_what_is_missing(opening: Opening) -> None:
    """Send ether to the accounts that lack ether or tokens.

    Also send tokens if the pool's token is the devnet's own.
    """
    deployment = opening.operator.deployment
    is_own = opening.token.address == deployment.token
    give_test_money(
        deployment, {address: SPARE * amount if is_own else 0 for address, amount in _find_poor(opening).items()}
    )


def give_test_money(deployment: Deployment, tokens: Mapping[Address, int]) -> None:
    """Send ether and test tokens on a devnet."""
    fund(deployment, derive_wallet(DEVNET_SEED, "deployer"), tokens)
