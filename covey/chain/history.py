"""Queries of past events, for data that only events contain. Examples are a pool's parameters and the accused of a
case.

Each query reads only the events that it needs. A role that needs every event uses the follower instead.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from covey.chain import events
from covey.chain.contracts import Contracts
from covey.chain.json_rpc import ChainClient, Topic
from covey.chain.log_ranges import LogRanges
from covey.chain.node_answers import Log
from covey.chain.structs import Accusation
from covey.protocol.ids import Address, Hash, PoolId, hash_from_bytes
from covey.protocol.prices import EpochPrices
from covey.protocol.promises import KEPT_EPOCHS

MAX_BLOCKS = 100_000
"""Largest number of blocks of one request. Nodes take many seconds for more, and the answer can be too large."""
Found = TypeVar("Found", bound=events.Event)


@dataclass(frozen=True, kw_only=True, slots=True)
class Listing:
    """What events say about a pool. Nothing of it is checked."""

    created: events.PoolCreated
    url: str
    """Newest announced URL. Empty if there is none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class History:
    """Queries of one deployment's events.

    Example: `History(client=client, contracts=contracts).find_epoch(pool, 3)`.
    """

    client: ChainClient
    contracts: Contracts
    _ranges: LogRanges = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_ranges", LogRanges(self.client))

    def find_params(self, pool: PoolId) -> str | None:
        """Return the unchecked text of a pool's parameters. None if the pool does not exist."""
        event = self._find(events.PoolCreated, self.contracts.deployment.pool_registry, encode_topic(pool))
        return None if event is None else event.params

    def find_pool(self, operator: Address, params_hash: Hash) -> PoolId | None:
        """Return an operator's newest pool with these parameters. None if there is none."""
        registry = self.contracts.deployment.pool_registry
        created = self._walk_back(events.PoolCreated, registry, None, _account(operator))
        return next((event.pool for event in created if event.params_hash == params_hash), None)

    def list_pools_of(self, operator: Address) -> list[PoolId]:
        """Return the pools that an account has created, oldest first."""
        registry = self.contracts.deployment.pool_registry
        return [event.pool for event in self._list(events.PoolCreated, registry, None, _account(operator))]

    def find_listings(self, pools: Sequence[PoolId], *, is_over: Callable[[], bool]) -> dict[PoolId, Listing]:
        """Return creation and newest announced URL of pools. A pool that does not exist has no entry.

        A pool that is not found before `is_over` returns True has none either.
        """
        registry = self.contracts.deployment.pool_registry
        kinds = [events.get_topic(events.PoolCreated), events.get_topic(events.PoolAnnounced)]
        topics = [kinds, [encode_topic(pool) for pool in pools]]
        urls, found = dict[PoolId, str](), dict[PoolId, Listing]()
        for event in self._walk_logs(registry, topics, is_over=is_over) if pools else ():
            if isinstance(event, events.PoolAnnounced):
                urls.setdefault(event.pool, event.url)
            elif isinstance(event, events.PoolCreated):  # Nothing is announced before it.
                found[event.pool] = Listing(created=event, url=urls.get(event.pool, ""))
            if len(found) == len(pools):
                break
        return found

    def count_nodes(
        self, pools: Sequence[PoolId], *, first: int, is_over: Callable[[], bool]
    ) -> dict[PoolId, int] | None:
        """Return how many nodes each pool has. `first` is a block before their registration.

        Returns None if `is_over` returns True before all are counted.
        """
        counts = dict.fromkeys(pools, 0)
        topics = [None, [encode_topic(pool) for pool in pools]]
        for event in self._walk_logs(
            self.contracts.deployment.node_registry, topics, first_block=first, is_over=is_over
        ):
            if isinstance(event, events.NodeRegistered):
                counts[event.pool] += 1
            elif isinstance(event, events.NodeRemoved):
                counts[event.pool] -= 1
        return None if is_over() else counts

    def list_newest_epochs(
        self, counts: Mapping[PoolId, int], *, first: int, is_over: Callable[[], bool]
    ) -> dict[PoolId, list[events.EpochPosted]]:
        """Return the newest posted epochs of pools, oldest first. `counts` says how many of each pool, which has them.

        `first` is a block before the first of them. It stops early once `is_over` returns True.
        """
        found: dict[PoolId, list[events.EpochPosted]] = {pool: [] for pool, count in counts.items() if count}
        topics = [[events.get_topic(events.EpochPosted)], [encode_topic(pool) for pool in found]]
        missing = sum(counts.values())
        ledger = self.contracts.deployment.epoch_ledger
        for event in self._walk_logs(ledger, topics, first_block=first, is_over=is_over) if missing else ():
            if isinstance(event, events.EpochPosted) and len(found[event.pool]) < counts[event.pool]:
                found[event.pool].append(event)
                missing -= 1
            if not missing:
                break
        return {pool: epochs[::-1] for pool, epochs in found.items()}

    def find_announcement(self, pool: PoolId) -> str:
        """Return the newest announced URL of a pool, unchecked. Empty if there is none."""
        registry = self.contracts.deployment.pool_registry
        newest = next(self._walk_back(events.PoolAnnounced, registry, encode_topic(pool)), None)
        return "" if newest is None else newest.url

    def find_epoch(self, pool: PoolId, epoch: int) -> events.EpochPosted | None:
        """Return a posted epoch, even if it is disabled. None if it was not posted."""
        ledger = self.contracts.deployment.epoch_ledger
        return self._find(events.EpochPosted, ledger, encode_topic(pool), encode_topic(epoch))

    def list_epochs(self, pool: PoolId) -> list[events.EpochPosted]:
        """Return the posted epochs of a pool, including disabled ones, oldest first."""
        return self._list(events.EpochPosted, self.contracts.deployment.epoch_ledger, encode_topic(pool))

    def read_prices(self, pool: PoolId, epochs: Sequence[events.EpochPosted], *, now: int) -> EpochPrices:
        """Return the prices of a pool's epochs. `epochs` are all that were posted, and `now` is the chain's time."""
        terms = self.contracts.pools.get_terms(pool)
        windows = terms.challenge_window + terms.veto_window
        return EpochPrices(
            prices=self.contracts.pools.get_prices(pool),
            posted_at={event.epoch: event.record.final_at - windows for event in epochs},
            now=now,
        )

    def list_validators(self, pool: PoolId) -> set[Address]:
        """Return the validators of a pool, and those that were replaced."""
        replaced = self._list(events.ValidatorReplaced, self.contracts.deployment.pool_registry, encode_topic(pool))
        return {*self.contracts.pools.get_validators(pool), *(event.previous for event in replaced)}

    def find_claimable(self, pool: PoolId, *, now: int) -> events.EpochPosted | None:
        """Return the newest epoch that is not disabled and is final at `now`. None if there is none.

        `now` is the Unix time of the chain's clock in seconds.
        """
        ledger = self.contracts.ledger
        epochs = ledger.epochs_of(pool)
        for epoch in range(epochs - 1, max(-1, epochs - 1 - KEPT_EPOCHS), -1):
            posted = self.find_epoch(pool, epoch)
            if posted is not None and posted.record.final_at <= now and ledger.is_posted(pool, posted.record):
                return posted
        return None

    def list_unfinal(self, pool: PoolId, *, now: int) -> list[events.EpochPosted]:
        """Return the epochs that are neither disabled nor final at `now`, oldest first."""
        ledger, unfinal = self.contracts.ledger, []
        for epoch in range(ledger.epochs_of(pool) - 1, -1, -1):
            posted = self.find_epoch(pool, epoch)
            if posted is None:
                continue
            if posted.record.final_at <= now:
                break
            if ledger.is_posted(pool, posted.record):
                unfinal.append(posted)
        return unfinal[::-1]

    def find_accusation(self, receipt_hash: Hash) -> Accusation | None:
        """Return the accusation of the case about a receipt. None if there is no case."""
        opened = self._find(events.CaseOpened, self.contracts.deployment.slashing_court, receipt_hash)
        return None if opened is None else _read_accusation(opened)

    def list_accusations(self, pool: PoolId) -> list[Accusation]:
        """Return the accusations of all cases of a pool, oldest first."""
        opened = self._list(events.CaseOpened, self.contracts.deployment.slashing_court, None, encode_topic(pool))
        return [_read_accusation(event) for event in opened]

    def list_case_events(self, receipt_hash: Hash) -> list[events.Event]:
        """Return the court's events of the case about a receipt, oldest first."""
        return self._list(events.Event, self.contracts.deployment.slashing_court, receipt_hash)

    def list_nodes(self, pool: PoolId, contributor: Address) -> list[Address]:
        """Return a contributor's current nodes in the order of their registration."""
        registry = self.contracts.deployment.node_registry
        working: dict[Address, None] = {}
        for event in self._list(events.Event, registry, encode_topic(pool), None, _account(contributor)):
            if isinstance(event, events.NodeRegistered):
                working[event.node] = None
            elif isinstance(event, events.NodeRemoved):
                working.pop(event.node, None)
        return list(working)

    def list_cases(self) -> list[events.CaseOpened]:
        """Return the cases of all pools, oldest first."""
        return self._list(events.CaseOpened, self.contracts.deployment.slashing_court)

    def list_all(self) -> list[events.Event]:
        """Return all events of pools, nodes, stakes, epochs and cases, in the order of the chain."""
        deployment = self.contracts.deployment
        contracts = (
            deployment.pool_registry,
            deployment.node_registry,
            deployment.stake_manager,
            deployment.epoch_ledger,
            deployment.slashing_court,
        )
        found = [event for contract in contracts for event in self._list(events.Event, contract)]
        return sorted(found, key=lambda event: (event.block_number, event.log_index))

    def list_disabled(self) -> list[events.EpochDisabled]:
        """Return the disabled epochs of all pools, oldest first."""
        return self._list(events.EpochDisabled, self.contracts.deployment.epoch_ledger)

    def list_policies(self, pool: PoolId) -> list[events.PolicyPublished]:
        """Return the published policies of a pool, oldest first."""
        return self._list(events.PolicyPublished, self.contracts.deployment.policy_registry, encode_topic(pool))

    def _list(self, kind: type[Found], contract: Address, *indexed: Hash | None) -> list[Found]:
        """Return the events of one class with these indexed values, oldest first."""
        return list(self._walk_back(kind, contract, *indexed))[::-1]

    def _find(self, kind: type[Found], contract: Address, *indexed: Hash | None) -> Found | None:
        """Return the newest event of one class with these indexed values. None if there is none.

        Use it only for events that occur at most once, even across a reorganisation.
        """
        return next(self._walk_back(kind, contract, *indexed), None)

    def _walk_back(self, kind: type[Found], contract: Address, *indexed: Hash | None) -> Iterator[Found]:
        """Yield the events of one class with these indexed values, newest first. `events.Event` selects all classes."""
        topics = [None if kind is events.Event else events.get_topic(kind), *indexed]
        yield from (event for event in self._walk_logs(contract, topics) if isinstance(event, kind))

    def _walk_logs(
        self,
        contract: Address,
        topics: Sequence[Topic],
        *,
        first_block: int = 0,
        is_over: Callable[[], bool] = lambda: False,
    ) -> Iterator[events.Event]:
        """Yield the events with these topics from `first_block` on, newest first, until `is_over` returns True.

        It reads as many blocks at a time as the node accepts, and at most MAX_BLOCKS.
        """
        start, last = max(first_block, self.contracts.deployment.start_block), self.client.block_number()

        def read(blocks: int) -> tuple[int, list[Log]]:
            first = max(start, last - blocks + 1)
            return first, self.client.get_logs([contract], first=first, last=last, topics=topics)

        while last >= start and not is_over():
            first, logs = self._ranges.fit(read, most=min(MAX_BLOCKS, last - start + 1))
            yield from (event for event in map(events.decode, reversed(logs)) if event is not None)
            last = first - 1


def _read_accusation(opened: events.CaseOpened) -> Accusation:
    return Accusation(
        receipt_hash=opened.receipt_hash, pool=opened.pool, node=opened.node, contributor=opened.contributor
    )


def encode_topic(number: int) -> Hash:
    """Return an indexed number of an event as the topic that a node selects by."""
    return hash_from_bytes(number.to_bytes(32))


def _account(address: Address) -> Hash:
    return hash_from_bytes(bytes(12) + bytes.fromhex(address[2:]))
