"""Buffers heartbeats in memory. Heartbeats are written once a second, and claims as soon as possible.

One transaction records a claim, assigns a pending task and collects its lease. While a transaction is being committed,
further claims gather for the next one. A crash loses a second of heartbeats, which is harmless.
"""

import asyncio
from collections.abc import Sequence

from coordinator.api.process.collecting import build_orders
from coordinator.api.process.request_batches import settle
from coordinator.context import Context
from coordinator.db.repository import Repository
from coordinator.domain.nodes import INSTANCE_SECONDS
from coordinator.domain.presence import NodeBeat
from coordinator.domain.tasks import MAX_AT_ONCE, claim_tasks
from covey.errors import CoveyError, ProtocolError, TransientError
from covey.protocol.api.worker import TaskOrder
from covey.protocol.ids import Address
from covey.runtime.log import get_logger

WRITE_SECONDS = 1.0
"""Maximum time in seconds from a heartbeat until it is written."""
MAX_SIGNS = 1000
"""Maximum number of claims, and of heartbeats, that are written at once."""


class HeartbeatBuffer:
    """The buffer of one process, which `run` writes to the database. Example: `await heartbeat_buffer.add(sign)`."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._heard: dict[Address, tuple[str, float]] = {}
        """Last heard worker process (`instance`) of each node, and the Unix time when it was heard."""
        self._beats: dict[Address, NodeBeat] = {}
        """Newest heartbeat of each node that is not written yet."""
        self._asking: list[tuple[NodeBeat, asyncio.Future[TaskOrder | None]]] = []
        """Claims and heartbeats whose senders wait until they are written."""
        self._is_asked = asyncio.Event()
        self._written_at = float("-inf")
        """Time of the event loop at which heartbeats were last written."""

    async def add(self, sign: NodeBeat) -> TaskOrder | None:
        """Add a heartbeat or claim, and return the task that a claim collects, or None if there is none yet.

        A heartbeat of a known worker is only buffered. Anything else returns once it is written, and raises the errors
        of `presence.record_beats`.
        """
        instance, heard_at = self._heard.get(sign.node, ("", 0.0))
        now = self._ctx.clock()
        if not sign.is_claim and instance == sign.instance and now - heard_at < INSTANCE_SECONDS:
            self._heard[sign.node] = instance, now
            self._beats[sign.node] = sign
            return None
        future: asyncio.Future[TaskOrder | None] = asyncio.get_running_loop().create_future()
        self._asking.append((sign, future))
        self._is_asked.set()
        return await future

    async def run(self) -> None:
        """Write heartbeats and claims until this is canceled."""
        while True:
            try:
                async with asyncio.timeout(WRITE_SECONDS):
                    await self._is_asked.wait()
            except TimeoutError:
                pass
            asking, self._asking = self._asking[:MAX_SIGNS], self._asking[MAX_SIGNS:]
            if not self._asking:
                self._is_asked.clear()
            is_due = (
                asyncio.get_running_loop().time() - self._written_at >= WRITE_SECONDS or len(self._beats) > MAX_SIGNS
            )
            beats = list(self._beats.values())[:MAX_SIGNS] if is_due else []
            if asking or beats:
                await self._write(asking, beats)

    async def _write(
        self, asking: Sequence[tuple[NodeBeat, asyncio.Future[TaskOrder | None]]], beats: Sequence[NodeBeat]
    ) -> None:
        ctx, signs = self._ctx, [*beats, *(sign for sign, _ in asking)]

        def record(repository: Repository) -> tuple[list[TaskOrder | CoveyError | None], int]:
            before = repository.get_fact("lease")
            found = claim_tasks(repository, ctx.params, signs, rule=ctx.stake_rule, now=ctx.clock())
            return build_orders(repository, found), repository.get_fact("lease") - before

        results: Sequence[TaskOrder | CoveyError | None] = ()
        leased = 0
        try:
            results, leased = await ctx.database.run(record, name="hear")
            self._written_at = asyncio.get_running_loop().time() if beats else self._written_at
            for sign, result in zip(signs, results, strict=True):
                self._note(sign, result)
        except TransientError as error:
            get_logger().warning("heartbeats were not written", code=error.code, message=error.message)
            results = [error] * len(signs)  # Heartbeats are written again with the next ones.
        finally:  # No request may wait forever after a defect.
            settle([future for _, future in asking], results[len(beats) :])
        if leased >= MAX_AT_ONCE:  # The transaction reached its limit, so tasks may be left for waiting nodes.
            ctx.jobs.trigger("assign_tasks")

    def _note(self, sign: NodeBeat, result: TaskOrder | CoveyError | None) -> None:
        if self._beats.get(sign.node) is sign:
            del self._beats[sign.node]
        if isinstance(result, ProtocolError) and result.code != "stake_too_low":
            self._heard.pop(sign.node, None)  # The next heartbeat gets the error.
        elif not isinstance(result, CoveyError):
            self._heard[sign.node] = sign.instance, self._ctx.clock()
