"""The worker's cycles against an in-memory coordinator: one honest run, and one for each kind of interruption."""

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from covey.environments.base import Reply
from covey.errors import OperatorError, ProtocolError, TransientError
from covey.protocol import eip712
from covey.runtime.cycle import CycleResult
from tests.fakes.coordinator import FakeCoordinator
from tests.fakes.cycles import HANG_S, Counting, fail_at
from tests.fakes.grading import grade_here
from tests.fakes.pool import make_hash
from tests.fakes.tools import make_task
from tests.fakes.turn import take_turn
from worker import loop
from worker.context import Context
from worker.engine_health import EngineHealth
from worker.leases import LeaseQueue

pytestmark = pytest.mark.unit
Start = Callable[..., Context]


async def test_turn__no_task__is_idle(start: Start, coordinator: FakeCoordinator):
    assert await take_turn(start()) is CycleResult.IDLE
    assert coordinator.sent == []


async def test_turn__stop_signal_while_it_waits__is_idle_at_once(start: Start):
    ctx = start()
    ctx.stop.set()
    assert await take_turn(ctx) is CycleResult.IDLE


async def test_turn__task__is_rolled_out_signed_submitted_and_closed(start: Start, coordinator: FakeCoordinator):
    ctx = start()
    coordinator.orders.append(make_task())
    assert await take_turn(ctx) is CycleResult.DONE
    ((receipt, signature, file),) = coordinator.sent
    eip712.require_signer(receipt, ctx.network.receipt_domain, signature, ctx.network.wallet.address)
    assert (receipt.task, receipt.lease, receipt.contributor) == (7, 9, ctx.contributor)
    assert len(file) > 100
    assert list(ctx.submissions.list()) == []


async def test_turn__crash_between_signing_and_sending__sends_the_same_bytes(
    start: Start, coordinator: FakeCoordinator
):
    coordinator.orders.append(make_task())
    coordinator.fail = fail_at("before", TransientError("coordinator_unreachable", "gone"))
    with pytest.raises(TransientError):
        await take_turn(start())
    coordinator.signed_at += 30  # a long night
    later = start(clock=lambda: 90_000.0)
    assert await take_turn(later) is CycleResult.IDLE
    first, second = coordinator.sent
    assert first == second, "receipt, signature and file are unchanged, so this is not an equivocation"
    assert list(later.submissions.list()) == []


async def test_turn__answer_lost__is_asked_for_again_and_gets_the_old_promise(
    start: Start, coordinator: FakeCoordinator
):
    coordinator.orders.append(make_task())
    coordinator.fail = fail_at("after", TransientError("coordinator_unreachable", "gone"), times=3)
    for _ in range(3):
        with pytest.raises(TransientError):
            await take_turn(start())
    coordinator.signed_at += 30
    assert await take_turn(start()) is CycleResult.IDLE
    assert len(set(coordinator.sent)) == 1
    assert len(coordinator.sent) == 4
    assert len(coordinator.answers) == 1


async def test_turn__lease_assigned_twice__signs_nothing_more(start: Start, coordinator: FakeCoordinator):
    """A second receipt for a lease with another file would be equivocation, even if the coordinator caused it."""
    coordinator.orders.extend([make_task(), make_task()])
    assert await take_turn(start()) is CycleResult.DONE
    assert await take_turn(start()) is CycleResult.RETRY
    assert len(coordinator.sent) == 1


async def test_turn__unsent_submission__is_sent_before_a_new_task_is_claimed(
    start: Start, coordinator: FakeCoordinator
):
    coordinator.orders.extend([make_task(), make_task(task=8, lease=10)])
    coordinator.fail = fail_at("before", TransientError("coordinator_unreachable", "gone"))
    with pytest.raises(TransientError):
        await take_turn(start())
    assert await take_turn(start()) is CycleResult.DONE
    assert [receipt.lease for receipt, _, _ in coordinator.sent] == [9, 9, 10]


