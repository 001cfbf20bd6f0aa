"""Finds the pools of a deployment with nothing but the chain, and asks each announced coordinator about its pool.

Everything that decides about money comes from the chain. What a coordinator says is compared with it, and the rest is
shown as the operator's word. A URL comes from whoever created the pool, so it is asked with deadlines and size limits,
and on a public chain only if its host is public.

Anyone can create pools for gas, so every list has a limit and a deadline. What they leave out is counted.
"""

import asyncio
import ipaddress
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TypeVar
from urllib.parse import urlsplit

from covey.chain.amounts import SMALLEST, TokenUnit, read_unit
from covey.chain.contracts import Contracts
from covey.chain.events import EpochPosted
from covey.chain.history import History, Listing
from covey.chain.structs import PoolState, PoolTerms
from covey.errors import CoveyError, OperatorError, ProtocolError, TransientError
from covey.network.coordinator_client import CoordinatorClient
from covey.network.pool_view import require_same_contracts
from covey.protocol.hardware_needs import MachineHardware, list_misfits
from covey.protocol.ids import Address, PoolId
from covey.protocol.params import PoolParams
from covey.runtime.urls import is_public_url

ASK_SECONDS = 8.0
"""Deadline in seconds for all that one coordinator is asked."""
MAX_ASKED = 16
"""Maximum number of coordinators, and of requests to the chain's node, at a time."""
MARKET_POOLS, MARKET_SECONDS = 50, 60.0
"""Default limit of listed pools, and default deadline in seconds of the whole list."""
READ_PER_LISTED = 20
"""Maximum number of pools whose state and money are read, per pool of the limit."""
DAY_SECONDS = 86_400
RATE_EPOCHS = 8
"""Number of newest epochs from which the rate of spending is computed."""
Item = TypeVar("Item")
Result = TypeVar("Result")


class PoolService(StrEnum):
    """Whether a pool can be reached at its announced URL."""

    SERVED = "served"
    """The coordinator describes the pool as the chain does."""
    NOT_ANNOUNCED = "not announced"
    REFUSED = "refused"
    """The URL is malformed, or leads to a private network."""
    SILENT = "silent"
    """Nobody answered in time, or not with a valid answer."""
    OTHER = "describes another pool"
    """The description does not match the chain."""
    NOT_ASKED = "not asked"
    """The deadline of the list has passed first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorRecord:
    """Facts about an operator from the events of the pools that it has created, and of the shown pool."""

    pools: int
    disabled_epochs: int
    cases: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedPool:
    """One pool of the market. Amounts are in the smallest unit of its token."""

    pool: PoolId
    operator: Address
    state: PoolState
    created_at: int
    """Unix time in seconds of the block that created it."""
    url: str
    """Announced URL of the coordinator. Empty: none is announced."""
    service: PoolService
    trouble: str
    """Why the pool is not served, as one sentence. Empty if it is."""
    terms: PoolTerms
    params: PoolParams | None
    """None if the chain's text is not valid for this version of Covey."""
    steps: int
    """Number of policies on chain."""
    escrow: int
    free_escrow: int
    """Part of the escrow that no posted epoch has promised."""
    spent_per_day: float
    """Rewards of the newest epochs, per day of chain time. 0 if there are fewer than two."""
    fees_per_day: float
    """Part of `spent_per_day` that pays validators for verdicts."""
    nodes: int | None
    """Number of nodes that are registered on chain. None if the deadline has passed before they were counted."""
    unit: TokenUnit
    """Unit of the pool's token, or its smallest unit if the token does not report a valid one."""
    record: OperatorRecord | None
    """None in a list: only `read_pool` counts it."""

    @property
    def days_left(self) -> float | None:
        """Days that the free escrow lasts at the present rate. None if nothing is spent."""
        return self.free_escrow / self.spent_per_day if self.spent_per_day > 0 else None

    @property
    def expected_per_hour(self) -> int | None:
        """What the newest epochs have paid a registered node per hour on average. 0 once the free escrow is empty.

        Both numbers are from the chain. None if no epoch or no node is known.
        """
        if self.free_escrow == 0:
            return 0
        earned_per_day = self.spent_per_day - self.fees_per_day
        return int(earned_per_day / 24 / self.nodes) if self.nodes and self.spent_per_day > 0 else None

    def list_misfits(self, machine: MachineHardware) -> list[str]:
        """Return one sentence for each reason why a machine does not fit the pool. Empty if it fits."""
        if self.params is None:
            return ["The pool's parameters are not valid for this version of Covey."]
        return list_misfits(self.params.needs, machine, models=self.params.verification.list_models())


@dataclass(frozen=True, slots=True, kw_only=True)
class Market:
    """Pools of a deployment, newest first, and how many pools are not among them."""

    pools: list[ListedPool]
    total: int
    """Number of pools that the deployment has."""
    closed: int
    """Number of pools left out because they have ended, or have no money that is not promised yet."""
    unread: int
    """Number of pools left out because the limit or the deadline was reached first."""
    is_late: bool
    """Whether the deadline has passed before everything was read."""
    now: int
    """Unix time of the chain in seconds."""


