"""Merged requests, and remembered misses."""

import asyncio

import pytest

from covey.errors import ProtocolError, TransientError
from covey.shardcast.flights import Flights, Misses

pytestmark = pytest.mark.unit


async def test_run__hundred_callers__one_call():
    flights, calls, gate = Flights(most=1), [], asyncio.Event()

    async def work():
        calls.append(1)
        await gate.wait()
        return len(calls)

    tasks = [asyncio.create_task(flights.run("a", work)) for _ in range(100)]
    await asyncio.sleep(0)
    gate.set()
    assert set(await asyncio.gather(*tasks)) == {1}
    assert await flights.run("a", work) == 2


async def test_run__first_caller_leaves__others_get_the_result():
    flights, gate = Flights(most=1), asyncio.Event()

    async def work():
        await gate.wait()
        return 7

    first, second = (asyncio.create_task(flights.run("a", work)) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    gate.set()
    assert await second == 7


async def test_run__failure__reaches_all_callers_and_is_not_kept():
    flights, outcomes = Flights(most=1), [TransientError("x", "y"), None]

    async def work():
        if (error := outcomes.pop(0)) is not None:
            raise error
        return "fine"

    results = await asyncio.gather(flights.run("a", work), flights.run("a", work), return_exceptions=True)
    assert [type(result) for result in results] == [TransientError, TransientError]
    assert await flights.run("a", work) == "fine"


async def test_run__too_many_keys__are_refused():
    flights, gate = Flights(most=2), asyncio.Event()
    tasks = [asyncio.create_task(flights.run(key, gate.wait)) for key in "ab"]
    await asyncio.sleep(0)
    with pytest.raises(TransientError, match="busy"):
        await flights.run("c", gate.wait)
    await flights.close()
    assert all(task.cancelled() for task in tasks)


def test_misses__are_remembered_for_a_while():
    misses = Misses(memory_s=3)
    misses.require_promising("a", is_listed=False, now=0)
    misses.add("a", now=0)
    with pytest.raises(ProtocolError, match="not_found"):
        misses.require_promising("a", is_listed=True, now=2.9)
    misses.require_promising("b", is_listed=False, now=2.9)
    misses.require_promising("a", is_listed=False, now=3)


def test_misses__budget__limits_unknown_things_only():
    misses = Misses(rate=1, burst=5)
    for key in range(5):
        misses.require_promising(key, is_listed=False, now=0)
        misses.add(key, now=0)
    with pytest.raises(TransientError, match="busy"):
        misses.require_promising("unknown", is_listed=False, now=0)
    misses.require_promising("listed", is_listed=True, now=0)
    misses.require_promising("unknown", is_listed=False, now=1)


def test_misses__listed_things__leave_the_budget_for_unknown_ones():
    misses = Misses(rate=1, burst=1)
    for key in range(100):
        misses.add(key, now=0, is_listed=True)
    misses.require_promising("unknown", is_listed=False, now=0)
    with pytest.raises(ProtocolError, match="not_found"):
        misses.require_promising(99, is_listed=True, now=0)


def test_misses__memory_is_bounded():
    misses = Misses(entries=2)
    for key in "abc":
        misses.add(key, now=0)
    misses.require_promising("a", is_listed=True, now=0)
    with pytest.raises(ProtocolError):
        misses.require_promising("b", is_listed=True, now=0)
