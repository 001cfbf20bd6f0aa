"""The idle ratio of a role: the share of its time in which no cycle achieved anything."""

import asyncio

import pytest
import structlog

from covey.runtime import cycle
from covey.runtime.cycle import MAX_CODES, CycleMetrics, CycleResult, Pace, report_forever, run_forever

pytestmark = pytest.mark.unit


async def test_run_forever__busy_and_idle_cycles__are_timed_separately(monkeypatch):
    now, stop, metrics = 100.0, asyncio.Event(), CycleMetrics()
    loop = asyncio.get_running_loop()
    script = [(3.0, CycleResult.DONE), (2.0, CycleResult.IDLE), (1.0, CycleResult.DONE), (4.0, CycleResult.RETRY)]

    async def cycle(_):
        nonlocal now
        seconds, outcome = script.pop(0)
        now += seconds
        if not script:
            stop.set()
        return outcome

    monkeypatch.setattr(loop, "time", lambda: now)
    pace = Pace(idle_wait_s=0.0, first_retry_s=0.0)
    await run_forever(cycle, None, stop=stop, pace=pace, metrics=metrics)
    monkeypatch.undo()
    assert (metrics.busy_seconds, metrics.seconds) == (4.0, 10.0)
    assert metrics.idle_ratio == pytest.approx(0.6)


def test_metrics__no_cycle_yet__idle_ratio_is_zero():
    assert CycleMetrics().idle_ratio == 0.0


async def test_report_forever__until_the_end__logs_ratio_and_counts(monkeypatch):
    stop, metrics = asyncio.Event(), CycleMetrics(seconds=8.0, busy_seconds=2.0)
    metrics.counts["done"] = 3

    async def wait(event, seconds):
        assert seconds == 7.0
        metrics.counts["done"] += 1
        return metrics.counts["done"] == 5

    monkeypatch.setattr(cycle, "wait_or_stop", wait)
    with structlog.testing.capture_logs() as lines:
        await report_forever("worker", metrics, stop=stop, every=7.0)
    common = {"event": "cycle statistics", "log_level": "info", "worker/idle_ratio": 0.75}
    assert lines == [common | {"done": 4}, common | {"done": 5}]


def test_count_error__codes_of_strangers__are_few_and_never_odd():
    metrics = CycleMetrics()
    for code in ("late", "late", "no code", "x" * 50, *(f"code_{i}" for i in range(2 * MAX_CODES))):
        metrics.count_error(code)
    assert len(metrics.errors) <= MAX_CODES + 1
    assert (metrics.errors["late"], metrics.errors.total()) == (2, 4 + 2 * MAX_CODES)
    assert all(code.replace("_", "").isalnum() for code in metrics.errors)
