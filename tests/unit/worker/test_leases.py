"""Leases that a worker cannot serve: they are returned or forgotten, and nothing is generated for them."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from covey.errors import ProtocolError, TransientError
from covey.runtime.cycle import CycleResult
from tests.fakes.coordinator import FakeCoordinator
from tests.fakes.cycles import HANG_S, Counting, wait_until
from tests.fakes.tools import make_task
from worker import loop
from worker.context import Context
from worker.leases import KEPT_GONE, LeaseQueue

pytestmark = pytest.mark.unit
Start = Callable[..., Context]


async def test_claim__policy_that_the_engine_refused__asks_for_no_lease_of_it(
    start: Start, coordinator: FakeCoordinator
):
    class Refusing:
        policy_version = 0

        def load_policy(self, folder, version: int) -> None:
            raise ProtocolError("policy_mismatch", "another architecture")

    ctx = start(engine=Refusing())

    async def name_newest(version: int) -> None:
        ctx.network.contracts.policies.steps_of = lambda pool: version + 1
        await loop.fetch(ctx)

    await name_newest(1)
    coordinator.orders.extend([make_task(policy_version=1), make_task(task=8, lease=10, policy_version=1)])
    assert await loop.claim(ctx) is CycleResult.DONE
    with pytest.raises(ProtocolError):
        await loop.work(ctx)
    assert coordinator.returned == [(7, 9)]
    assert await loop.claim(ctx) is CycleResult.IDLE
    await name_newest(2)  # a newer policy may be accepted
    assert await loop.claim(ctx) is CycleResult.DONE
    assert [claim["cached_version"] for claim in coordinator.claims] == [1, 0, 2]


async def test_work__older_policy_that_the_engine_refused__returns_the_lease_without_loading(
    start: Start, coordinator: FakeCoordinator
):
    tried = []

    class Refusing:
        policy_version = 1

        def load_policy(self, folder, version: int) -> None:
            tried.append(version)
            raise ProtocolError("policy_mismatch", "another architecture")

    ctx = start(engine=Refusing())
    ctx.network.contracts.policies.steps_of = lambda pool: 2
    ctx.network.params = ctx.network.params.model_copy(update={"max_staleness": 1})
    ctx.loader.fetched.add(1)
    coordinator.orders.extend([make_task(task=n, lease=n) for n in (1, 2)])
    for _ in range(2):
        assert await loop.claim(ctx) is CycleResult.DONE
        with pytest.raises(ProtocolError, match="policy_mismatch"):
            await loop.work(ctx)
    assert (coordinator.returned, tried) == ([(1, 1), (2, 2)], [0])


async def test_work__policy_that_is_too_stale_to_submit__returns_the_lease(
    start: Start, coordinator: FakeCoordinator, engine
):
    """This happens to a lease that is collected again long after it was assigned."""
    ctx = start()

    coordinator.orders.append(make_task())
    await loop.require_servable(ctx, make_task())
    ctx.network.contracts.policies.steps_of = lambda pool: 3
    assert await loop.claim(ctx) is CycleResult.DONE
    with pytest.raises(ProtocolError, match="stale"):
        await loop.work(ctx)
    assert (coordinator.returned, ctx.leases.ids) == ([(7, 9)], [])


@pytest.mark.parametrize(("now", "batches"), [(1999.0, [8]), (2000.5, [])])
async def test_work__lease_collected_again_after_its_deadline__is_dropped(
    start: Start, coordinator: FakeCoordinator, engine, now: float, batches: list[int]
):
    ctx = start(engine=(counting := Counting(engine)))
    coordinator.orders.append(make_task(deadline=2000.0))
    coordinator.time = now
    assert await loop.claim(ctx) is CycleResult.DONE
    await loop.work(ctx)
    assert counting.batches == batches


async def test_work__engine_that_does_not_start__lease_expires_and_is_forgotten(
    start: Start, coordinator: FakeCoordinator, engine
):
    now = [0.0]
    leases = LeaseQueue(together=1, ahead=1, lease_seconds=30.0, clock=lambda: now[0])
    ctx = start(engine=Counting(engine, fails=[TransientError("engine_died", "killed")]), leases=leases)
    coordinator.orders.append(make_task())
    await loop.claim(ctx)
    with pytest.raises(TransientError):
        await loop.work(ctx)
    now[0] = 30.5
    assert await loop.work(ctx) is CycleResult.IDLE
    assert (leases.ids, coordinator.sent) == ([], [])


async def test_work__policy_that_the_engine_refuses__returns_the_lease(
    start: Start, coordinator: FakeCoordinator, engine
):
    ctx = start(engine=Counting(engine, fails=[ProtocolError("policy_mismatch", "another architecture")]))
    coordinator.orders.append(make_task())
    await loop.claim(ctx)
    with pytest.raises(ProtocolError):
        await loop.work(ctx)
    assert coordinator.returned == [(7, 9)]
    assert ctx.leases.ids == []


async def test_work__more_groups_than_the_pools_tasks_have__returns_the_lease(
    start: Start, coordinator: FakeCoordinator
):
    ctx = start()
    coordinator.orders.append(make_task(groups=ctx.network.params.groups_per_task + 1))
    await loop.claim(ctx)
    with pytest.raises(ProtocolError) as caught:
        await loop.work(ctx)
    assert (caught.value.code, coordinator.returned, ctx.leases.ids) == ("bad_task", [(7, 9)], [])


async def test_claim__chain_without_a_policy__asks_for_nothing(start: Start, coordinator: FakeCoordinator):
    """A lease assigned with the first policy would expire while that is downloaded and the engine starts."""
    ctx = start()
    ctx.loader.fetched.clear()
    ctx.network.contracts.policies.steps_of = lambda pool: 0
    assert await loop.fetch(ctx) is CycleResult.IDLE
    assert await loop.claim(ctx) is CycleResult.IDLE
    assert coordinator.claims == []


async def test_fetch__no_policy_yet__takes_what_is_already_exported(start: Start):
    ctx, has_come = start(), [True, False]
    ctx.network.contracts.policies.steps_of = lambda pool: 0

    async def prefetch() -> bool:
        return has_come.pop(0)

    ctx.network.policies.prefetch = prefetch
    assert await loop.fetch(ctx) is CycleResult.DONE
    assert await loop.fetch(ctx) is CycleResult.IDLE


async def test_claim__lease_that_was_released__is_named_and_not_assigned_again(
    start: Start, coordinator: FakeCoordinator, engine
):
    now = [0.0]
    ctx = start(leases=LeaseQueue(together=1, ahead=1, lease_seconds=30.0, clock=lambda: now[0]))
    coordinator.orders.append(make_task())
    assert await loop.claim(ctx) is CycleResult.DONE
    now[0] = 30.5
    loop.drop_overdue(ctx)
    assert await loop.claim(ctx) is CycleResult.IDLE, "the coordinator still has it"
    assert [claim["holding"] for claim in coordinator.claims] == [[], [9]]


async def test_fetch__restart_while_the_newest_is_slow__continues_with_policies_on_the_disk(
    start: Start, coordinator: FakeCoordinator, engine
):
    ctx = start()
    ctx.loader.fetched.clear()
    ctx.network.contracts.policies.steps_of = lambda pool: 2
    ctx.network.params = ctx.network.params.model_copy(update={"max_staleness": 1})

    async def hang(version: int, *_: object, **__: object) -> None:
        await asyncio.Event().wait()

    ctx.network.policies.require = hang
    coordinator.orders.append(make_task())
    fetching = asyncio.create_task(loop.fetch(ctx))
    await wait_until(lambda: ctx.loader.fetched == {0})
    assert await loop.claim(ctx) is CycleResult.DONE
    ctx.stop.set()
    assert await asyncio.wait_for(fetching, HANG_S) is CycleResult.IDLE


async def test_fetch__policy_with_a_false_manifest__is_not_requested_again(start: Start):
    ctx, asked = start(), list[int]()
    ctx.network.contracts.policies.steps_of = lambda pool: 2

    async def require(version: int, *_: object, **__: object) -> None:
        asked.append(version)
        raise ProtocolError("bad_record", "a file does not have its hash")

    ctx.network.policies.require = require
    with pytest.raises(ProtocolError):
        await loop.fetch(ctx)
    assert await loop.fetch(ctx) is CycleResult.IDLE
    assert (asked, ctx.loader.newest) == ([1], 0)


async def test_fetch__reorganisation_that_removes_a_policy__no_longer_names_it(start: Start):
    ctx = start()
    for steps, newest in ((2, 1), (1, 0), (2, 1)):
        ctx.network.contracts.policies.steps_of = lambda pool, steps=steps: steps
        await loop.fetch(ctx)
        assert ctx.loader.newest == newest


async def test_return_leases__coordinator_that_is_away__the_lease_is_assigned_again_and_returned(
    start: Start, coordinator: FakeCoordinator
):
    """A lease that is not returned would occupy a slot until it expires."""
    ctx, return_task = start(), coordinator.return_task

    async def fail(task: int, lease: int) -> None:
        raise TransientError("coordinator_unreachable", "gone")

    coordinator.orders.append(make_task(groups=ctx.network.params.groups_per_task + 1))
    for answer in (fail, return_task):
        coordinator.return_task = answer
        assert await loop.claim(ctx) is CycleResult.DONE
        with pytest.raises(ProtocolError, match="bad_task"):
            await loop.work(ctx)
    assert coordinator.returned == [(7, 9)]
    assert await loop.claim(ctx) is CycleResult.IDLE


async def test_return_leases__more_leases_than_are_remembered__returns_them_all(
    start: Start, coordinator: FakeCoordinator
):
    ctx, asked = start(), list[int]()

    async def fail(task: int, lease: int) -> None:
        asked.append(lease)
        raise TransientError("coordinator_unreachable", "gone")

    coordinator.return_task = fail
    await loop.return_leases(ctx, [make_task(task=n, lease=n) for n in range(KEPT_GONE + 2)])
    assert asked == list(range(KEPT_GONE + 2))
    assert list(ctx.leases.gone) == []


async def test_claim__engine_that_loads_an_older_policy__does_not_load_the_newest_instead(
    start: Start, coordinator: FakeCoordinator
):
    """The engine has no policy while it loads one in place."""

    class Loading:
        policy_version = None

        def load_policy(self, folder: Path, version: int) -> None:
            raise AssertionError("the engine is busy")

    ctx = start(engine=Loading())
    ctx.leases.hold(make_task(task=1, lease=1), seconds=30.0)
    ctx.leases.take()
    coordinator.orders.append(make_task())
    assert await loop.claim(ctx) is CycleResult.DONE


async def test_work__chain_that_changes_meanwhile__loads_the_policy_that_the_lease_was_checked_against(
    start: Start, coordinator: FakeCoordinator
):
    ctx, asked = start(), list[tuple[object, ...]]()
    require = ctx.network.policies.require

    async def watch(*policy: object, **_: object) -> Path:
        asked.append(policy)
        return await require(0)

    ctx.network.policies.require = watch
    coordinator.orders.append(order := make_task())
    assert await loop.claim(ctx) is CycleResult.DONE
    assert await loop.work(ctx) is CycleResult.DONE
    assert asked == [(order.policy_version, order.record_hash)]


async def test_load_policy__after_a_failure__loads_the_previous_one_again(start: Start, tmp_path: Path):
    """After a failed load the engine may hold parts of both policies, whatever version it reports."""
    folders, loads = [tmp_path / "new", tmp_path / "old"], list[str]()

    class Failing:
        load_pause = 0.0
        policy_version, tokenizer, end_tokens = 0, None, frozenset({1})

        def load_policy(self, folder: Path, version: int) -> None:
            loads.append(folder.name)
            if folder.name == "new":
                raise TransientError("disk_failed", "gone")

    async def require(*_: object, **__: object) -> Path:
        return folders.pop(0)

    ctx = start(engine=Failing())
    ctx.network.policies.require, ctx.loader.folder = require, tmp_path / "old"
    with pytest.raises(TransientError):
        await loop.load_policy(ctx, 0)
    await loop.load_policy(ctx, 0)
    assert loads == ["new", "old"]
