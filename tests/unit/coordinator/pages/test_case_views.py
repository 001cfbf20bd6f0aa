"""One case: who voted for what, until when it can be vetoed, and what became of it."""

from pathlib import Path

import pytest

from coordinator.db.models import CaseRow
from covey.protocol.status import CaseState
from covey.protocol.verdict import Reason
from tests.fakes.pages import make_pages_context, open_pages
from tests.fakes.pool import FakePool, make_address, make_hash

pytestmark = pytest.mark.unit
HEAD_TIME = 1000
"""Time of the newest block of `make_pages_context`."""


def open_case(pool: FakePool, receipt_hash: str, **changes: object) -> None:
    values: dict[str, object] = {"state": CaseState.LOCKED, "veto_until": HEAD_TIME + 60} | changes
    with pool.database.write() as rows:
        rows.add(
            CaseRow(
                receipt_hash=receipt_hash,
                node=make_address("cheat"),
                contributor=make_address("cheat's owner"),
                block_number=9,
                transaction_hash=make_hash("newest"),
                reason=Reason.PROOF,
                amount="120",
                opened_transaction=make_hash("opened"),
                **values,
            )
        )


async def test_case__locked__has_votes_window_and_both_transactions(earning: FakePool, tmp_path: Path):
    receipt_hash = earning.work("cheat")
    earning.reject(receipt_hash, Reason.PROOF)
    open_case(earning, receipt_hash)
    async with open_pages(make_pages_context(earning, tmp_path)) as client:
        body = (await client.get(f"/v1/cases/{receipt_hash}")).json()
        page = (await client.get(f"/cases/{receipt_hash}")).text
        listed = (await client.get("/cases")).text
    assert (body["reason"], body["amount"], body["veto_until"]) == ("proof", 120, HEAD_TIME + 60)
    assert (body["opened_transaction"], body["transaction"]) == (make_hash("opened"), make_hash("newest"))
    assert body["sentence"] == "The arbiter can veto the case for 60 s more."
    assert {(vote["outcome"], vote["reason"]) for vote in body["votes"]} == {("reject", "proof")}
    assert {vote["validator"] for vote in body["votes"]} <= set(earning.validators)
    assert len(body["votes"]) == earning.params.quorum
    assert body["decided_at"] is not None
    for text in (body["sentence"], "1.2 CVT", make_hash("opened")):
        assert text in page
    assert f'href="/cases/{receipt_hash}"' in listed


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"veto_until": HEAD_TIME - 1}, "anyone can execute"),
        ({"veto_until": None}, "until the case is vetoed or executed"),
        ({"state": CaseState.SLASHED}, "the stake is slashed"),
        ({"state": CaseState.VETOED}, "has vetoed"),
        ({"state": CaseState.LAPSED}, "Nobody executed"),
    ],
)
async def test_case__each_outcome__has_its_sentence(
    earning: FakePool, tmp_path: Path, changes: dict[str, object], part: str
):
    receipt_hash = earning.work("cheat")
    open_case(earning, receipt_hash, **changes)
    async with open_pages(make_pages_context(earning, tmp_path)) as client:
        body = (await client.get(f"/v1/cases/{receipt_hash}")).json()
    assert part in body["sentence"]
    assert body["votes"] == [], "the submission is not decided"


async def test_case__not_on_chain__is_unknown(earning: FakePool, tmp_path: Path):
    async with open_pages(make_pages_context(earning, tmp_path)) as client:
        answer = await client.get(f"/v1/cases/{make_hash('other')}")
        assert (answer.status_code, answer.json()["code"]) == (404, "unknown_case")
        assert (await client.get("/cases/none")).status_code == 404