async def test_turn__final_refusal__drops_the_submission_and_the_worker_continues(
    start: Start, coordinator: FakeCoordinator
):
    ctx = start()
    coordinator.orders.extend([make_task(), make_task(task=8, lease=10)])
    coordinator.fail = fail_at("before", ProtocolError("lease_expired", "late", status=409))
    assert await take_turn(ctx) is CycleResult.DONE
    assert list(ctx.submissions.list()) == []
    assert await take_turn(ctx) is CycleResult.DONE
    assert list(coordinator.answers) == [(8, 10)]


@pytest.mark.parametrize("signed_at", [1000 - 24, 1000 + 3601])
async def test_turn__countersignature_with_an_unfair_date__is_not_accepted(
    start: Start, coordinator: FakeCoordinator, signed_at: int
):
    """The pool draws 24 s after the signature, so a coordinator that dates it 24 s back would know the draw."""
    ctx = start()
    coordinator.orders.append(make_task())
    coordinator.signed_at = signed_at
    await take_turn(ctx)
    assert list(ctx.submissions._root.joinpath("sent").iterdir()) == [], "a promise with such a date must not be kept"
    assert list(ctx.submissions.list()) == []


async def test_turn__manifest_that_is_not_the_chains__generates_nothing(start: Start, coordinator: FakeCoordinator):
    ctx = start()
    coordinator.orders.append(make_task(record_hash=make_hash("forged")))
    with pytest.raises(ProtocolError) as caught:
        await take_turn(ctx)
    assert caught.value.code == "wrong_record"
    assert coordinator.sent == []


async def test_load_policy__another_version__is_fetched_and_loaded_once(start: Start, engine):
    ctx, loaded = start(), []

    class Recording:
        load_pause = 0.0
        policy_version, tokenizer, end_tokens = 0, None, frozenset({1})

        def load_policy(self, folder, version: int) -> None:
            loaded.append(version)
            self.policy_version = version

    ctx = start(engine=Recording())
    for version in (0, 1, 1):
        await loop.load_policy(ctx, version)
    assert loaded == [1]


async def test_load_policy__other_end_tokens_than_the_pool_s__is_refused_for_good(start: Start):
    class Recording:
        load_pause = 0.0
        policy_version, tokenizer, end_tokens = None, None, frozenset({1})

        def load_policy(self, folder, version: int) -> None:
            self.policy_version = version

    ctx = start(engine=Recording())
    model = ctx.network.params.model.model_copy(update={"end_tokens": (0, 1)})
    ctx.loader._params = model
    with pytest.raises(ProtocolError, match=r"policy_mismatch: .* are \[1\], but the pool requires \[0, 1\]"):
        await loop.load_policy(ctx, 0)
    assert (ctx.loader.refused, ctx.loader.folder) == ({0}, None)


async def test_load_policy__chain_lags_once__is_loaded_the_next_time(start: Start, engine, monkeypatch):
    ctx = start()
    require = ctx.network.policies.require

    async def lag(*_: object, **__: object) -> None:
        raise ProtocolError("unknown_policy", "policy 0 has not been published on chain")

    monkeypatch.setattr(ctx.network.policies, "require", lag)
    with pytest.raises(ProtocolError, match="unknown_policy"):
        await loop.load_policy(ctx, 0)
    assert ctx.loader.refused == set()
    monkeypatch.setattr(ctx.network.policies, "require", require)
    await loop.load_policy(ctx, 0)
    assert engine.policy_version == 0


async def test_load_policy__another_policy_of_the_same_version__is_loaded(start: Start, tmp_path):
    """A reorganisation may replace a policy, and work of the replaced one would look like fraud."""
    loaded, folders = [], [tmp_path / "first", tmp_path / "first", tmp_path / "second"]

    class Recording:
        load_pause = 0.0
        policy_version, tokenizer, end_tokens = None, None, frozenset({1})

        def load_policy(self, folder, version: int) -> None:
            loaded.append(folder.name)
            self.policy_version = version

    ctx = start(engine=Recording())

    async def require(version: int, *_: object, **__: object):
        return folders.pop(0)

    ctx.network.policies.require = require
    for _ in range(3):
        await loop.load_policy(ctx, 0)
    assert loaded == ["first", "second"]


# -- concurrent cycles


