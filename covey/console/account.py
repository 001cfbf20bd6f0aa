"""The account of a command: contracts, a key, a pool, and one way to send a transaction and wait for it."""

import asyncio
import secrets
import time
from collections.abc import Iterator, Sequence
from copy import copy
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from covey.chain.amounts import SMALLEST, TokenUnit, format_amount, parse_amount, read_unit, require_plausible
from covey.chain.contracts import Contracts
from covey.chain.deployment import Deployment
from covey.chain.history import History
from covey.chain.json_rpc import BlockTag, Call, ChainClient, open_node
from covey.chain.permits import make_permit
from covey.chain.structs import BondKind, PoolTerms, SignedPermit
from covey.chain.token import Token
from covey.chain.wallet import Wallet, load_key, save_key
from covey.errors import OperatorError, ProtocolError
from covey.protocol.eip712 import Domain, sign
from covey.protocol.ids import Address, Hash, PoolId, TaskId
from covey.protocol.messages import NodeRegistration

if TYPE_CHECKING:
    from covey.chain.events import EpochPosted
    from covey.chain.outbox import Entry
    from covey.network.coordinator_client import CoordinatorClient
    from covey.protocol.api.operator import PardonResponse
    from covey.protocol.api.public import RewardView, SubmissionDetail, SubmissionView
    from covey.protocol.params import PoolParams

PERMIT_SECONDS = 3600
"""Time in seconds, by the chain's clock, for which a permit of a command is valid."""
PAGE = 1000
"""Number of submissions that are asked for at once."""


