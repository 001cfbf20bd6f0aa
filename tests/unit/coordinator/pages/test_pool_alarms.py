"""Alarms of a pool: each by its cause, with advice."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coordinator.db.database import Database
from coordinator.db.page_queries import NodeCounts
from coordinator.domain import pausing
from coordinator.domain.pausing import PausedBy
from coordinator.domain.settlement import build_header
from coordinator.pages import pool_alarms
from coordinator.pages.chain_facts import Money
from coordinator.pages.context import PagesContext
from covey.protocol.learning_signs import LearningSign
from tests.fakes.pages import make_pages_context
from tests.fakes.pool import POOL, FakePool, make_address, make_hash
from tests.unit.coordinator.db.test_rate_queries import POINT
from tests.unit.coordinator.domain.test_sum_limits import HIGHER
from tests.unit.coordinator.domain.test_sum_limits import build as build_summing
from tests.unit.coordinator.domain.test_sum_limits import work as work_with_sums

pytestmark = pytest.mark.unit
LATE = "A submission has waited 601 s for its verdict, and 600 s are the limit."
AT_WORK = NodeCounts(removed=0, suspended=0, dead=0, unhealthy=0, waiting=1, busy=2)


def list_texts(ctx: PagesContext, pool: FakePool, **changes: Any) -> dict[str, str]:
    """Return the texts of the alarms by code, most urgent first."""
    values: dict[str, Any] = {"nodes": AT_WORK, "oldest_s": 5.0, "days_left": 10.0}
    with pool.database.read() as rows:
        found = pool_alarms.list_alarms(ctx, rows, **(values | changes))
    assert all(alarm.text.endswith(".") and alarm.advice.endswith(".") for alarm in found)
    known = list(pool_alarms.ALARMS)
    assert [alarm.code for alarm in found] == sorted((alarm.code for alarm in found), key=known.index)
    return {alarm.code: alarm.text for alarm in found}


def list_codes(ctx: PagesContext, pool: FakePool, **changes: Any) -> list[str]:
    return list(list_texts(ctx, pool, **changes))


def test_list_alarms__a_pool_at_work__has_none(pool: FakePool, tmp_path: Path):
    assert list_codes(make_pages_context(pool, tmp_path), pool) == []


@pytest.mark.parametrize(
    ("changes", "code", "text"),
    [
        (
            {"oldest_s": 601.0},
            "judging_late",
            LATE,
        ),
        ({"days_left": 2.9}, "escrow_short", "The escrow lasts 2.9 days, and 3 days are the limit."),
        ({"nodes": AT_WORK._replace(waiting=0, busy=0, dead=3)}, "no_nodes", "No node is at work: 3 dead."),
    ],
)
def test_list_alarms__numbers_beyond_their_limits__are_named_with_both(
    pool: FakePool, tmp_path: Path, changes: dict[str, Any], code: str, text: str
):
    assert list_texts(make_pages_context(pool, tmp_path), pool, **changes) == {code: text}


def test_list_alarms__signs_of_the_trainer__have_the_newest_value_and_the_limit(pool: FakePool, tmp_path: Path):
    ctx, point = make_pages_context(pool, tmp_path), POINT.model_copy(update={"truncated_share": 0.625})
    with pool.database.write() as rows:
        signs = [LearningSign.TRUNCATED, LearningSign.CONSTANT_REWARD]
        pausing.record_report(rows, steps=1, signs=signs, pause=False, now=1.0)
    assert list_texts(ctx, pool, newest=point) == {
        "truncated": "The run may not learn: most completions are cut at the token limit "
        "(62% in the newest step, and the limit is the trainer's setting alarms.truncated_most).",
        "constant_reward": "The run may not learn: all rollouts earn the same reward "
        "(the deviation is 0.25 in the newest step, and the limit is 0).",
    }


def test_list_alarms__sums_far_above_in_the_whole_pool__name_node_value_and_limit(database: Database, tmp_path: Path):
    pool = build_summing(database, audit_rate=1.0)
    for _ in range(4):
        work_with_sums(pool, HIGHER, HIGHER)
    texts = list_texts(make_pages_context(pool, tmp_path), pool)
    assert list(texts) == ["calibration_unfit"]
    assert texts["calibration_unfit"].startswith(f"The sum logprob of node {make_address('a')} is 2.4 over 80 items")
    for _ in range(40):
        work_with_sums(pool, 0.0, 0.0)
    assert list_texts(make_pages_context(pool, tmp_path), pool) == {}


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


def close_epoch(pool: FakePool) -> str:
    """Close epoch 0 now. Return the hash of its header."""
    with pool.database.write() as rows:
        row = rows.require_epoch(0, closed_at=pool.now)
        row.work_root, row.reward_root, row.previous_hash = make_hash("w"), make_hash("r"), make_hash("p")
        row.data_hash = make_hash("data")
        rows.flush()
        return build_header(row, POOL).compute_hash()


@pytest.mark.parametrize("is_ended", [False, True])
def test_list_alarms__too_few_have_signed_an_epoch__names_those_who_have_not(
    pool: FakePool, tmp_path: Path, is_ended: bool
):
    ctx = make_pages_context(pool, tmp_path)
    ctx = replace(ctx, terms=replace(ctx.terms, header_quorum=2))
    first, second, third = sorted(pool.validators)
    header_hash = close_epoch(pool)
    with pool.database.write() as rows:
        rows.put_attestation(0, header_hash, second, "signed")
        rows.set_fact("ended", int(is_ended))
    pool.now += 60
    assert list_codes(ctx, pool) == []
    pool.now += 1
    text = "Epoch 0 was closed 61 s ago, and 1 of 2 validators have signed it. Those with a bond that have not: "
    assert list_texts(ctx, pool) == {"epoch_unsigned": f"{text}{first}, {third}."}
    with pool.database.write() as rows:
        rows.put_attestation(0, header_hash, first, "signed")
    assert list_codes(ctx, pool) == []
    pool.now += 540
    text = "Epoch 0 was closed 601 s ago and is not on chain, and 600 s are the limit."
    assert list_texts(ctx, pool) == {"epoch_unposted": text}
    with pool.database.write() as rows:
        rows.set_fact("closed", 1)
    assert list_codes(ctx, pool) == [], "nothing is posted any more"
