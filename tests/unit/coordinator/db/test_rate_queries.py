"""Counts of each minute and metrics of each step: added in one transaction, and old minutes removed."""

import pytest

from coordinator.db.database import Database
from coordinator.db.rate_queries import KEPT_SECONDS, MinuteCounts
from covey.protocol.api.trainer import StepPoint
from covey.protocol.verdict import Decision, Reason
from tests.fakes.pool import FakePool

pytestmark = pytest.mark.unit
POINT = StepPoint(
    reward_mean=0.5,
    reward_std=0.25,
    live_share=0.75,
    truncated_share=0.0,
    staleness_mean=1.0,
    tokens_per_second=120.0,
    wait_seconds=3.0,
    step_seconds=10.0,
)


def list_counts(database: Database, since: int = 0) -> list[tuple[int, ...]]:
    with database.read() as rows:
        return [(m.start, m.submitted, m.accepted, m.rejected, m.void, m.units) for m in rows.list_minutes(since=since)]


def test_add_to_minute__two_in_one_and_one_later__are_two_rows(database: Database):
    with database.write() as rows:
        rows.add_to_minute(119.9, MinuteCounts(submitted=2))
        rows.add_to_minute(60.0, MinuteCounts(accepted=1, units=7))
        rows.add_to_minute(120.0, MinuteCounts(rejected=1, void=3))
        rows.add_to_minute(180.0, MinuteCounts())
    assert list_counts(database) == [(60, 2, 1, 0, 0, 7), (120, 0, 0, 1, 3, 0)]
    assert list_counts(database, since=61) == [(120, 0, 0, 1, 3, 0)]


def test_add_to_minute__rows_of_a_month_ago__are_removed(database: Database):
    with database.write() as rows:
        for start in (0, 60, 60 + KEPT_SECONDS):
            rows.add_to_minute(start, MinuteCounts(submitted=1))
    assert [start for start, *_ in list_counts(database)] == [60, 60 + KEPT_SECONDS]


def test_record_point__reported_again__keeps_the_last_one(database: Database):
    with database.write() as rows:
        rows.record_point(3, POINT, now=10.0)
        rows.record_point(3, POINT.model_copy(update={"reward_mean": 0.75}), now=20.0)
    with database.read() as rows:
        assert [(p.step, p.reported_at, p.reward_mean, p.step_seconds) for p in rows.list_points(limit=9)] == [
            (3, 20.0, 0.75, 10.0)
        ]


def test_minutes__submissions_of_a_pool__count_what_was_submitted_and_decided(earning: FakePool):
    pool = earning
    accepted, rejected, void = (pool.work(name) for name in ("a", "cheat", "b"))
    pool.accept(accepted)
    pool.reject(rejected)
    pool.decide(void, Decision.REJECT, reason=Reason.SCHEMA)
    counts = [sum(column) for column in list(zip(*list_counts(pool.database), strict=True))[1:]]
    assert counts[:4] == [3, 1, 1, 1]
    assert counts[4] == pool.submission(accepted).units > 0