class Account:
    """One pool, and the key that signs. The key is optional."""

    def __init__(self, deployment: Path, key_file: Path | None, pool: int, *, rpc_url: str | None = None) -> None:
        """Load deployment and key. `rpc_url` is the URL of the chain's node. None means the deployment's."""
        self.pool = PoolId(pool)
        self.deployment = Deployment.load(deployment)
        self._rpc_url = rpc_url
        self._wallet = load_key(key_file) if key_file else None

    def with_key(self, key_file: Path) -> "Account":
        """Return the account of another key in the same pool, on the same node."""
        other = copy(self)
        other._wallet = load_key(key_file)
        return other

    @cached_property
    def client(self) -> ChainClient:
        """Client of the node. It is opened at first use, so that wrong input is found before the chain is needed.

        Raises OperatorError("no_rpc"), OperatorError("wrong_chain"), or TransientError if the node does not respond.
        """
        return open_node(self.deployment, self._rpc_url)

    @cached_property
    def contracts(self) -> Contracts:
        return Contracts(self.client, self.deployment)

    @property
    def wallet(self) -> Wallet:
        if self._wallet is None:
            raise OperatorError(
                "no_key",
                "this command signs a transaction, but --key-file is missing",
                fix="Add --key-file FILE with the key of the account",
            )
        return self._wallet

    @staticmethod
    def bond_kind(kind: str) -> BondKind:
        try:
            return BondKind[kind.upper()]
        except KeyError as error:
            names = ", ".join(k.name.lower() for k in BondKind)
            raise OperatorError(
                "bad_kind", f"there is no kind of bond called {kind}", fix=f"Use one of {names}"
            ) from error

    def get_stake(self, kind: str) -> int:
        return self.contracts.stakes.stake_of(self.pool, self.bond_kind(kind), self.wallet.address)

    def _permit(self, spender: Address, amount: int) -> SignedPermit | None:
        """Let `spender` take `amount` of the account's tokens.

        Returns a permit to send with the call. If the token has no permits, sends an approval and returns None.
        """
        if self.token.allowance(self.wallet.address, spender) >= amount:
            return None
        permit = make_permit(
            self.token,
            self.wallet,
            spender=spender,
            value=amount,
            chain_id=self.deployment.chain_id,
            deadline=self.get_time() + PERMIT_SECONDS,
        )
        if permit is None:
            self.send(self.token.approve(spender, amount))
        return permit

    @cached_property
    def token(self) -> Token:
        """The pool's token."""
        return self.contracts.get_token(self.pool)

    @cached_property
    def _unit(self) -> TokenUnit:
        return read_unit(self.token)

    def get_unit(self, *, raw: bool) -> TokenUnit:
        """Return the unit of the command's amounts: the token's unit, or its smallest unit with `raw`."""
        return SMALLEST if raw else self._unit

    def read_amount(self, text: str, unit: TokenUnit, *, balance: int) -> int:
        """Parse a typed amount and return it in the smallest unit. `balance` is the amount that it is taken from.

        Raises OperatorError("bad_amount"), OperatorError("smallest_unit") if the unit is probably wrong, or
        OperatorError("exceeds_balance").
        """
        amount = parse_amount(text, unit)
        require_plausible(amount, unit, balance=balance)
        if amount > balance:
            held = format_amount(balance, unit)
            raise OperatorError(
                "exceeds_balance",
                f"{format_amount(amount, unit)} is more than the {held} of {self.wallet.address}",
                fix=f"Choose an amount up to {held}, or add tokens to the account",
            )
        return amount

    def stake(self, kind: BondKind, amount: int) -> "Entry":
        """Stake `amount`, in the token's smallest unit. It takes one transaction if the token has permits."""
        stakes = self.contracts.stakes
        permit = self._permit(stakes.address, amount)
        if permit is None:
            return self.send(stakes.stake(self.pool, kind, amount))
        return self.send(stakes.stake_with_permit(self.pool, kind, amount, permit))

    def fund(self, amount: int) -> "Entry":
        """Add `amount`, in the token's smallest unit, to the pool's escrow."""
        ledger = self.contracts.ledger
        permit = self._permit(ledger.address, amount)
        if permit is None:
            return self.send(ledger.fund_pool(self.pool, amount))
        return self.send(ledger.fund_pool_with_permit(self.pool, amount, permit))

    def _prepare_registration(self, node: Wallet) -> tuple[NodeRegistration, Domain]:
        nodes = self.contracts.nodes
        message = NodeRegistration(
            pool=self.pool,
            contributor=self.wallet.address,
            node=node.address,
            nonce=nodes.nonce_of(node.address),
            deadline=int(time.time()) + 3600,
        )
        return message, Domain(chain_id=self.deployment.chain_id, contract=nodes.address)

    def rotate_node(self, previous: Address, node: Wallet) -> "Entry":
        """Replace a node of the account with a new one. The new node signs its registration.

        Raises OperatorError("same_key") if both have the same key.
        """
        if node.address == previous:
            raise OperatorError(
                "same_key",
                f"the new node has the same key as the node to replace, {previous}",
                fix="Use the key file of a different node",
            )
        message, domain = self._prepare_registration(node)
        return self.send(
            self.contracts.nodes.rotate_node(
                message.pool,
                previous=previous,
                node=message.node,
                deadline=message.deadline,
                node_signature=sign(message, domain, node),
            )
        )

    def register_node(self, node: Wallet) -> "Entry":
        """Register a node of the account. The account and the node both sign."""
        message, domain = self._prepare_registration(node)
        return self.send(
            self.contracts.nodes.register_node(
                message.pool,
                contributor=message.contributor,
                node=message.node,
                deadline=message.deadline,
                contributor_signature=sign(message, domain, self.wallet),
                node_signature=sign(message, domain, node),
            )
        )

    def require_nothing_pending(self) -> None:
        """Check that the node has mined every transaction that this account has sent.

        Raises OperatorError("pending_transaction") if one is not mined yet. It can come from a command that ended with
        "not_mined", and repeating that command would send the transaction again.
        """
        address = self.wallet.address
        sent = self.client.count_transactions(address, "pending")
        waiting = sent - self.client.count_transactions(address)
        if waiting > 0:
            raise OperatorError(
                "pending_transaction",
                f"{address} has {waiting} pending transaction(s)",
                fix="Wait until they are mined, then run this command again",
            )

    def send(self, call: Call) -> "Entry":
        """Send one transaction and wait until it is mined.

        It is kept in an outbox of the account. If this command ends before the transaction is mined, the same command
        goes on with it, and another command of the account finishes it first.

        Raises ProtocolError("reverted") with the contract's reason, and TransientError("account_busy") if another
        command of the account is running.
        """
        from covey.chain.command_outbox import send_durably
        from covey.chain.fee_settings import FeeSettings
        from covey.chain.fees import FeeLimits
        from covey.runtime.log import log_to_stderr

        log_to_stderr()  # Standard output is the command's result, which may be JSON.
        limits = FeeLimits.of(FeeSettings.load(None))
        return send_durably(self.client, self.wallet, self.deployment, call, limits=limits)

    @property
    def history(self) -> History:
        return History(client=self.client, contracts=self.contracts)

    def get_time(self, block: BlockTag = "latest") -> int:
        """Return the Unix time of a block in seconds. Contracts use the time of the newest block."""
        return self.client.get_block(block).timestamp

    def find_claimable(self) -> "EpochPosted | None":
        """Return the newest epoch from which rewards can be claimed. None if there is none."""
        return self.history.find_claimable(self.pool, now=self.get_time())

    def get_reward(self, coordinator_url: str, contributor: Address, posted: "EpochPosted") -> "RewardView | None":
        """Return what a contributor had earned by the end of an epoch. None if it had earned nothing.

        Raises ProtocolError("bad_reward") if the coordinator's proof does not match the root on chain.
        """
        from covey.network.kept_rewards import require_reward

        view = asyncio.run(self._get_reward(coordinator_url, contributor, posted.epoch))
        if view is None:
            return None
        return require_reward(view, posted.record, self.contracts, pool=self.pool, contributor=contributor)

    async def _get_reward(self, coordinator_url: str, contributor: Address, epoch: int) -> "RewardView | None":
        from covey.network.kept_rewards import fetch_reward

        async with self.open_client(coordinator_url) as client:
            return await fetch_reward(client, contributor, epoch)

    def list_submissions(
        self, coordinator_url: str, *, limit: int, contributor: Address | None = None
    ) -> "list[SubmissionView]":
        """Return the newest submissions, newest first, as the coordinator reports them."""

        async def ask() -> "list[SubmissionView]":
            async with self.open_client(coordinator_url) as client:
                return await client.list_submissions(limit=limit, contributor=contributor)

        return asyncio.run(ask())

    def list_all_submissions(self, coordinator_url: str, *, contributor: Address) -> "Iterator[list[SubmissionView]]":
        """Yield all submissions of a contributor, a page at a time, newest first."""
        before: TaskId | None = None

        async def ask() -> "list[SubmissionView]":
            async with self.open_client(coordinator_url) as client:
                return await client.list_submissions(limit=PAGE, contributor=contributor, before=before)

        while page := asyncio.run(ask()):
            tasks = [*([] if before is None else [before]), *(view.task for view in page)]
            if any(later >= earlier for earlier, later in pairwise(tasks)):
                raise ProtocolError("bad_answer", "the coordinator returned submissions that are not newest first")
            if any(view.contributor != contributor for view in page):
                raise ProtocolError("bad_answer", "the coordinator returned submissions of another contributor")
            yield page
            before = page[-1].task

    @property
    def receipt_domain(self) -> Domain:
        """EIP-712 domain of receipts and verdicts."""
        return Domain(chain_id=self.deployment.chain_id, contract=self.contracts.court.address)

    def get_submission(self, coordinator_url: str, receipt_hash: Hash) -> "SubmissionDetail":
        """Return a submission with its verdicts, as the coordinator reports it."""

        async def ask() -> "SubmissionDetail":
            async with self.open_client(coordinator_url) as client:
                return await client.get_submission(receipt_hash)

        return asyncio.run(ask())

    def pardon(self, coordinator_url: str, address: Address) -> "PardonResponse":
        """Ask the coordinator to take back the strikes of a contributor, or of the contributor of a node."""

        async def ask() -> "PardonResponse":
            async with self.open_client(coordinator_url) as client:
                return await client.pardon(address)

        return asyncio.run(ask())

    def list_relays(self, coordinator_url: str) -> tuple[str, ...]:
        """Return the base URLs of the relays that the coordinator lists. They are not checked."""

        async def ask() -> tuple[str, ...]:
            async with self.open_client(coordinator_url) as client:
                return (await client.get_pool()).relays

        return asyncio.run(ask())

    def open_client(self, coordinator_url: str) -> "CoordinatorClient":
        from covey.network.coordinator_client import CoordinatorClient

        return CoordinatorClient(coordinator_url, self._wallet, chain_id=self.deployment.chain_id)


