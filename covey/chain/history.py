"""What only events tell, read back when it is needed: a pool's parameters, a posted epoch, a case's accused.

Called by the CLI and by whoever claims, answers or judges; the follower is for those who need every event.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from eth_utils.crypto import keccak

from covey.chain import events
from covey.chain.contracts import Contracts
from covey.chain.json_rpc import ChainClient
from covey.chain.structs import Accusation
from covey.errors import TransientError
from covey.protocol.ids import Address, Hash, PoolId, hash_from_bytes

KEPT_EPOCHS = 256
"""Older ones cannot be claimed against: EpochLedger has forgotten them."""
LEAST_RANGE = 1000
"""Blocks that every node takes in one request; the follower asks for that many."""
_POSTED = (
    "EpochPosted(uint256,uint64,(uint256,uint64,bytes32,bytes32,uint64,uint64,bytes32,bytes32),"
    "(bytes32,bytes32,uint64,uint64,uint96,uint96))"
)
_CREATED = "PoolCreated(uint256,address,bytes32,string)"
_PUBLISHED = "PolicyPublished(uint256,uint64,bytes32)"
_OPENED = "CaseOpened(bytes32,uint256,address,address,uint8,uint256,uint256)"


@dataclass(frozen=True, kw_only=True, slots=True)
class History:
    """The events of one deployment.  Example: `History(client=client, contracts=contracts).find_epoch(pool, 3)`."""

    client: ChainClient
    contracts: Contracts

    def find_params(self, pool: PoolId) -> str | None:
        """The text of a pool's parameters, unchecked; None where there is no such pool."""
        found = self._find(self.contracts.deployment.pool_registry, [_topic(_CREATED), _word(pool)])
        return found.params if isinstance(found, events.PoolCreated) else None

    def find_pool(self, operator: Address, params_hash: Hash) -> PoolId | None:
        """The newest pool of an operator with these parameters; None where there is none."""
        topics = [_topic(_CREATED), None, _account(operator)]
        for event in self._walk_back(self.contracts.deployment.pool_registry, topics):
            if isinstance(event, events.PoolCreated) and event.params_hash == params_hash:
                return event.pool
        return None

    def find_epoch(self, pool: PoolId, epoch: int) -> events.EpochPosted | None:
        """The posted epoch, whether or not it stands; None where there is none."""
        topics = [_topic(_POSTED), _word(pool), _word(epoch)]
        found = self._find(self.contracts.deployment.epoch_ledger, topics)
        return found if isinstance(found, events.EpochPosted) else None

    def list_epochs(self, pool: PoolId) -> list[events.EpochPosted]:
        """The posted epochs of a pool, oldest first, whether or not they stand."""
        found = self._list(self.contracts.deployment.epoch_ledger, [_topic(_POSTED), _word(pool)])
        return [event for event in found if isinstance(event, events.EpochPosted)]

    def find_claimable(self, pool: PoolId, *, now: int) -> events.EpochPosted | None:
        """The newest epoch that stands and is final at `now` (Unix seconds, the chain's)."""
        ledger = self.contracts.ledger
        epochs = ledger.epochs_of(pool)
        for epoch in range(epochs - 1, max(-1, epochs - 1 - KEPT_EPOCHS), -1):
            posted = self.find_epoch(pool, epoch)
            if posted is not None and posted.record.final_at <= now and ledger.is_posted(pool, posted.record):
                return posted
        return None

    def list_unfinal(self, pool: PoolId, *, now: int) -> list[events.EpochPosted]:
        """Epochs that stand and are not final at `now`, oldest first."""
        ledger, found = self.contracts.ledger, []
        for epoch in range(ledger.epochs_of(pool) - 1, -1, -1):
            posted = self.find_epoch(pool, epoch)
            if posted is None:
                continue
            if posted.record.final_at <= now:
                break
            if ledger.is_posted(pool, posted.record):
                found.append(posted)
        return found[::-1]

    def find_accusation(self, receipt_hash: Hash) -> Accusation | None:
        """Who is accused in the case of a receipt; None where there is no case."""
        found = self._find(self.contracts.deployment.slashing_court, [_topic(_OPENED), receipt_hash])
        if not isinstance(found, events.CaseOpened):
            return None
        return Accusation(receipt_hash=receipt_hash, pool=found.pool, node=found.node, contributor=found.contributor)

    def list_case_events(self, receipt_hash: Hash) -> list[events.AnyEvent]:
        """What the court did in the case of a receipt, oldest first."""
        return self._list(self.contracts.deployment.slashing_court, [None, receipt_hash])

    def list_nodes(self, pool: PoolId, contributor: Address) -> list[Address]:
        """Nodes that work for a contributor now, in the order of their registration."""
        topics = [None, _word(pool), None, _account(contributor)]
        working: dict[Address, None] = {}
        for event in self._list(self.contracts.deployment.node_registry, topics):
            if isinstance(event, events.NodeRegistered):
                working[event.node] = None
            elif isinstance(event, events.NodeRemoved):
                working.pop(event.node, None)
        return list(working)

    def list_policies(self, pool: PoolId) -> list[events.PolicyPublished]:
        """The published policies of a pool, oldest first."""
        found = self._list(self.contracts.deployment.policy_registry, [_topic(_PUBLISHED), _word(pool)])
        return [event for event in found if isinstance(event, events.PolicyPublished)]

    def _list(self, address: Address, topics: Sequence[Hash | None]) -> list[events.AnyEvent]:
        """Such events, oldest first."""
        return list(self._walk_back(address, topics))[::-1]

    def _find(self, address: Address, topics: Sequence[Hash | None]) -> events.AnyEvent | None:
        """The newest such event; a reorganisation leaves one at most."""
        return next(self._walk_back(address, topics), None)

    def _walk_back(self, address: Address, topics: Sequence[Hash | None]) -> Iterator[events.AnyEvent]:
        """Such events, newest first.

        Nodes limit the blocks of one request, each in its own way: a refused range is halved, down to LEAST_RANGE.
        """
        ranges = [(self.contracts.deployment.start_block, self.client.block_number())]
        while ranges:
            first, last = ranges.pop()
            try:
                logs = self.client.get_logs([address], first=first, last=last, topics=topics)
            except TransientError as error:
                if error.code != "chain_refused" or last - first < LEAST_RANGE:
                    raise
                middle = (first + last) // 2
                ranges += [(first, middle), (middle + 1, last)]
                continue
            yield from (event for event in map(events.decode, reversed(logs)) if event is not None)


def _topic(signature: str) -> Hash:
    return hash_from_bytes(keccak(text=signature))


def _word(number: int) -> Hash:
    return hash_from_bytes(number.to_bytes(32))


def _account(address: Address) -> Hash:
    return hash_from_bytes(bytes(12) + bytes.fromhex(address[2:]))