async def test_claim__engine_busy__holds_one_lease_ahead_and_asks_for_no_third(
    start: Start, coordinator: FakeCoordinator
):
    ctx = start()
    coordinator.orders.extend([make_task(task=n, lease=n) for n in (1, 2, 3)])
    outcomes = [await loop.claim(ctx) for _ in range(3)]
    assert outcomes == [CycleResult.DONE, CycleResult.DONE, CycleResult.IDLE]
    assert [request["free_slots"] for request in coordinator.claims] == [1, 2]
    assert [request["holding"] for request in coordinator.claims] == [[], [1]]


async def test_load_policy__two_tasks_of_a_new_policy__load_it_once(start: Start):
    loaded = []

    class Slow:
        load_pause = 0.0
        policy_version, tokenizer, end_tokens = None, None, frozenset({1})

        def load_policy(self, folder, version: int) -> None:
            loaded.append(version)
            time.sleep(0.05)  # long enough for the other calls to start meanwhile
            self.policy_version = version

    ctx = start(engine=Slow())
    await asyncio.gather(*(loop.load_policy(ctx, 0) for _ in range(3)))
    assert loaded == [0]


async def test_roll_out__engine_with_another_policy__is_tried_again(start: Start, coordinator: FakeCoordinator, engine):
    ctx = start()
    with pytest.raises(TransientError) as caught:
        loop.roll_out(ctx, make_task(policy_version=1))
    assert caught.value.code == "wrong_policy"


async def test_work__engine_dies__the_same_lease_is_tried_again(start: Start, coordinator: FakeCoordinator, engine):
    ctx = start(engine=Counting(engine, fails=[TransientError("engine_died", "killed")]))
    coordinator.orders.append(make_task())
    await loop.claim(ctx)
    with pytest.raises(TransientError):
        await loop.work(ctx)
    assert coordinator.returned == []
    assert await loop.work(ctx) is CycleResult.DONE
    assert await loop.sign_next(ctx) is CycleResult.DONE
    assert await loop.submit_pending(ctx) is CycleResult.DONE
    assert [receipt.lease for receipt, _, _ in coordinator.sent] == [9]


async def test_work__engine_dies_three_times_over_a_task__ends_the_worker(
    start: Start, coordinator: FakeCoordinator, engine
):
    ctx = start(engine=Counting(engine, fails=[TransientError("engine_died", "killed")] * 3))
    coordinator.orders.append(make_task())
    await loop.claim(ctx)
    for _ in range(2):
        with pytest.raises(TransientError):
            await loop.work(ctx)
    with pytest.raises(OperatorError, match="3 times, most recently on task 7: killed") as caught:
        await loop.work(ctx)
    assert caught.value.code == "engine_died"
    assert ctx.leases.ids == [9]  # `run_stages` returns it when the worker ends


async def test_work__engine_hangs_at_three_consecutive_tasks__ends_the_worker(
    start: Start, coordinator: FakeCoordinator, engine
):
    """Each hang outlasts its lease, so a worker that did not stop would drop one lease after the other."""
    now, hang = [0.0], TransientError("engine_timeout", "no answer")
    leases = LeaseQueue(together=1, ahead=0, lease_seconds=30.0, clock=lambda: now[0])
    fails = [hang, hang, None, hang, hang, hang]
    ctx = start(engine=(counting := Counting(engine)), leases=leases, health=EngineHealth(clock=leases.clock))

    def pass_time() -> None:
        failure = fails.pop(0)
        if failure is not None:
            now[0] += 60.5
            raise failure

    counting.on_batch = pass_time
    outcomes = []
    for n in range(6):
        coordinator.orders.append(make_task(task=n, lease=n + 1))
        await loop.claim(ctx)
        try:
            outcomes.append(await loop.work(ctx))
            await loop.sign_next(ctx)
        except TransientError as error:
            outcomes.append(error.code)
            assert await loop.work(ctx) is CycleResult.IDLE  # its lease was forgotten
        except OperatorError as error:
            outcomes.append(error.message.partition(".")[0])
    hung = "engine_timeout"
    assert outcomes == [
        hung,
        hung,
        CycleResult.DONE,
        hung,
        hung,
        "the engine failed 3 times, most recently on task 5: no answer",
    ]


