"""The worker's cycle against a coordinator in memory: once honest, and once for every way to be interrupted."""

from collections.abc import Callable

import pytest

from covey.errors import ProtocolError, TransientError
from covey.protocol import messages
from covey.runtime import Outcome
from tests.fakes.coordinator import FakeCoordinator
from tests.fakes.pool import make_hash
from tests.fakes.tools import MANIFEST, make_task
from worker import loop
from worker.app import Context

pytestmark = pytest.mark.unit
Start = Callable[..., Context]


def fail_at(moment: str, error: Exception, *, times: int = 1) -> Callable[[str], None]:
    left = [times]

    def fail(when: str) -> None:
        if when == moment and left[0]:
            left[0] -= 1
            raise error

    return fail


async def test_cycle__no_task__is_idle(start: Start, coordinator: FakeCoordinator):
    assert await loop.cycle(start()) is Outcome.IDLE
    assert coordinator.sent == []


async def test_cycle__stop_signal_while_it_waits__is_idle_at_once(start: Start):
    ctx = start()
    ctx.stop.set()
    assert await loop.cycle(ctx) is Outcome.IDLE


async def test_cycle__task__is_rolled_out_signed_submitted_and_closed(start: Start, coordinator: FakeCoordinator):
    ctx = start()
    coordinator.orders.append(make_task())
    assert await loop.cycle(ctx) is Outcome.DONE
    ((receipt, signature, file),) = coordinator.sent
    messages.require_signer(receipt, ctx.network.receipt_domain, signature, ctx.network.wallet.address)
    assert (receipt.task, receipt.lease, receipt.contributor) == (7, 9, ctx.contributor)
    assert len(file) > 100
    assert list(ctx.outgoing.list()) == []


async def test_cycle__crash_between_signing_and_sending__sends_the_same_bytes(
    start: Start, coordinator: FakeCoordinator
):
    coordinator.orders.append(make_task())
    coordinator.fail = fail_at("before", TransientError("coordinator_unreachable", "gone"))
    with pytest.raises(TransientError):
        await loop.cycle(start())
    coordinator.block += 30  # a long night
    later = start(clock=lambda: 90_000.0)
    assert await loop.cycle(later) is Outcome.IDLE
    first, second = coordinator.sent
    assert first == second, "receipt, signature and file: unchanged, so it is no equivocation"
    assert list(later.outgoing.list()) == []


async def test_cycle__answer_lost__is_asked_for_again_and_gets_the_old_promise(
    start: Start, coordinator: FakeCoordinator
):
    coordinator.orders.append(make_task())
    coordinator.fail = fail_at("after", TransientError("coordinator_unreachable", "gone"), times=3)
    for _ in range(3):
        with pytest.raises(TransientError):
            await loop.cycle(start())
    coordinator.block += 30
    assert await loop.cycle(start()) is Outcome.IDLE
    assert len(set(coordinator.sent)) == 1
    assert len(coordinator.sent) == 4
    assert len(coordinator.answers) == 1


async def test_cycle__lease_given_twice__signs_nothing_more(start: Start, coordinator: FakeCoordinator):
    """A second receipt for a slot with another file would be equivocation, whoever's fault it was."""
    coordinator.orders.extend([make_task(), make_task()])
    assert await loop.cycle(start()) is Outcome.DONE
    assert await loop.cycle(start()) is Outcome.RETRY
    assert len(coordinator.sent) == 1


async def test_cycle__unsent_parcel__goes_before_a_new_task_is_claimed(start: Start, coordinator: FakeCoordinator):
    coordinator.orders.extend([make_task(), make_task(task=8, lease=10)])
    coordinator.fail = fail_at("before", TransientError("coordinator_unreachable", "gone"))
    with pytest.raises(TransientError):
        await loop.cycle(start())
    assert await loop.cycle(start()) is Outcome.DONE
    assert [receipt.lease for receipt, _, _ in coordinator.sent] == [9, 9, 10]


async def test_cycle__refused_for_good__is_dropped_and_work_goes_on(start: Start, coordinator: FakeCoordinator):
    ctx = start()
    coordinator.orders.extend([make_task(), make_task(task=8, lease=10)])
    coordinator.fail = fail_at("before", ProtocolError("lease_expired", "late", status=409))
    assert await loop.cycle(ctx) is Outcome.DONE
    assert list(ctx.outgoing.list()) == []
    assert await loop.cycle(ctx) is Outcome.DONE
    assert list(coordinator.answers) == [(8, 10)]


async def test_cycle__countersignature_of_a_far_block__is_not_accepted(start: Start, coordinator: FakeCoordinator):
    ctx = start()
    coordinator.orders.append(make_task())
    ctx.network.chain.block_number = lambda: 40
    await loop.cycle(ctx)
    assert list(ctx.outgoing._root.joinpath("sent").iterdir()) == [], "no promise that the chain would hold"
    assert list(ctx.outgoing.list()) == []


async def test_cycle__own_node_a_block_behind__asks_again_and_loses_nothing(start: Start, coordinator: FakeCoordinator):
    ctx = start()
    coordinator.orders.append(make_task())
    ctx.network.chain.block_number = lambda: 49
    with pytest.raises(TransientError) as caught:
        await loop.cycle(ctx)
    assert caught.value.code == "chain_behind"
    ctx.network.chain.block_number = lambda: 50
    await loop.cycle(ctx)
    assert len(list(ctx.outgoing._root.joinpath("sent").iterdir())) == 1
    assert coordinator.sent[0] == coordinator.sent[1]


async def test_cycle__manifest_that_is_not_the_chains__generates_nothing(start: Start, coordinator: FakeCoordinator):
    ctx = start()
    coordinator.orders.append(make_task(manifest_hash=make_hash("forged")))
    with pytest.raises(ProtocolError) as caught:
        await loop.cycle(ctx)
    assert caught.value.code == "wrong_manifest"
    assert coordinator.sent == []


async def test_load_policy__another_version__is_fetched_and_loaded_once(start: Start, engine):
    ctx, loaded = start(), []

    class Recording:
        policy_version = 0

        def load_policy(self, folder, version: int) -> None:
            loaded.append(version)
            self.policy_version = version

    ctx = start(engine=Recording())
    for version in (0, 1, 1):
        await loop.load_policy(ctx, make_task(policy_version=version, manifest_hash=MANIFEST))
    assert loaded == [1]


async def test_send_heartbeat__while_it_works__offers_no_slot(start: Start, coordinator: FakeCoordinator):
    assert await loop.send_heartbeat(start()) is Outcome.IDLE
    assert coordinator.heartbeats == [{"free_slots": 0, "cached_version": 0}]
