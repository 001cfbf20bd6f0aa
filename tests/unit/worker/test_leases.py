"""Leases that a worker cannot serve: they go back or are forgotten, and nothing is generated for them."""

from collections.abc import Callable

import pytest

from covey.errors import ProtocolError, TransientError
from covey.runtime import Outcome
from tests.fakes.coordinator import FakeCoordinator
from tests.fakes.cycles import Counting
from tests.fakes.tools import make_task
from worker import loop
from worker.app import Context
from worker.pipeline import Pipeline

pytestmark = pytest.mark.unit
Start = Callable[..., Context]


async def test_claim__policy_that_the_engine_refused__asks_for_no_lease_of_it(
    start: Start, coordinator: FakeCoordinator
):
    class Refusing:
        policy_version = 0

        def load_policy(self, folder, version: int) -> None:
            raise ProtocolError("policy_mismatch", "another architecture")

    ctx = start(engine=(refusing := Refusing()))

    async def name_newest(version: int) -> None:
        ctx.network.contracts.policies.steps_of = lambda pool: version + 1
        await loop.fetch(ctx)

    await name_newest(1)
    coordinator.orders.extend([make_task(policy_version=1), make_task(task=8, lease=10, policy_version=1)])
    assert await loop.claim(ctx) is Outcome.DONE
    with pytest.raises(ProtocolError):
        await loop.work(ctx)
    assert coordinator.returned == [(7, 9)]
    assert await loop.claim(ctx) is Outcome.IDLE
    refusing.policy_version = None  # its process was started anew
    assert await loop.claim(ctx) is Outcome.RETRY
    refusing.policy_version = 0
    await name_newest(2)  # a newer one may be better
    assert await loop.claim(ctx) is Outcome.DONE
    assert [claim["cached_version"] for claim in coordinator.claims] == [1, 0, 2]


async def test_work__older_policy_that_the_engine_refused__is_given_back_unread(
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
    coordinator.orders.extend([make_task(task=n, lease=n) for n in (1, 2)])
    for _ in range(2):
        assert await loop.claim(ctx) is Outcome.DONE
        with pytest.raises(ProtocolError, match="policy_mismatch"):
            await loop.work(ctx)
    assert (coordinator.returned, tried) == ([(1, 1), (2, 2)], [0])


async def test_work__policy_that_no_origin_holds_any_more__lease_goes_back(
    start: Start, coordinator: FakeCoordinator, engine
):
    """As a lease that was resumed after a long night."""
    ctx = start()

    async def require(version: int) -> None:
        if version == 0:
            raise TransientError("no_relay", "no relay has the manifest of step 0")

    ctx.network.policies.require = require
    coordinator.orders.append(make_task())
    ctx.network.contracts.policies.steps_of = lambda pool: 2  # 0 is the oldest that an origin keeps
    await loop.require_servable(ctx, make_task())
    ctx.network.contracts.policies.steps_of = lambda pool: 3
    assert await loop.claim(ctx) is Outcome.DONE
    with pytest.raises(ProtocolError, match="stale"):
        await loop.work(ctx)
    assert (coordinator.returned, ctx.pipeline.leases) == ([(7, 9)], [])


@pytest.mark.parametrize(("now", "batches"), [(1999.0, [8]), (2000.5, [])])
async def test_work__lease_that_comes_again_after_its_deadline__is_dropped(
    start: Start, coordinator: FakeCoordinator, engine, now: float, batches: list[int]
):
    ctx = start(engine=(counting := Counting(engine)))
    coordinator.orders.append(make_task(deadline=2000.0))
    coordinator.time = now
    assert await loop.claim(ctx) is Outcome.DONE
    await loop.work(ctx)
    assert counting.batches == batches


async def test_work__engine_does_not_come_up__lease_runs_out_and_is_forgotten(
    start: Start, coordinator: FakeCoordinator, engine
):
    now = [0.0]
    pipeline = Pipeline(together=1, ahead=1, lease_seconds=30.0, clock=lambda: now[0])
    ctx = start(engine=Counting(engine, fails=[TransientError("engine_died", "killed")]), pipeline=pipeline)
    coordinator.orders.append(make_task())
    await loop.claim(ctx)
    with pytest.raises(TransientError):
        await loop.work(ctx)
    now[0] = 30.5
    assert await loop.work(ctx) is Outcome.IDLE
    assert (pipeline.leases, coordinator.sent) == ([], [])


async def test_work__policy_that_the_engine_refuses__lease_goes_back(
    start: Start, coordinator: FakeCoordinator, engine
):
    ctx = start(engine=Counting(engine, fails=[ProtocolError("policy_mismatch", "another architecture")]))
    coordinator.orders.append(make_task())
    await loop.claim(ctx)
    with pytest.raises(ProtocolError):
        await loop.work(ctx)
    assert coordinator.returned == [(7, 9)]
    assert ctx.pipeline.leases == []


async def test_work__more_groups_than_the_pools_tasks_have__lease_goes_back(start: Start, coordinator: FakeCoordinator):
    ctx = start()
    coordinator.orders.append(make_task(groups=ctx.network.params.groups_per_task + 1))
    await loop.claim(ctx)
    with pytest.raises(ProtocolError) as caught:
        await loop.work(ctx)
    assert (caught.value.code, coordinator.returned, ctx.pipeline.leases) == ("bad_task", [(7, 9)], [])
