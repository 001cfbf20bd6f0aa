import asyncio
from collections.abc import AsyncIterator

import pytest

from coordinator.api.process.changes import Changes
from coordinator.api.process.lease_waiters import LeaseWaiters
from coordinator.domain import tasks
from tests.fakes.pool import FakePool, make_address

pytestmark = pytest.mark.unit
HANG_S = 60
"""Deadline against hanging, in seconds. Only a wrong implementation reaches it."""


@pytest.fixture
async def offers(pool: FakePool) -> AsyncIterator[LeaseWaiters]:
    changes = Changes(pool.database, poll_s=0.01)
    offers = LeaseWaiters(changes)
    running = asyncio.create_task(changes.run())
    yield offers
    running.cancel()


def assign(pool: FakePool) -> None:
    with pool.database.write() as rows:
        tasks.assign_tasks(rows, pool.params, now=pool.now)


async def test_wait__lease_is_offered_to_one_of_two__wakes_that_one(offers: LeaseWaiters, pool: FakePool):
    pool.register("a", "b")
    pool.publish(0)
    with offers.open(make_address("a")) as first, offers.open(make_address("b")) as second:
        pool.wait("a")
        assign(pool)
        assert await first.wait(HANG_S)
        assert not await second.wait(0), "one commit is announced to all polls at once"
    assert offers._open == {}


async def test_wait__poll_ends__is_false_at_once(offers: LeaseWaiters):
    with offers.open(make_address("a")) as offer:
        asyncio.get_running_loop().call_soon(offer.end)
        async with asyncio.timeout(HANG_S):
            assert not await offer.wait(10 * HANG_S)
            assert not await offer.wait(10 * HANG_S), "it stays over"


async def test_end__process_ends__ends_all_polls_and_those_to_come(offers: LeaseWaiters):
    with offers.open(make_address("a")) as offer:
        asyncio.get_running_loop().call_soon(offers.end)
        async with asyncio.timeout(HANG_S):
            assert not await offer.wait(10 * HANG_S)
    with offers.open(make_address("a")) as late:
        async with asyncio.timeout(HANG_S):
            assert not await late.wait(10 * HANG_S)