class _Deadline:
    """A deadline on the monotonic clock."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    def compute_left(self) -> float:
        return max(0.0, self._end - time.monotonic())

    def is_over(self) -> bool:
        return self.compute_left() == 0


@dataclass(frozen=True, slots=True)
class _Funds:
    """State and money of a pool."""

    pool: PoolId
    state: PoolState
    escrow: int
    free: int

    @property
    def is_worth_asking(self) -> bool:
        """Whether a contributor could earn in the pool."""
        return self.state in (PoolState.CREATED, PoolState.ACTIVE) and self.free > 0


def list_market(
    history: History,
    *,
    is_devnet: bool,
    limit: int = MARKET_POOLS,
    seconds: float = MARKET_SECONDS,
    everything: bool = False,
) -> Market:
    """Return the newest pools that have not ended and have money that is not promised yet, at most `limit`.

    It reads state and money of READ_PER_LISTED * `limit` pools at most, and everything else only of those that it
    lists. With `everything`, ended pools and pools without money are listed, too. It ends about `seconds` after its
    start, and counts what it has not read by then. With `is_devnet`, coordinators on private networks are asked, too.
    """
    deadline, total = _Deadline(seconds), history.contracts.pools.count_pools()
    chosen: list[_Funds] = []
    oldest = max(0, total - limit * READ_PER_LISTED)
    pool, closed = total, 0
    with ThreadPoolExecutor(MAX_ASKED, "market") as threads:
        while pool > oldest and len(chosen) < limit and not deadline.is_over():
            batch = range(pool, max(oldest, pool - MAX_ASKED), -1)
            for funds in threads.map(lambda number: _read_funds(history.contracts, PoolId(number)), batch):
                if len(chosen) == limit:
                    break
                pool -= 1
                if everything or funds.is_worth_asking:
                    chosen.append(funds)
                else:
                    closed += 1
        found = _describe_all(history, chosen, threads, deadline, is_devnet=is_devnet)
    return Market(
        pools=found,
        total=total,
        closed=closed,
        unread=total - closed - len(found),
        is_late=deadline.is_over(),
        now=history.client.get_block("latest").timestamp,
    )


def read_pool(history: History, pool: PoolId, *, is_devnet: bool, seconds: float = MARKET_SECONDS) -> ListedPool:
    """Return one pool, whatever its state, with the record of its operator.

    Raises OperatorError("unknown_pool") if it does not exist, and TransientError("chain_slow") if the chain's node has
    not described it within `seconds`.
    """
    history.contracts.pools.get_terms(pool)
    deadline, funds = _Deadline(seconds), _read_funds(history.contracts, pool)
    with ThreadPoolExecutor(1, "market") as threads:
        found = _describe_all(history, [funds], threads, deadline, is_devnet=is_devnet)
    if not found:
        raise TransientError("chain_slow", f"the chain node has not described pool {pool} within {seconds:.0f} s")
    return replace(found[0], record=_read_record(history, pool, found[0].operator))


def _read_funds(contracts: Contracts, pool: PoolId) -> _Funds:
    escrow = contracts.ledger.escrow_of(pool)
    free = max(0, escrow - contracts.ledger.owed_of(pool)) if escrow else 0
    return _Funds(pool, contracts.pools.state_of(pool), escrow, free)


def _read_record(history: History, pool: PoolId, operator: Address) -> OperatorRecord:
    own = {pool, *history.list_pools_of(operator)}
    return OperatorRecord(
        pools=len(own),
        disabled_epochs=sum(event.pool in own for event in history.list_disabled()),
        cases=sum(event.pool in own for event in history.list_cases()),
    )


def _describe_all(
    history: History, chosen: Sequence[_Funds], threads: ThreadPoolExecutor, deadline: _Deadline, *, is_devnet: bool
) -> list[ListedPool]:
    """Return the pools that are described before the deadline, in the same order."""
    is_over = deadline.is_over
    listings = history.find_listings([funds.pool for funds in chosen], is_over=is_over)
    seen = [funds for funds in chosen if funds.pool in listings]
    if not seen:
        return []
    pools, first = [funds.pool for funds in seen], min(each.created.block_number for each in listings.values())
    nodes = history.count_nodes(pools, first=first, is_over=is_over)
    counts = {
        pool: min(RATE_EPOCHS, n) for pool, n in _map(threads, history.contracts.ledger.epochs_of, pools, is_over)
    }
    epochs = history.list_newest_epochs(counts, first=first, is_over=is_over)

    def describe(funds: _Funds) -> ListedPool:
        listing = listings[funds.pool]
        count = None if nodes is None else nodes[funds.pool]
        return _describe(history, funds, listing, epochs.get(funds.pool, []), count)

    described = [pool for _, pool in _map(threads, describe, seen, is_over)]
    answers = asyncio.run(_ask_all(described, history.contracts, deadline, is_devnet=is_devnet))
    return [
        replace(pool, service=answer.service, trouble=answer.trouble)
        for pool, answer in zip(described, answers, strict=True)
    ]


def _map(
    threads: ThreadPoolExecutor, read: Callable[[Item], Result], items: Iterable[Item], is_over: Callable[[], bool]
) -> list[tuple[Item, Result]]:
    """Return the items with what `read` returns for them, without those that begin too late."""

    def read_in_time(item: Item) -> list[tuple[Item, Result]]:
        return [] if is_over() else [(item, read(item))]

    return [pair for found in threads.map(read_in_time, items) for pair in found]


@dataclass(frozen=True, slots=True)
class _Answer:
    """What asking a URL has given."""

    service: PoolService
    trouble: str = ""


async def _ask_all(
    pools: Sequence[ListedPool], contracts: Contracts, deadline: _Deadline, *, is_devnet: bool
) -> list[_Answer]:
    gate = asyncio.Semaphore(MAX_ASKED)

    async def ask(pool: ListedPool) -> _Answer:
        async with gate:
            seconds = min(ASK_SECONDS, deadline.compute_left())
            return await _ask(pool, contracts, seconds=seconds, is_devnet=is_devnet)

    return await asyncio.gather(*map(ask, pools))


async def _ask(pool: ListedPool, contracts: Contracts, *, seconds: float, is_devnet: bool) -> _Answer:
    url = pool.url
    if not url:
        return _Answer(PoolService.NOT_ANNOUNCED, "its operator has not announced a URL")
    if not is_public_url(url):
        return _Answer(PoolService.REFUSED, "the announced URL is not valid")
    if seconds <= 0:
        return _Answer(PoolService.NOT_ASKED, "the deadline has passed before its coordinator was asked")
    try:
        async with asyncio.timeout(seconds):
            if not is_devnet:
                await _require_public_host(url)
            async with CoordinatorClient(url, None, chain_id=0, timeout_seconds=seconds) as client:
                view = await client.get_pool()
                require_same_contracts(view, contracts.deployment)
        expected = (pool.pool, pool.operator, pool.terms.params_hash)
        if (view.pool, view.operator, view.params_hash) != expected:
            return _Answer(PoolService.OTHER, f"it describes pool {view.pool} of {view.operator}")
        return _Answer(PoolService.SERVED)
    except TimeoutError:
        return _Answer(PoolService.SILENT, f"it has not answered within {seconds:.0f} s")
    except OperatorError as error:
        service = PoolService.OTHER if error.code == "other_contracts" else PoolService.REFUSED
        return _Answer(service, error.message)
    except CoveyError as error:
        return _Answer(PoolService.SILENT, error.message)


async def _require_public_host(url: str) -> None:
    """Raise OperatorError("private_url") if a URL's host has an address that is not public.

    Otherwise anyone could have a reader of the market send requests into its own network.
    """
    parts = urlsplit(url)
    port = parts.port or {"http": 80, "https": 443}[parts.scheme]
    try:
        found = await asyncio.get_running_loop().getaddrinfo(parts.hostname, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise ProtocolError("bad_answer", f"the host of the announced URL is unknown: {error}") from error
    for *_, address in found:
        if not ipaddress.ip_address(str(address[0]).partition("%")[0]).is_global:
            raise OperatorError(
                "private_url", f"the announced URL leads to the private address {address[0]}", fix="Ignore this pool"
            )


def _describe(
    history: History, funds: _Funds, listing: Listing, epochs: Sequence[EpochPosted], nodes: int | None
) -> ListedPool:
    """Describe a pool from the chain. `service` is not known yet."""
    contracts, pool, created = history.contracts, funds.pool, listing.created
    terms = contracts.pools.get_terms(pool)
    try:
        params = PoolParams.from_text(created.params, terms.params_hash)
    except ProtocolError:
        params = None
    rewards, fees = _compute_rates(epochs, terms)
    return ListedPool(
        pool=pool,
        operator=contracts.pools.operator_of(pool),
        state=funds.state,
        created_at=history.client.get_block(created.block_number).timestamp,
        url=listing.url,
        service=PoolService.NOT_ASKED,
        trouble="",
        terms=terms,
        params=params,
        steps=contracts.policies.steps_of(pool),
        escrow=funds.escrow,
        free_escrow=funds.free,
        spent_per_day=rewards,
        fees_per_day=fees,
        nodes=nodes,
        unit=_read_unit(contracts, pool),
        record=None,
    )


def _read_unit(contracts: Contracts, pool: PoolId) -> TokenUnit:
    try:
        return read_unit(contracts.get_token(pool))
    except (OperatorError, ProtocolError, TransientError):  # Anybody can name any contract as a token.
        return SMALLEST


def _compute_rates(epochs: Sequence[EpochPosted], terms: PoolTerms) -> tuple[float, float]:
    """Return the rewards per day of some epochs, from the first of them to the last, and the fees among them."""
    seconds = epochs[-1].record.final_at - epochs[0].record.final_at if epochs else 0
    if seconds <= 0:
        return 0.0, 0.0
    rewards = sum(posted.record.reward for posted in epochs[1:])
    fees = sum(terms.verdict_fees.compute_total(posted.header.verdicts) for posted in epochs[1:])
    return DAY_SECONDS * rewards / seconds, DAY_SECONDS * fees / seconds
