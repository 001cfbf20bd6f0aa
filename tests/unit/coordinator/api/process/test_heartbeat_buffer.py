import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from coordinator.api.process import heartbeat_buffer
from coordinator.api.process.heartbeat_buffer import HeartbeatBuffer
from coordinator.domain import stakes
from coordinator.domain.presence import NodeBeat
from coordinator.domain.stakes import Stake
from covey.errors import ProtocolError, TransientError
from covey.protocol.api.worker import TaskOrder
from covey.runtime.prometheus import build_registry
from tests.fakes.pool import INSTANCE, POOL, STAKE_RULE, FakePool, make_address, make_hash

pytestmark = pytest.mark.unit
HANG_S = 60
"""Deadline against hanging, in seconds. Only a wrong implementation reaches it."""


class Calls:
    """A roll call on real rows, and the triggers that it has sent."""

    def __init__(self, pool: FakePool) -> None:
        self.pool, self.triggers = pool, list[str]()
        ctx: Any = SimpleNamespace(
            database=pool.database,
            params=pool.params,
            stake_rule=STAKE_RULE,
            config=SimpleNamespace(pool=POOL),
            jobs=SimpleNamespace(trigger=self.triggers.append),
            clock=lambda: pool.now,
        )
        self.heartbeat_buffer = HeartbeatBuffer(ctx)

    async def beat(self, name: str, **changes: Any) -> TaskOrder | None:
        values = {"node": make_address(name), "instance": INSTANCE, "free_slots": 1, "cached_version": 0} | changes
        return await self.heartbeat_buffer.add(NodeBeat(**values))

    async def claim(self, name: str) -> TaskOrder | None:
        return await self.beat(name, is_claim=True, waiting_until=self.pool.now + 5)


def count_commits(calls: Calls) -> float:
    count = build_registry(*calls.pool.database.writer_meter).get_sample_value("covey_commit_seconds_count")
    assert count is not None
    return count


@pytest.fixture
async def calls(pool: FakePool, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Calls]:
    monkeypatch.setattr(heartbeat_buffer, "WRITE_SECONDS", 0.1)
    pool.register("a", "b")
    with pool.database.write() as rows:
        for name in ("a", "b"):
            stakes.record_stake(rows, make_address(f"{name}'s owner"), Stake(100, 0), block=1)
    calls = Calls(pool)
    running = asyncio.create_task(calls.heartbeat_buffer.run())
    yield calls
    running.cancel()


async def test_hear__first_heartbeat__is_written_and_later_ones_soon(calls: Calls):
    await calls.beat("a")
    assert calls.pool.node("a").seen_at == calls.pool.now
    calls.pool.now += 10
    await calls.beat("a", cached_version=7)
    assert calls.pool.node("a").cached_version == 0, "it is only in memory"
    async with asyncio.timeout(HANG_S):
        while calls.pool.node("a").cached_version == 0:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert (calls.pool.node("a").cached_version, calls.pool.node("a").seen_at) == (7, calls.pool.now)
    assert calls.triggers == []


async def test_hear__claims_without_a_pause__do_not_keep_heartbeats_from_their_rows(calls: Calls):
    await calls.beat("a")
    calls.pool.now += 10
    await calls.beat("a")
    for _ in range(10):
        await calls.claim("b")
        await asyncio.sleep(0.03)
    assert calls.pool.node("a").seen_at == calls.pool.now
    assert calls.triggers == []


async def test_hear__unknown_node__is_refused_alone(calls: Calls):
    found = await asyncio.gather(calls.claim("stranger"), calls.claim("a"), return_exceptions=True)
    assert isinstance(found[0], ProtocolError)
    assert (found[0].code, found[1]) == ("unknown_node", None)


async def test_hear__database_fails__tells_those_that_wait_and_goes_on(calls: Calls, monkeypatch: pytest.MonkeyPatch):
    async def fail(work: Any, **_: Any) -> Any:
        raise TransientError("database_unavailable", "gone")

    with monkeypatch.context() as broken:
        broken.setattr(calls.pool.database, "run", fail)
        with pytest.raises(TransientError):
            await calls.claim("a")
    assert await calls.claim("a") is None


async def test_hear__claim_while_a_task_is_pending__is_one_transaction_and_no_trigger(calls: Calls):
    calls.pool.publish(0)
    before = count_commits(calls)
    order = await calls.claim("a")
    assert order is not None
    assert (order.policy_version, order.groups, order.deadline) == (0, 2, calls.pool.now + 30)
    assert order.record_hash == make_hash("policy 0")
    assert (count_commits(calls) - before, calls.triggers) == (1, [])


async def test_hear__more_claims_than_one_transaction_leases__trigger_the_job(
    calls: Calls, monkeypatch: pytest.MonkeyPatch
):
    """Nodes that wait since earlier claims are leased tasks too, so one claim may fill a transaction."""
    monkeypatch.setattr(heartbeat_buffer, "MAX_AT_ONCE", 2)
    await asyncio.gather(calls.claim("a"), calls.claim("b"))
    assert calls.triggers == [], "nothing was leased"
    calls.pool.publish(0)
    await calls.claim("a")
    assert calls.triggers == ["assign_tasks"]
