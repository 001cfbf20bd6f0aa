"""Many viewers cause one computation, and none waits for a page that costs much."""

import asyncio
import time
from pathlib import Path

import pytest
from pydantic import BaseModel

from coordinator.api import cached_page
from coordinator.api.cached_page import CachedPage
from coordinator.db.repository import Repository
from tests.fakes.databases import open_sqlite

pytestmark = pytest.mark.unit


class Page(BaseModel):
    value: int
    builds: int


class Builder:
    def __init__(self, *, seconds: float = 0.0) -> None:
        self.builds, self.seconds = 0, seconds

    def __call__(self, rows: Repository) -> bytes:
        self.builds += 1
        end = time.thread_time() + self.seconds
        while time.thread_time() < end:
            pass
        return Page(value=rows.get_fact("value"), builds=self.builds).model_dump_json().encode()


@pytest.fixture
def database(tmp_path: Path):
    with open_sqlite(tmp_path / "coordinator.sqlite3") as opened:
        yield opened


def set_value(database, value: int) -> None:
    with database.write() as rows:
        rows.set_fact("value", value)


async def read(page: CachedPage) -> tuple[int, int]:
    shown = Page.model_validate_json(await page.read())
    return shown.value, shown.builds


async def test_read__cheap_page__is_of_this_moment_and_computed_once_for_many_viewers(database, monkeypatch):
    monkeypatch.setattr(cached_page, "CHEAP_S", 0.25)
    page = CachedPage(database, Builder(seconds=0.02))
    assert set(await asyncio.gather(*(read(page) for _ in range(50)))) == {(0, 1)}
    assert await read(page) == (0, 1), "nothing was committed"
    set_value(database, 7)
    assert await read(page) == (7, 2)


async def test_read__cheap_page_after_each_commit__is_not_computed_all_the_time(database, monkeypatch):
    monkeypatch.setattr(cached_page, "CHEAP_S", 0.25)
    page, ended_at = CachedPage(database, Builder(seconds=0.02)), time.monotonic() + 0.6
    value = builds = 0
    while time.monotonic() < ended_at:
        set_value(database, value := value + 1)
        shown, builds = await read(page)
        assert shown == value, "it is of this moment nevertheless"
    assert builds <= 10, "one takes 0.02 s, and the next one begins 0.08 s later"


async def test_read__dear_page__shows_the_last_one_and_computes_the_next_behind_it(database, monkeypatch):
    monkeypatch.setattr(cached_page, "CHEAP_S", 0.01)
    monkeypatch.setattr(cached_page, "SHARE", 2)
    page = CachedPage(database, Builder(seconds=0.1))
    await page.prepare()
    assert await read(page) == (0, 2), "the first computation says nothing about the cost of the next ones"
    set_value(database, 7)
    started = time.monotonic()
    assert await read(page) == (0, 2)
    assert time.monotonic() - started < 0.1
    for _ in range(500):
        if await read(page) == (7, 3):
            return
        await asyncio.sleep(0.02)
    pytest.fail("the page was not computed again")


async def test_read__failed_once__is_tried_again(database):
    class Failing(Builder):
        def __call__(self, rows: Repository) -> bytes:
            if not self.builds:
                self.builds += 1
                raise ValueError("broken")
            return super().__call__(rows)

    page = CachedPage(database, Failing())
    with pytest.raises(ValueError, match="broken"):
        await page.read()
    assert await read(page) == (0, 2)
