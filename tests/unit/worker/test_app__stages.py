"""The worker's concurrent cycles: what they overlap, and how they end."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from covey.environments.base import Reply
from covey.errors import OperatorError, TransientError
from covey.runtime.cycle import CycleResult
from tests.fakes.coordinator import FakeCoordinator
from tests.fakes.cycles import HANG_S, Counting, fail_at, wait_until
from tests.fakes.grading import grade_here
from tests.fakes.tools import make_task
from worker import loop
from worker.app import run_stages
from worker.context import Context
from worker.leases import LeaseQueue

pytestmark = pytest.mark.unit
Start = Callable[..., Context]


async def test_run_stages__engine_that_takes_two__works_on_both_at_once(
    start: Start, coordinator: FakeCoordinator, engine
):
    """Each waits for the other in the middle of its generation: one after the other, they would wait for ever."""
    both = threading.Barrier(2, timeout=HANG_S)
    ctx = start(engine=(counting := Counting(engine)), leases=LeaseQueue(together=2, ahead=0, lease_seconds=30.0))
    counting.on_batch = both.wait
    coordinator.orders.extend([make_task(task=n, lease=n) for n in (1, 2)])
    stages = asyncio.create_task(run_stages(ctx))
    await wait_until(lambda: len(coordinator.answers) == 2)
    ctx.stop.set()
    await asyncio.wait_for(stages, HANG_S)
    expected = {n: loop.roll_out(start(), make_task(task=n, lease=n)) for n in (1, 2)}
    assert counting.batches == [len(expected[1])] * 2
    for receipt, _, _ in coordinator.sent:
        assert receipt.units == sum(len(draft.completion.tokens) for draft in expected[receipt.task])


async def test_run_stages__engine_without_memory__returns_all_leases_and_says_why(
    start: Start, coordinator: FakeCoordinator, engine
):
    lost = OperatorError("engine_out_of_memory", "no memory", fix="Lower batch.")
    ctx = start(engine=Counting(engine, fails=[lost] * 2))
    coordinator.orders.extend([make_task(task=n, lease=n) for n in (1, 2)])
    for _ in range(2):
        assert await loop.claim(ctx) is CycleResult.DONE
    with pytest.raises(OperatorError) as caught:
        await asyncio.wait_for(run_stages(ctx), HANG_S)
    assert caught.value.code == "engine_out_of_memory"
    assert sorted(coordinator.returned) == [(1, 1), (2, 2)]
    assert coordinator.sent == []


async def test_run_stages__engine_that_dies_every_time__returns_its_lease_and_says_why(
    start: Start, coordinator: FakeCoordinator, engine
):
    ctx = start(engine=Counting(engine, fails=[TransientError("engine_died", "killed")] * 3))
    coordinator.orders.append(make_task())
    with pytest.raises(OperatorError) as caught:
        await asyncio.wait_for(run_stages(ctx), HANG_S)
    assert (caught.value.code, coordinator.returned, coordinator.sent) == ("engine_died", [(7, 9)], [])


async def test_run_stages__engine_lost_while_a_lease_is_signed__returns_only_the_other(
    start: Start, coordinator: FakeCoordinator, engine, monkeypatch: pytest.MonkeyPatch
):
    """The signing ends last. Its submission is on the disk, and its lease is not returned."""
    signing, ending = threading.Event(), threading.Event()
    ctx, sign_next = start(), loop.sign_next

    def grade(replies: Sequence[Reply]):
        signing.set()
        assert ending.wait(2 * HANG_S)
        return grade_here(replies)

    def lose(*_: object, **__: object) -> None:
        assert signing.wait(HANG_S)
        raise OperatorError("engine_out_of_memory", "no memory", fix="Lower batch.")

    async def end_after_cancellation(ctx: Context) -> CycleResult:
        cycle = asyncio.create_task(sign_next(ctx))
        try:
            return await asyncio.shield(cycle)
        except asyncio.CancelledError:
            cycle.cancel()
            ending.set()
            return await cycle

    monkeypatch.setattr(loop, "sign_next", end_after_cancellation)
    coordinator.orders.extend([make_task(task=n, lease=n) for n in (1, 2)])
    for _ in range(2):
        assert await loop.claim(ctx) is CycleResult.DONE
    assert await loop.work(ctx) is CycleResult.DONE
    lost = Counting(engine)
    lost.on_batch = lose
    with pytest.raises(OperatorError):
        await asyncio.wait_for(run_stages(replace(ctx, engine=lost, grade=grade)), HANG_S)
    assert coordinator.returned == [(2, 2)]
    assert ctx.submissions.list_unsent() == [1]


async def test_run_stages__coordinator_that_does_not_answer__later_tasks_are_still_signed(
    start: Start, coordinator: FakeCoordinator
):
    ctx = start(leases=LeaseQueue(together=2, ahead=1, lease_seconds=30.0, generation_seconds=1.0))
    submit, going = coordinator.submit, asyncio.Event()

    async def hang(*submission: object) -> object:
        await going.wait()
        return await submit(*submission)

    coordinator.submit = hang
    coordinator.orders.extend([make_task(task=n, lease=n) for n in (1, 2)])
    stages = asyncio.create_task(run_stages(ctx))
    await wait_until(lambda: len(ctx.submissions.list_unsent()) == 2)
    assert coordinator.sent == []
    going.set()
    await wait_until(lambda: len(coordinator.sent) == 2)
    ctx.stop.set()
    await asyncio.wait_for(stages, HANG_S)


async def test_run_stages__stop_signal_with_held_leases__submits_all_of_them(
    start: Start, coordinator: FakeCoordinator, engine
):
    ctx = start(engine=(counting := Counting(engine)))
    counting.on_batch = ctx.stop.set  # while the first is generated, the second waits
    coordinator.orders.extend([make_task(task=n, lease=n) for n in (1, 2)])
    for _ in range(2):
        assert await loop.claim(ctx) is CycleResult.DONE
    await asyncio.wait_for(run_stages(ctx), HANG_S)
    assert sorted(receipt.task for receipt, _, _ in coordinator.sent) == [1, 2]
    assert list(ctx.submissions.list()) == []


async def test_run_stages__stop_while_the_coordinator_is_away__ends_and_keeps_the_receipt(
    start: Start, coordinator: FakeCoordinator
):
    ctx = start()
    coordinator.fail = fail_at("before", TransientError("coordinator_unreachable", "gone"), times=100)
    coordinator.orders.append(make_task())
    assert await loop.claim(ctx) is CycleResult.DONE
    ctx.stop.set()
    await asyncio.wait_for(run_stages(ctx), HANG_S)
    assert [submission.receipt.lease for submission in ctx.submissions.list()] == [9]


@pytest.mark.parametrize("together", [1, 2])
async def test_run_stages__stop_while_the_engine_hangs__ends_when_the_lease_expires(
    start: Start, coordinator: FakeCoordinator, engine, together: int
):
    """With room for one task the engine is full, so no `work` cycle is left to notice that the lease expired."""
    closed = threading.Event()

    class Hanging(Counting):
        def close(self) -> None:
            closed.set()

    hanging = Hanging(engine, fails=[TransientError("engine_died", "closed")])
    hanging.on_batch = lambda: closed.wait(2 * HANG_S)
    ctx = start(engine=hanging, leases=LeaseQueue(together=together, ahead=0, lease_seconds=1.0))
    coordinator.orders.append(make_task())
    assert await loop.claim(ctx) is CycleResult.DONE
    ctx.stop.set()
    await asyncio.wait_for(run_stages(ctx), HANG_S)
    assert (coordinator.sent, ctx.leases.ids, ctx.leases.working) == ([], [], [])


async def test_run_stages__stop_while_the_chain_is_away__ends_with_the_lease(
    start: Start, coordinator: FakeCoordinator
):
    ctx = start(leases=LeaseQueue(together=1, ahead=1, lease_seconds=1.0))

    def fail(_: str) -> None:
        raise TransientError("chain_unreachable", "gone")

    ctx.network.chain.get_block = fail
    coordinator.orders.append(make_task())
    assert await loop.claim(ctx) is CycleResult.DONE
    ctx.stop.set()
    await asyncio.wait_for(run_stages(ctx), HANG_S)
    assert (coordinator.sent, ctx.leases.ids) == ([], [])


async def test_run_stages__engine_busy__earlier_work_is_submitted_meanwhile(
    start: Start, coordinator: FakeCoordinator, engine
):
    """The second batch ends only when the first submission has arrived: one after the other, both would hang."""
    sent = threading.Event()
    ctx = start(engine=(counting := Counting(engine)))
    counting.on_batch = lambda: len(counting.batches) < 2 or sent.wait(HANG_S) or pytest.fail("nothing was submitted")
    coordinator.fail = lambda moment: sent.set()
    coordinator.orders.extend([make_task(task=n, lease=n) for n in (1, 2)])
    stages = asyncio.create_task(run_stages(ctx))
    await wait_until(lambda: len(coordinator.answers) == 2)
    ctx.stop.set()
    await asyncio.wait_for(stages, HANG_S)
    assert len(counting.batches) == 2


def publish_another(ctx: Context) -> None:
    """Let the chain name policy 1. Work of policy 0 may still be submitted."""
    ctx.network.contracts.policies.steps_of = lambda pool: 2
    ctx.network.params = ctx.network.params.model_copy(update={"max_staleness": 1})


async def test_run_stages__engine_full__a_new_policy_is_fetched_meanwhile(
    start: Start, coordinator: FakeCoordinator, engine
):
    """The batch ends only when the new policy is fetched: if the next lease fetched it, both would wait for ever."""
    fetched = threading.Event()
    ctx = start(engine=(counting := Counting(engine)), leases=LeaseQueue(together=1, ahead=0, lease_seconds=30.0))
    counting.on_batch = lambda: fetched.wait(HANG_S) or pytest.fail("nothing was fetched")
    coordinator.orders.append(make_task())
    assert await loop.claim(ctx) is CycleResult.DONE
    publish_another(ctx)
    require = ctx.network.policies.require

    async def watch(version: int, *_: object, **__: object) -> Path:
        if version == 1:
            fetched.set()
        return await require(version)

    ctx.network.policies.require = watch
    stages = asyncio.create_task(run_stages(ctx))
    await wait_until(lambda: len(coordinator.answers) == 1)
    ctx.stop.set()
    await asyncio.wait_for(stages, HANG_S)


@pytest.mark.parametrize("in_engine", [0, None])
async def test_run_stages__slow_download_of_a_policy__only_older_leases_are_served_and_a_stop_does_not_wait_for_it(
    start: Start, coordinator: FakeCoordinator, engine, in_engine: int | None
):
    """A lease of the new policy would expire during the download. An engine without a policy loads an older one."""

    class Holding(Counting):
        policy_version = in_engine

    ctx, asked = start(engine=Holding(engine)), list[int]()
    publish_another(ctx)

    require = ctx.network.policies.require

    async def hang(version: int, *_: object, **__: object) -> Path:
        asked.append(version)
        if version == 0:
            return await require(version)
        await asyncio.Event().wait()
        raise AssertionError("nobody sets it")

    ctx.network.policies.require = hang
    coordinator.orders.extend([make_task(), make_task(task=8, lease=10, policy_version=1)])
    stages = asyncio.create_task(run_stages(ctx))
    await wait_until(lambda: len(coordinator.answers) == 1 and 1 in asked)
    await asyncio.sleep(0.2)
    assert [receipt.task for receipt, _, _ in coordinator.sent] == [7]
    assert {claim["cached_version"] for claim in coordinator.claims} == {0}
    ctx.stop.set()
    await asyncio.wait_for(stages, HANG_S)


async def test_run_stages__stop_while_a_leased_policy_is_downloaded__ends_with_the_lease(
    start: Start, coordinator: FakeCoordinator, engine
):
    class Other(Counting):
        policy_version = 1

    ctx = start(engine=Other(engine), leases=LeaseQueue(together=1, ahead=1, lease_seconds=1.0))

    async def hang(version: int, *_: object, **__: object) -> Path:
        await asyncio.Event().wait()
        raise AssertionError("nobody sets it")

    ctx.network.policies.require = hang
    coordinator.orders.append(make_task())
    assert await loop.claim(ctx) is CycleResult.DONE
    stages = asyncio.create_task(run_stages(ctx))
    await wait_until(lambda: ctx.leases.working != [])
    ctx.stop.set()
    await asyncio.wait_for(stages, HANG_S)
    assert (coordinator.sent, ctx.leases.ids) == ([], [])


async def test_run_stages__policy_that_was_fetched__is_reported_at_once_and_its_lease_is_served(
    start: Start, coordinator: FakeCoordinator, engine
):
    ctx = start(engine=Counting(engine))
    ctx.config.heartbeat_seconds = 60.0
    publish_another(ctx)
    stages = asyncio.create_task(run_stages(ctx))
    await wait_until(lambda: {"free_slots": 1, "cached_version": 1} in coordinator.heartbeats)
    coordinator.orders.append(make_task(policy_version=1))
    await wait_until(lambda: [claim for claim in coordinator.claims if claim["cached_version"] == 1] != [])
    await wait_until(lambda: len(coordinator.answers) == 1)
    ctx.stop.set()
    await asyncio.wait_for(stages, HANG_S)
