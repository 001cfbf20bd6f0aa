import asyncio
import os
import signal
import subprocess
import sys

import pytest

from covey.errors import OperatorError, ProtocolError, TransientError
from covey.runtime import cycle
from covey.runtime.cycle import (
    CycleMetrics,
    CycleResult,
    Pace,
    keep_trying,
    or_stop,
    run_forever,
    stop_signals,
    wait_or_stop,
)

pytestmark = pytest.mark.unit
HANG_S = 60
"""Deadline against hanging, in seconds. Only a wrong implementation reaches it."""


@pytest.fixture
def waits(monkeypatch):
    """Record the waits of the loop in seconds, without waiting."""
    recorded = []

    async def note(stop, seconds):
        recorded.append(seconds)
        await asyncio.sleep(0)
        return stop.is_set()

    monkeypatch.setattr(cycle, "wait_or_stop", note)
    return recorded


async def play(script, *, pace=None):
    """Run a cycle that returns or raises the items of `script` in turn, then stops. Returns the counts."""
    stop, metrics, left = asyncio.Event(), CycleMetrics(), list(script)

    async def cycle(ctx):
        assert ctx == "context"
        act = left.pop(0)
        if not left:
            stop.set()
        if isinstance(act, Exception):
            raise act
        return act

    await run_forever(cycle, "context", stop=stop, pace=pace, metrics=metrics)
    return metrics.counts | metrics.errors


async def test_run_forever__outcomes__done_goes_on_idle_waits_a_little(waits):
    counts = await play(
        [CycleResult.DONE, CycleResult.IDLE, CycleResult.DONE, CycleResult.IDLE], pace=Pace(idle_wait_s=0.7)
    )
    assert waits == [0.7, 0.7]
    assert counts == {"done": 2, "idle": 2}


async def test_run_forever__failures__back_off_doubles_up_to_its_cap_and_restarts_after_success(waits):
    pace = Pace(first_retry_s=0.1, max_retry_s=1.0, idle_wait_s=9)
    fail = TransientError("chain_unreachable", "x")
    await play([fail] * 6 + [CycleResult.DONE, fail, CycleResult.IDLE, CycleResult.RETRY], pace=pace)
    assert waits == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 0.1, 9, 0.1])


async def test_run_forever__thousands_of_failures__the_cap_holds(waits):
    await play([CycleResult.RETRY] * 2000, pace=Pace(first_retry_s=0.1, max_retry_s=5))
    assert max(waits) == 5
    assert waits[-1] == 5


async def test_run_forever__protocol_error__skips_the_cycle_and_is_counted_by_code(waits):
    counts = await play([ProtocolError("stale", "x"), TransientError("no_relay", "y"), CycleResult.DONE])
    assert counts == {"stale": 1, "no_relay": 1, "retry": 2, "done": 1}
    assert len(waits) == 2


@pytest.mark.parametrize("error", [OperatorError("no_key", "x", fix="y"), ValueError("bug"), KeyError("bug")])
async def test_run_forever__any_other_error__ends_the_process(error):
    with pytest.raises(type(error)):
        await play([CycleResult.DONE, error, CycleResult.DONE])


async def test_run_forever__stop_is_set__no_cycle_begins():
    stop = asyncio.Event()
    stop.set()
    await run_forever(lambda _: pytest.fail("ran"), None, stop=stop)


async def test_run_forever__stop_during_a_wait__ends_at_once():
    stop = asyncio.Event()

    async def cycle(_):
        asyncio.get_running_loop().call_later(0.02, stop.set)
        return CycleResult.IDLE

    async with asyncio.timeout(HANG_S):
        await run_forever(cycle, None, stop=stop, pace=Pace(idle_wait_s=10 * HANG_S))


async def test_run_forever__busy_cycles__other_coroutines_get_their_turn():
    stop, turns = asyncio.Event(), []

    async def cycle(_):
        turns.append("cycle")
        return CycleResult.DONE

    async def other():
        for _ in range(5):
            turns.append("other")
            await asyncio.sleep(0)
        stop.set()

    await asyncio.gather(run_forever(cycle, None, stop=stop), other())
    assert turns.count("cycle") >= 4


async def test_wait_or_stop__returns_whether_stop_was_set():
    stop = asyncio.Event()
    assert await wait_or_stop(stop, 0.01) is False
    stop.set()
    assert await wait_or_stop(stop, 600) is True


async def test_or_stop__not_stopped__returns_the_result_or_raises_the_error():
    stop = asyncio.Event()

    async def answer():
        return 7

    async def fail():
        raise ProtocolError("x", "y")

    assert await or_stop(stop, answer()) == 7
    with pytest.raises(ProtocolError, match="x: y"):
        await or_stop(stop, fail())


async def test_or_stop__stop_comes_first__the_coroutine_is_cancelled_and_cleaned_up():
    stop, ends = asyncio.Event(), []

    async def poll():
        try:
            await asyncio.sleep(600)
        finally:
            ends.append("cleaned")

    asyncio.get_running_loop().call_later(0.01, stop.set)
    assert await or_stop(stop, poll()) is None
    assert ends == ["cleaned"]
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_or_stop__cancelled__leaves_no_task_running():
    stop = asyncio.Event()
    outer = asyncio.create_task(or_stop(stop, asyncio.sleep(600)))
    await asyncio.sleep(0)
    outer.cancel()
    with pytest.raises(asyncio.CancelledError):
        await outer
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_keep_trying__transient_error__repeats_until_it_succeeds(waits):
    attempts = []

    async def attempt():
        attempts.append(1)
        if len(attempts) < 4:
            raise TransientError("chain_unreachable", "x")
        return "joined"

    assert await keep_trying(attempt, asyncio.Event(), pace=Pace(first_retry_s=1, max_retry_s=3)) == "joined"
    assert waits == [1, 2, 3]


@pytest.mark.parametrize("error", [ProtocolError("bad_params", "x"), OperatorError("no_key", "x", fix="y")])
async def test_keep_trying__another_error__is_raised_at_once(waits, error):
    async def attempt():
        raise error

    with pytest.raises(type(error)):
        await keep_trying(attempt, asyncio.Event())
    assert waits == []


async def test_keep_trying__stop_is_set__returns_none():
    stop = asyncio.Event()

    async def attempt():
        stop.set()
        raise TransientError("x", "y")

    assert await keep_trying(attempt, stop, pace=Pace(first_retry_s=600, max_retry_s=600)) is None


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_stop_signals__inside_they_set_stop__outside_the_old_handler_is_restored(number):
    stop, before, said = asyncio.Event(), signal.getsignal(number), []
    with stop_signals(stop, on_stop=lambda: said.append(stop.is_set())):
        assert said == []
        os.kill(os.getpid(), number)
        async with asyncio.timeout(HANG_S):
            await stop.wait()
    assert said == [False]
    assert signal.getsignal(number) == before


def test_stop_signals__second_interrupt__ends_a_process_that_does_not_stop():
    code = (
        "import asyncio, signal\nfrom covey.runtime.cycle import stop_signals\n"
        "async def main():\n    stop = asyncio.Event()\n    with stop_signals(stop):\n"
        "        print('runs', flush=True)\n        await stop.wait()\n        print('drains', flush=True)\n"
        "        await asyncio.sleep(600)\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\nasyncio.run(main())"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process, process.stdout as output:
        for word in ("runs", "drains"):
            assert output.readline().strip() == word
            process.send_signal(signal.SIGINT)
        assert process.wait(HANG_S) == -signal.SIGINT