def make_key(path: Path, *, passphrase: str | None = None) -> Wallet:
    """Create a random key in a new file that only its owner may read, as a keystore if there is a passphrase."""
    return save_key(path, secrets.token_bytes(32), passphrase=passphrase)


def load_or_make_key(path: Path) -> Wallet:
    """Return the key in a file, and create the file with a random key if it does not exist."""
    return load_key(path) if path.exists() else make_key(path)


def read_pool_file(
    file: Path, token: Address, *, datasets: Sequence[Path] = (), model: str | Path | None = None
) -> "tuple[PoolTerms, list[Address], PoolParams]":
    """Read [terms] and [params] of a pool's TOML file. Raises OperatorError if the file is wrong.

    If the file does not set the environment's fingerprint and versions, they are computed on this machine. Values that
    differ from this machine's are refused. `datasets` are folders of the data sets that the environment uses.

    `model` is the name or folder of the pool's first model. Its chat template and end tokens are set likewise, as
    `pool_file.pin_model` does. Without it, the file of a chat pool must set the template's hash.
    """
    from covey.console.pool_file import TABLES, build_params, pin_model, read_document, read_table
    from covey.console.pool_terms import read_terms
    from covey.model.prompts import require_pinned_template
    from covey.runtime.validation import explain_unknown

    document = read_document(file)
    unknown = [explain_unknown(name, TABLES) for name in document if name not in TABLES]
    if unknown:
        raise OperatorError("bad_pool_file", f"{file} has unknown tables: {'; '.join(unknown)}", fix=f"Correct {file}")
    params = _with_fingerprint(build_params(file, document, {}), datasets)
    if model is not None:
        params = pin_model(params, model, datasets=datasets)
    require_pinned_template(params.model)
    terms, validators = read_terms(file, read_table(file, document, "terms"), token, params)
    return terms, validators, params


def _with_fingerprint(params: "PoolParams", datasets: Sequence[Path]) -> "PoolParams":
    from covey.environments import registry
    from covey.environments.base import EnvironmentSpec
    from covey.tasks.catalog import list_digests
    from covey.tasks.publishing import require_named

    named = params.environment
    spec = EnvironmentSpec(kind=named.kind, options=named.options)
    environment = registry.load(spec, require_named(list_digests(spec), datasets))
    registry.require_same(environment, versions=named.versions, fingerprint=named.fingerprint)
    filled = named.model_copy(
        update={"fingerprint": registry.compute_fingerprint(environment), "versions": dict(environment.versions)}
    )
    return params.model_copy(update={"environment": filled})
