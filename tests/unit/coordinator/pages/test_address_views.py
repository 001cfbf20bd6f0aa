"""A contributor: what it has claimed and bonded, what a day pays, and why no work comes."""

from dataclasses import replace
from pathlib import Path

import pytest

from coordinator.db.omission_queries import ChallengeRow
from coordinator.domain import stakes
from coordinator.domain.stakes import Stake
from covey.chain.contracts import OMISSION_BOND
from covey.protocol.verdict_fees import VerdictFees
from tests.fakes.epochs import close_epoch
from tests.fakes.pages import make_pages_context, open_pages
from tests.fakes.pool import FakePool, make_address, make_ledger, make_terms

pytestmark = pytest.mark.unit
OWNER = make_address("a's owner")


async def ask(pool: FakePool, folder: Path) -> tuple[dict[str, object], str]:
    """Return JSON and page of the owner of "a"."""
    async with open_pages(make_pages_context(pool, folder)) as client:
        answer, page = await client.get(f"/v1/addresses/{OWNER}"), await client.get(f"/addresses/{OWNER}")
    assert (answer.status_code, page.status_code) == (200, 200), answer.text
    return answer.json(), page.text


async def test_address__claims_bonds_and_pay__are_shown(earning: FakePool, tmp_path: Path):
    """Three submissions were accepted, the first one two hours ago."""
    earning.now = 100_000.0
    hashes = []
    for age in (7200, 60, 30):
        hashes.append(earning.work("a"))
        earning.accept(hashes[-1])
        with earning.database.write() as rows:
            submission = rows.get_submission(hashes[-1])
            assert submission is not None
            submission.signed_at = int(earning.now) - age
            units = submission.units
    earning.validators.append(OWNER)
    with earning.database.write() as rows:
        stakes.record_stake(rows, OWNER, Stake(300, 60, claimed=7), block=4)
        rows.add(ChallengeRow(receipt_hash=hashes[0], block_number=3, tries=0))
        rows.add(ChallengeRow(receipt_hash=hashes[1], block_number=3, decided_block=4, tries=0))
    body, page = await ask(earning, tmp_path)
    assert (body["staked"], body["locked"], body["claimed"], body["validator_bond"]) == (300, 60, 7, 50)
    assert (body["day"], body["expected_day"]) == (3 * 3 * units, 3 * 2 * units * 24)
    assert (body["open_challenges"], body["omission_bonds_wei"]) == (1, OMISSION_BOND)
    for text in ("0.07 CVT", "bond as a validator", "with 0.001 ether of bonds", "at the rate of the last hour"):
        assert text in page


async def test_address__nodes_that_get_nothing__say_why_in_one_sentence(pool: FakePool, tmp_path: Path):
    pool.register("a", "b", owner="a's owner")
    with pool.database.write() as rows:
        stakes.record_stake(rows, OWNER, Stake(1000, 0), block=1)
    body, _ = await ask(pool, tmp_path)
    assert body["sentence"] == "2 of 2 nodes: The trainer has not published the first policy yet."
    pool.remove("b")
    body, page = await ask(pool, tmp_path)
    assert body["sentence"] == "The trainer has not published the first policy yet."
    assert str(body["sentence"]) in page
    pool.publish(0)
    pool.lease("a")
    body, _ = await ask(pool, tmp_path)
    assert body["sentence"] == "Work comes: 1 of 1 nodes hold a lease."
    pool.remove("a")
    body, _ = await ask(pool, tmp_path)
    assert str(body["sentence"]).startswith("None of its nodes is registered")


async def test_address__validator__has_earned_its_fees_and_the_pool_spends_them(earning: FakePool, tmp_path: Path):
    """Two validators each gave two verdicts that an epoch pays with 7 each. A stranger has no page."""
    for _ in range(2):
        earning.decide(earning.work("a"))
    close_epoch(earning, make_ledger(fees=VerdictFees(fee=7, limit=10)))
    ctx = replace(make_pages_context(earning, tmp_path), terms=make_terms(verdict_fee=7, epoch_verdicts=10))
    async with open_pages(ctx) as client:
        answer, page = [await client.get(f"{path}/{earning.validators[1]}") for path in ("/v1/addresses", "/addresses")]
        idle, stranger = [
            await client.get(f"/v1/addresses/{each}") for each in (earning.validators[2], make_address("stranger"))
        ]
        money = (await client.get("/v1/overview")).json()["money"]
    assert (answer.json()["settled"], answer.json()["validator_bond"]) == (14, 50)
    assert answer.json()["sentence"] == "It is a validator and has never had a node, so no work comes."
    assert "0.14 CVT" in page.text
    assert idle.json()["settled"] == 0
    assert (stranger.status_code, stranger.json()["code"]) == (404, "unknown_address")
    assert money["spent_per_day"] == 2 * 20 * 3 + 4 * 7
