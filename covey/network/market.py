"""Finds the pools of a deployment with nothing but the chain, and asks each announced coordinator about its pool.

Everything that decides about money comes from the chain. What a coordinator says is compared with it, and the rest is
shown as the operator's word. A URL comes from whoever created the pool, so it is asked with deadlines and size limits,
and on a public chain only if its host is public.
"""

import asyncio
import ipaddress
import socket
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from urllib.parse import urlsplit

from covey.chain.contracts import Contracts
from covey.chain.events import EpochPosted, PoolCreated
from covey.chain.history import History
from covey.chain.structs import PoolState, PoolTerms
from covey.errors import CoveyError, OperatorError, ProtocolError
from covey.network.coordinator_client import CoordinatorClient
from covey.network.pool_view import require_same_contracts
from covey.protocol.api.public import StatusView
from covey.protocol.hardware_needs import MachineHardware, list_misfits
from covey.protocol.ids import Address, PoolId
from covey.protocol.params import PoolParams
from covey.runtime.urls import is_public_url

ASK_SECONDS = 8.0
"""Deadline in seconds for all that one coordinator is asked."""
MAX_ASKED = 16
"""Maximum number of coordinators that are asked at a time."""
DAY_SECONDS = 86_400
RATE_EPOCHS = 8
"""Number of newest epochs from which the rate of spending is computed."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorRecord:
    """Facts about an operator from the events of all its pools."""

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
    """Number of nodes, by the coordinator's word. None if it was not asked."""
    record: OperatorRecord

    @property
    def days_left(self) -> float | None:
        """Days that the free escrow lasts at the present rate. None if nothing is spent."""
        return self.free_escrow / self.spent_per_day if self.spent_per_day > 0 else None

    @property
    def expected_per_hour(self) -> int | None:
        """What the newest epochs have paid a registered worker per hour on average. 0 once the free escrow is empty.

        None if no epoch or no worker is known.
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


def list_market(history: History, *, is_devnet: bool, only: PoolId | None = None) -> list[ListedPool]:
    """Return the pools that have not ended, oldest first. `only` selects one pool, whatever its state.

    With `is_devnet`, coordinators on private networks are asked, too.
    Raises OperatorError("unknown_pool") if there is no pool `only`.
    """
    contracts, pools = history.contracts, history.contracts.pools
    created = [replace(event, operator=pools.operator_of(event.pool)) for event in history.list_pools()]
    states = {event.pool: pools.state_of(event.pool) for event in created}
    chosen = [event for event in created if event.pool == only or (only is None and _is_open(states[event.pool]))]
    if only is not None and not chosen:
        contracts.pools.get_terms(only)
    urls, records = history.list_announcements(), _list_records(history, created)
    answers = asyncio.run(_ask_all([urls.get(event.pool, "") for event in chosen], contracts, chosen, is_devnet))
    return [
        _describe(history, event, states[event.pool], urls.get(event.pool, ""), answer, records[event.operator])
        for event, answer in zip(chosen, answers, strict=True)
    ]


def _is_open(state: PoolState) -> bool:
    return state in (PoolState.CREATED, PoolState.ACTIVE)


def _list_records(history: History, created: Sequence[PoolCreated]) -> Mapping[Address, OperatorRecord]:
    disabled = Counter(event.pool for event in history.list_disabled())
    cases = Counter(event.pool for event in history.list_cases())
    pools: dict[Address, list[PoolId]] = {}
    for event in created:
        pools.setdefault(event.operator, []).append(event.pool)
    return {
        operator: OperatorRecord(
            pools=len(own),
            disabled_epochs=sum(disabled[pool] for pool in own),
            cases=sum(cases[pool] for pool in own),
        )
        for operator, own in pools.items()
    }


@dataclass(frozen=True, slots=True)
class _Answer:
    """What asking a URL has given."""

    service: PoolService
    trouble: str = ""
    status: StatusView | None = None


async def _ask_all(
    urls: Sequence[str], contracts: Contracts, created: Sequence[PoolCreated], is_devnet: bool
) -> list[_Answer]:
    gate = asyncio.Semaphore(MAX_ASKED)

    async def ask(url: str, event: PoolCreated) -> _Answer:
        async with gate:
            return await _ask(url, contracts, event, is_devnet=is_devnet)

    return await asyncio.gather(*(ask(url, event) for url, event in zip(urls, created, strict=True)))


async def _ask(url: str, contracts: Contracts, event: PoolCreated, *, is_devnet: bool) -> _Answer:
    if not url:
        return _Answer(PoolService.NOT_ANNOUNCED, "its operator has not announced a URL")
    if not is_public_url(url):
        return _Answer(PoolService.REFUSED, "the announced URL is not valid")
    try:
        async with asyncio.timeout(ASK_SECONDS):
            if not is_devnet:
                await _require_public_host(url)
            async with CoordinatorClient(url, None, chain_id=0, timeout_seconds=ASK_SECONDS) as client:
                view = await client.get_pool()
                require_same_contracts(view, contracts.deployment)
                if (view.pool, view.operator, view.params_hash) != (event.pool, event.operator, event.params_hash):
                    return _Answer(PoolService.OTHER, f"it describes pool {view.pool} of {view.operator}")
                return _Answer(PoolService.SERVED, status=await client.get_status())
    except TimeoutError:
        return _Answer(PoolService.SILENT, f"it has not answered within {ASK_SECONDS:.0f} s")
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
    history: History, event: PoolCreated, state: PoolState, url: str, answer: _Answer, record: OperatorRecord
) -> ListedPool:
    contracts, pool = history.contracts, event.pool
    terms = contracts.pools.get_terms(pool)
    try:
        params = PoolParams.from_text(event.params, terms.params_hash)
    except ProtocolError:
        params = None
    escrow, owed = contracts.ledger.escrow_of(pool), contracts.ledger.owed_of(pool)
    rewards, fees = _compute_rates(history.list_epochs(pool)[-RATE_EPOCHS:], terms)
    return ListedPool(
        pool=pool,
        operator=event.operator,
        state=state,
        created_at=history.client.get_block(event.block_number).timestamp,
        url=url,
        service=answer.service,
        trouble=answer.trouble,
        terms=terms,
        params=params,
        steps=contracts.policies.steps_of(pool),
        escrow=escrow,
        free_escrow=max(0, escrow - owed),
        spent_per_day=rewards,
        fees_per_day=fees,
        nodes=None if answer.status is None else len(answer.status.nodes),
        record=record,
    )


def _compute_rates(epochs: Sequence[EpochPosted], terms: PoolTerms) -> tuple[float, float]:
    """Return the rewards per day of some epochs, from the first of them to the last, and the fees among them."""
    seconds = epochs[-1].record.final_at - epochs[0].record.final_at if epochs else 0
    if seconds <= 0:
        return 0.0, 0.0
    rewards = sum(posted.record.reward for posted in epochs[1:])
    fees = sum(terms.verdict_fees.compute_total(posted.header.verdicts) for posted in epochs[1:])
    return DAY_SECONDS * rewards / seconds, DAY_SECONDS * fees / seconds