async def test_sign_next__lease_that_was_signed_meanwhile__is_never_signed_again(
    start: Start, coordinator: FakeCoordinator
):
    ctx = start()
    coordinator.orders.append(make_task())
    await take_turn(ctx)
    ctx.leases.hold(make_task(), seconds=30.0)  # as if assigned again while its submission was being signed
    assert await loop.work(ctx) is CycleResult.DONE
    assert await loop.sign_next(ctx) is CycleResult.DONE
    assert (list(ctx.submissions.list()), ctx.leases.ids, len(coordinator.sent)) == ([], [], 1)


async def test_sign_next__grader_that_refuses__returns_the_lease_and_signs_the_next(
    start: Start, coordinator: FakeCoordinator
):
    refusals = [ProtocolError("malformed_grading", "no")]

    def grade(replies: Sequence[Reply]):
        if refusals:
            raise refusals.pop()
        return grade_here(replies)

    ctx = start(grade=grade)
    coordinator.orders.extend([make_task(task=n, lease=n) for n in (1, 2)])
    for _ in range(2):
        await loop.claim(ctx)
        await loop.work(ctx)
    with pytest.raises(ProtocolError):
        await loop.sign_next(ctx)
    assert coordinator.returned == [(1, 1)]
    assert await loop.sign_next(ctx) is CycleResult.DONE
    assert await loop.submit_pending(ctx) is CycleResult.DONE
    assert [receipt.task for receipt, _, _ in coordinator.sent] == [2]


async def test_send_heartbeat__held_leases__are_counted_with_room_for_one_more(
    start: Start, coordinator: FakeCoordinator
):
    ctx = start()
    coordinator.orders.extend([make_task(task=n, lease=n) for n in (1, 2)])
    await loop.send_heartbeat(ctx)
    for _ in range(2):
        assert await loop.claim(ctx) is CycleResult.DONE
        await loop.send_heartbeat(ctx)
    assert coordinator.heartbeats == [{"free_slots": slots, "cached_version": 0} for slots in (1, 2, 2)]


async def test_another_worker_with_the_key__ends_this_one_with_advice(
    start: Start, coordinator: FakeCoordinator, tmp_path: Path
):
    """A restart in the same home is the same worker; a home on another machine is not."""
    coordinator.orders.append(make_task())
    assert await loop.claim(start()) is CycleResult.DONE
    await loop.send_heartbeat(start())
    (tmp_path / "elsewhere").mkdir()
    other = start(folder=tmp_path / "elsewhere")
    for cycle in (loop.claim, loop.send_heartbeat):
        with pytest.raises(OperatorError, match=r"another_instance: .* was heard .*or create a separate key"):
            await cycle(other)


async def test_claim__engine_without_a_policy__loads_the_newest_before_a_lease_is_asked_for(
    start: Start, coordinator: FakeCoordinator
):
    """Otherwise the start of the engine would use up the first lease's time."""
    loaded: list[tuple[int, int]] = []

    class Starting:
        load_pause = 0.0
        policy_version, tokenizer, end_tokens = None, None, frozenset({1})

        def load_policy(self, folder, version: int) -> None:
            loaded.append((version, len(coordinator.claims)))
            self.policy_version = version

    ctx = start(engine=Starting())
    for _ in range(2):
        assert await loop.claim(ctx) is CycleResult.IDLE
    assert loaded == [(0, 0)]


async def test_claim__stop_signal_while_an_engine_starts__does_not_wait_for_it(
    start: Start, coordinator: FakeCoordinator
):
    is_over, running = threading.Event(), asyncio.get_running_loop()

    class Starting:
        load_pause = 0.0
        policy_version, tokenizer, end_tokens = None, None, frozenset({1})

        def load_policy(self, folder, version: int) -> None:
            running.call_soon_threadsafe(ctx.stop.set)
            assert is_over.wait(2 * HANG_S)

    ctx = start(engine=Starting())
    coordinator.orders.append(make_task())
    try:
        assert await asyncio.wait_for(loop.claim(ctx), HANG_S) is CycleResult.IDLE
        assert coordinator.claims == []
    finally:
        is_over.set()
