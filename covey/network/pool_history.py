"""The events of one pool that a watcher needs, read from the chain once and kept in a file.

`refresh` reads only the blocks after the kept ones. The newest KEPT_BLOCKS are read again each time and never kept,
because a reorganisation may replace them, so nothing has to be rolled back.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from covey.chain import events
from covey.chain.finality import KEPT_BLOCKS
from covey.chain.history import MAX_BLOCKS, Found, History, encode_topic
from covey.chain.json_rpc import ChainClient
from covey.chain.log_ranges import LogRanges
from covey.chain.node_answers import Log, read_logs
from covey.protocol.ids import Address, Hash, PoolId
from covey.protocol.messages import Receipt
from covey.runtime.files import write_atomically

_DAMAGED = (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError)
"""Errors of a file that does not contain what `_Kept.save` writes."""


@dataclass(slots=True)
class _Kept:
    """Logs that are read. Those up to block `until` are in the file, too."""

    until: int
    """Newest block that no reorganisation is expected to replace, and whose logs are read."""
    until_hash: Hash | None = None
    logs: list[Log] = field(default_factory=list)
    newest: list[Log] = field(default_factory=list)
    """Logs after block `until`."""
    head: Hash | None = None
    """Hash of the newest block that was read. None: none in this process."""

    def load(self, file: Path, about: dict[str, object]) -> None:
        """Load a file about the same contracts and pool. Any other one is ignored, and the chain is read again."""
        try:
            values = json.loads(file.read_bytes())
            until, until_hash, logs = int(values["until"]), Hash(values["until_hash"]), read_logs(values["logs"])
        except _DAMAGED:
            return
        if values["about"] == about and until > self.until and logs is not None:
            self.until, self.until_hash, self.logs = until, until_hash, logs

    def save(self, file: Path, about: dict[str, object]) -> None:
        """Write the file."""
        logs = [
            {
                "address": log.address,
                "topics": log.topics,
                "data": "0x" + log.data.hex(),
                "blockNumber": hex(log.block_number),
                "blockHash": log.block_hash,
                "transactionHash": log.transaction_hash,
                "logIndex": hex(log.log_index),
            }
            for log in self.logs
        ]
        values = {"about": about, "until": self.until, "until_hash": self.until_hash, "logs": logs}
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, json.dumps(values).encode())


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolHistory(History):
    """Queries about epochs, cases and replaced validators of one pool. They see the chain of the last `refresh`.

    Example: `PoolHistory(client=client, contracts=contracts, pool=pool, file=Path("watch/events.json"))`.
    """

    pool: PoolId
    file: Path
    """File in which logs are kept. It may be missing or damaged."""
    _kept: _Kept = field(init=False)

    def __post_init__(self) -> None:
        History.__post_init__(self)
        object.__setattr__(self, "_kept", _Kept(self.contracts.deployment.start_block - 1))
        self._kept.load(self.file, self._about)

    def refresh(self) -> bool:
        """Read the blocks that are new, and return whether there are any. It takes one request if there are none.

        Raises TransientError if the node does not respond, or does not have the kept blocks yet.
        """
        client, kept = self.client.stick(), self._kept
        head = client.get_block("latest")
        if head.hash == kept.head:
            return False
        if kept.until_hash is not None and client.get_block(kept.until).hash != kept.until_hash:
            # A deeper reorganisation than is ever expected. The whole chain is read again.
            kept.until, kept.until_hash, kept.logs = self.contracts.deployment.start_block - 1, None, []
        newest: list[Log] = []
        ranges, last = LogRanges(client), kept.until
        while last < head.number:
            first = last + 1
            read = partial(self._read, client, first)
            last, logs = ranges.fit(read, most=min(MAX_BLOCKS, head.number - last))
            settled = min(last, head.number - KEPT_BLOCKS)
            newest += [log for log in logs if log.block_number > settled]
            if settled >= first:
                kept.until_hash = client.get_block(settled).hash
                kept.logs += [log for log in logs if log.block_number <= settled]
                kept.until = settled
                kept.save(self.file, self._about)
        kept.newest, kept.head = newest, head.hash
        return True

    def is_slashed_for(self, receipt: Receipt) -> bool:
        """Return whether the court has slashed for two receipts of this receipt's node, task and lease."""
        court, pool = self.contracts.deployment.slashing_court, encode_topic(self.pool)
        return any(
            (event.node, event.task, event.lease) == (receipt.node, receipt.task, receipt.lease)
            for event in self._walk_back(events.EquivocationSlashed, court, pool)
        )

    def _read(self, client: ChainClient, first: int, blocks: int) -> tuple[int, list[Log]]:
        """Return the last of `blocks` blocks from `first` on, and their logs in the order of the chain."""
        last = first + blocks - 1
        logs = [
            log
            for contract, topics in self._queries
            for log in client.get_logs([contract], first=first, last=last, topics=topics)
        ]
        return last, sorted(logs, key=lambda log: (log.block_number, log.log_index))

    @property
    def _queries(self) -> Sequence[tuple[Address, Sequence[Hash | None]]]:
        deployment, pool = self.contracts.deployment, encode_topic(self.pool)
        return (
            (deployment.epoch_ledger, (events.get_topic(events.EpochPosted), pool)),
            (deployment.pool_registry, (events.get_topic(events.ValidatorReplaced), pool)),
            (deployment.slashing_court, (None, None, pool)),  # The events of cases name the receipt first.
            (deployment.slashing_court, (events.get_topic(events.EquivocationSlashed), pool)),
        )

    @property
    def _about(self) -> dict[str, object]:
        deployment = self.contracts.deployment
        return {
            "pool": self.pool,
            "chain": deployment.chain_id,
            "start": deployment.start_hash,
            "contracts": deployment.get_contracts(),
        }

    def _walk_back(self, kind: type[Found], contract: Address, *indexed: Hash | None) -> Iterator[Found]:
        """Yield the events of one class with these indexed values, newest first, without asking the node."""
        topics = (None if kind is events.Event else events.get_topic(kind), *indexed)
        for log in reversed(self._kept.logs + self._kept.newest):
            is_meant = log.address == contract and len(log.topics) >= len(topics)
            if is_meant and all(topic in (None, found) for topic, found in zip(topics, log.topics, strict=False)):
                event = events.decode(log)
                if isinstance(event, kind):
                    yield event
