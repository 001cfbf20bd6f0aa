"""Streams of events: one computation for all viewers, nothing left behind by those who leave."""

import asyncio
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any, cast

import pytest

from coordinator.api.process.changes import Signal
from coordinator.pages import event_streams
from coordinator.pages.event_streams import Events
from covey.errors import ProtocolError

pytestmark = pytest.mark.unit


class Page:
    """Counts how often it is read."""

    def __init__(self) -> None:
        self.reads = 0

    async def read(self) -> bytes:
        self.reads += 1
        return b'{"n":%d}' % self.reads


def make_events(stop: asyncio.Event) -> tuple[Events, Signal, Page]:
    page, changes = Page(), SimpleNamespace(signal=Signal())
    return Events(cast(Any, changes), cast(Any, page), stop), changes.signal, page


async def test_stream__two_viewers_and_one_change__get_the_same_computation(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(event_streams, "LEAST_SECONDS", 0.0)
    shown, signal, page = make_events(asyncio.Event())
    streams = [shown.stream() for _ in range(2)]
    with shown.enter("10.0.0.0"), shown.enter("10.0.0.1"):
        waiting = [asyncio.ensure_future(anext(stream)) for stream in streams]
        await asyncio.sleep(0)
        running = asyncio.create_task(shown.run())
        first = await asyncio.gather(*waiting)
        assert ([event.raw_data for event in first], page.reads, shown.count) == (['{"n":1}'] * 2, 1, 2)
        later = [asyncio.ensure_future(anext(stream)) for stream in streams]
        await asyncio.sleep(0)
        signal.send()
        assert [event.raw_data for event in await asyncio.gather(*later)] == ['{"n":2}'] * 2
        for stream in streams:
            await stream.aclose()
    assert shown.count == 0
    running.cancel()


async def test_stream__process_is_to_end__ends():
    stop = asyncio.Event()
    shown, _, _ = make_events(stop)
    stop.set()
    assert [event async for event in shown.stream()] == []


@pytest.mark.parametrize(
    ("form", "most"),
    [
        ("10.0.0.1", "MAX_STREAMS_OF_ONE"),
        ("2001:db8::%x", "MAX_STREAMS_OF_ONE"),
        ("2001:db8:0:%x::1", "MAX_STREAMS_OF_NETWORK"),
    ],
)
def test_enter__one_address_or_network_with_many_streams__is_refused(form: str, most: str):
    shown, _, _ = make_events(asyncio.Event())
    with ExitStack() as places:
        for i in range(getattr(event_streams, most)):
            places.enter_context(shown.enter(form % i if "%" in form else form))
        places.enter_context(shown.enter("10.0.0.2"))
        with pytest.raises(ProtocolError) as caught, shown.enter(form % 9999 if "%" in form else form):
            pass
        assert (caught.value.code, caught.value.status) == ("too_many_streams", 429)
    with shown.enter("10.0.0.1"):
        assert shown.count == 1
