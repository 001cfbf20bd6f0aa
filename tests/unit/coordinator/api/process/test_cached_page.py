"""Many viewers cause one computation, and none waits for a page that costs much."""

import asyncio
import itertools
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from pydantic import BaseModel

from coordinator.api.process import cached_page
from coordinator.api.process.cached_page import CachedPage
from coordinator.db.repository import Repository
from tests.fakes.databases import open_sqlite

pytestmark = pytest.mark.unit
HANG_S = 60
"""Deadline against hanging, in seconds. Only a wrong implementation reaches it."""


class Page(BaseModel):
    value: int
    builds: int


class Clock:
    """The clock of the page. Time passes only while a builder works, and while the page rests."""

    def __init__(self) -> None:
        self.now = 1000.0

    def read(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += max(0.0, seconds)


class Builder:
    """Builds a page, which takes `seconds` of the clock, and only while `may_build` is set."""

    def __init__(self, clock: Clock, *, seconds: float = 0.0) -> None:
        self.clock, self.seconds = clock, seconds
        self.began_at: list[float] = []
        self.may_build = threading.Event()
        self.may_build.set()

    @property
    def builds(self) -> int:
        return len(self.began_at)

    def __call__(self, rows: Repository) -> bytes:
        self.began_at.append(self.clock.now)
        self.may_build.wait(10 * HANG_S)
        self.clock.now += self.seconds
        return Page(value=rows.get_fact("value"), builds=self.builds).model_dump_json().encode()


@pytest.fixture
def database(tmp_path: Path):
    with open_sqlite(tmp_path / "coordinator.sqlite3") as opened:
        yield opened


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(cached_page, "time", SimpleNamespace(monotonic=clock.read, thread_time=clock.read))
    asyncio_of_page = SimpleNamespace(create_task=asyncio.create_task, shield=asyncio.shield, sleep=clock.sleep)
    monkeypatch.setattr(cached_page, "asyncio", asyncio_of_page)
    return clock


def set_value(database, value: int) -> None:
    with database.write() as rows:
        rows.set_fact("value", value)


async def read(page: CachedPage) -> tuple[int, int]:
    shown = Page.model_validate_json(await page.read())
    return shown.value, shown.builds


async def test_read__cheap_page__is_of_this_moment_and_computed_once_for_many_viewers(database, clock):
    page = CachedPage(database, Builder(clock, seconds=0.01))
    assert set(await asyncio.gather(*(read(page) for _ in range(50)))) == {(0, 1)}
    assert await read(page) == (0, 1), "nothing was committed"
    set_value(database, 7)
    assert await read(page) == (7, 2)


async def test_read__cheap_page_after_each_commit__is_not_computed_all_the_time(database, clock):
    builder = Builder(clock, seconds=0.01)
    page = CachedPage(database, builder)
    for value in range(1, 11):
        set_value(database, value)
        assert await read(page) == (value, value), "it is of this moment nevertheless"
    pauses = [later - earlier for earlier, later in itertools.pairwise(builder.began_at)]
    assert pauses == pytest.approx([0.05] * 9), "one takes 0.01 s, and the next one begins 0.04 s later"


async def test_read__dear_page__shows_the_last_one_and_computes_the_next_meanwhile(database, clock):
    builder = Builder(clock, seconds=0.1)
    page = CachedPage(database, builder)
    await page.prepare()
    assert await read(page) == (0, 2), "the first computation says nothing about the cost of the next ones"
    set_value(database, 7)
    builder.may_build.clear()
    clock.now += 1.9
    assert (await read(page), builder.builds) == ((0, 2), 2), "the next one begins 20 times 0.1 s later"
    clock.now += 0.2
    try:
        async with asyncio.timeout(HANG_S):
            assert await read(page) == (0, 2), "the viewer does not wait for the page that is being computed"
            builder.may_build.set()
            while (shown := await read(page)) == (0, 2):  # noqa: ASYNC110
                await asyncio.sleep(0.001)
    finally:
        builder.may_build.set()
    assert shown == (7, 3)


async def test_read__failed_once__is_tried_again(database, clock):
    class Failing(Builder):
        def __call__(self, rows: Repository) -> bytes:
            if not self.builds:
                self.began_at.append(self.clock.now)
                raise ValueError("broken")
            return super().__call__(rows)

    page = CachedPage(database, Failing(clock))
    with pytest.raises(ValueError, match="broken"):
        await page.read()
    assert await read(page) == (0, 2)
