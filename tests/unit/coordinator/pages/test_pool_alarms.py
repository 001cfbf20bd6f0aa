"""Alarms of a pool: each by its cause, with advice."""

from pathlib import Path
from typing import Any

import pytest

from coordinator.db.page_queries import NodeCounts
from coordinator.domain import pausing
from coordinator.domain.pausing import PausedBy
from coordinator.pages import pool_alarms
from coordinator.pages.chain_facts import Money
from coordinator.pages.context import PagesContext
from covey.protocol.learning_signs import LearningSign
from tests.fakes.pages import make_pages_context
from tests.fakes.pool import FakePool

pytestmark = pytest.mark.unit
AT_WORK = NodeCounts(removed=0, suspended=0, dead=0, unhealthy=0, waiting=1, busy=2)


def list_codes(ctx: PagesContext, pool: FakePool, **changes: Any) -> list[str]:
    values: dict[str, Any] = {"nodes": AT_WORK, "oldest_s": 5.0, "days_left": 10.0}
    with pool.database.read() as rows:
        found = pool_alarms.list_alarms(ctx, rows, **(values | changes))
    assert all(alarm.text.endswith(".") and alarm.advice.endswith(".") for alarm in found)
    return [alarm.code for alarm in found]


def test_list_alarms__a_pool_at_work__has_none(pool: FakePool, tmp_path: Path):
    assert list_codes(make_pages_context(pool, tmp_path), pool) == []


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"oldest_s": 601.0}, "judging_late"),
        ({"days_left": 2.9}, "escrow_short"),
        ({"nodes": AT_WORK._replace(waiting=0, busy=0, dead=3)}, "no_nodes"),
    ],
)
def test_list_alarms__numbers_beyond_their_limits__are_named(
    pool: FakePool, tmp_path: Path, changes: dict[str, Any], code: str
):
    assert list_codes(make_pages_context(pool, tmp_path), pool, **changes) == [code]


def test_list_alarms__facts_of_the_chain__are_named(pool: FakePool, tmp_path: Path):
    ctx = make_pages_context(pool, tmp_path)
    chain: Any = ctx.chain
    chain.active, chain.money = frozenset(pool.validators[:1]), Money(escrow=100, promised=100)
    assert list_codes(ctx, pool) == ["too_few_validators", "escrow_empty"]
    chain.head = None
    assert list_codes(ctx, pool)[0] == "chain_silent"


def test_list_alarms__pause_and_signs__come_first_and_end_with_the_pool(pool: FakePool, tmp_path: Path):
    ctx = make_pages_context(pool, tmp_path)
    with pool.database.write() as rows:
        pausing.record_report(rows, steps=1, signs=[LearningSign.NO_ANSWER], pause=False, now=1.0)
        pausing.set_paused(rows, by=PausedBy.OPERATOR, is_paused=True, now=1.0)
    assert list_codes(ctx, pool, oldest_s=700.0) == ["paused", "no_answer", "judging_late"]
    with pool.database.write() as rows:
        rows.set_fact("ended", 9)
    assert list_codes(ctx, pool, oldest_s=700.0) == []
