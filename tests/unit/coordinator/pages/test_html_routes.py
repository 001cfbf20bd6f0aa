"""The pages: each one is shown, escapes what peers have written, and needs nothing but its own server."""

import re
from collections.abc import AsyncIterator
from html.parser import HTMLParser
from pathlib import Path

import httpx
import pytest
from fastapi.routing import APIRoute

from coordinator.db.models import CaseRow
from coordinator.pages import data_routes, evidence_routes, html_routes
from coordinator.pages.pages_application import OWN_ASSETS
from covey.protocol.epochs import WorkLeaf
from covey.protocol.ids import Hash
from covey.protocol.merkle import is_in_tree
from covey.protocol.status import CaseState
from covey.protocol.verdict import Reason
from covey.reporting.page_templates import ASSETS
from tests.fakes.pages import make_pages_context, open_pages, settle
from tests.fakes.pool import FakePool, make_address, make_hash
from tests.unit.coordinator.db.test_rate_queries import POINT

pytestmark = pytest.mark.unit
HOSTILE = "<script>alert(1)</script>\u202e\x1b[31m"


class Page(HTMLParser):
    """What a page refers to, and what its content security policy would block."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.blocked: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.blocked += [name for name in values if name.startswith("on") or name == "style"]
        if tag == "style" or (tag == "script" and "src" not in values):
            self.blocked.append(tag)
        if tag == "a":
            self.links.append(values.get("href") or "")
        elif tag in ("script", "img", "link", "iframe"):
            self.loaded.append(values.get("src") or values.get("href") or "")


@pytest.fixture
async def cheated(earning: FakePool, tmp_path: Path) -> AsyncIterator[tuple[httpx.AsyncClient, str]]:
    """Pages of a pool in which "cheat" was caught, and the hash of its receipt."""
    pool = earning
    pool.accept(pool.work("a"))
    caught = pool.work("cheat")
    pool.reject(caught, Reason.PROOF)
    settle(pool)
    pool.work("b")
    with pool.database.write() as rows:
        for step in range(3):
            rows.record_point(step, POINT, now=1.0)
        node, contributor = make_address("cheat"), make_address("cheat's owner")
        row = CaseRow(receipt_hash=caught, node=node, contributor=contributor, state=CaseState.SLASHED)
        row.block_number, row.transaction_hash = 9, make_hash("slash")
        rows.add(row)
    pool.params = pool.params.model_copy(update={"name": HOSTILE})
    async with open_pages(make_pages_context(pool, tmp_path)) as client:
        yield client, caught


async def read(client: httpx.AsyncClient, path: str) -> str:
    answer = await client.get(path)
    assert answer.status_code == 200, (path, answer.text)
    assert answer.headers["content-type"].startswith("text/html")
    return answer.text


async def test_pages__all_that_lead_from_the_pool__are_shown_without_anything_foreign(
    cheated: tuple[httpx.AsyncClient, str],
):
    client, _ = cheated
    seen, waiting = set[str](), ["/"]
    while waiting:
        path = waiting.pop()
        if path in seen or not path.startswith(("/", "?")) or path.startswith("/openapi"):
            continue
        seen.add(path)
        text = await read(client, path)
        page = Page(text)
        assert page.blocked == [], path
        assert all(link.startswith("/assets/") for link in page.loaded), path
        assert "<script>alert" not in text
        assert "\u202e" not in text
        assert "\x1b" not in text
        waiting += [link for link in page.links if not link.startswith(("http", "#")) and "/completions" not in link]
    kinds = {re.sub("0x[0-9a-fA-F]+|[0-9]+", "N", path.partition("?")[0]) for path in seen}
    assert kinds >= {
        "/", "/nodes", "/nodes/N", "/addresses/N", "/submissions", "/submissions/N", "/epochs", "/epochs/N",
        "/policies", "/cases", "/validators", "/docs",
    }  # fmt: skip


async def test_pages__a_cheat__leads_in_three_clicks_to_its_evidence_and_its_transaction(
    cheated: tuple[httpx.AsyncClient, str],
):
    client, caught = cheated
    assert "/submissions?reason=proof" in Page(await read(client, "/")).links
    assert f"/submissions/{caught}" in Page(await read(client, "/submissions?reason=proof")).links
    text = await read(client, f"/submissions/{caught}")
    assert make_hash("slash") in text
    assert any("/v1/public/evidence/1/0x" in link for link in Page(text).links)
    assert "covey validator audit 0x" in text


async def test_submission__without_a_verdict__shows_no_vote_and_no_completion(earning: FakePool, tmp_path: Path):
    receipt = earning.work("a")
    earning.dispatch()
    order = earning.claim(0)
    assert order is not None
    async with open_pages(make_pages_context(earning, tmp_path)) as client:
        text = await read(client, f"/submissions/{receipt}")
        assert "It has no verdict yet." in text
        assert "evidence/1/" not in text
        assert "private until the epoch" in text
        assert (await client.get(f"/submissions/{receipt}/completions")).status_code == 404


async def test_submission__in_a_posted_epoch__names_the_date_of_its_pay(earning: FakePool, tmp_path: Path):
    receipt = earning.work("a")
    earning.accept(receipt)
    async with open_pages(make_pages_context(earning, tmp_path)) as client:
        assert "not posted yet" in (await client.get(f"/submissions/{receipt}")).text
    settle(earning)
    async with open_pages(make_pages_context(earning, tmp_path)) as client:
        text = (await client.get(f"/submissions/{receipt}")).text
    assert re.search(r"can be claimed from</dt><dd>.*1970-01-01 00:33:20", text), "final_at is 2000"


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/nothing", 404),
        ("/nodes/0x12", 404),
        (f"/nodes/{make_address('nobody')}", 404),
        (f"/addresses/{make_address('nobody')}", 404),
        ("/submissions/" + "0" * 64, 404),
        ("/submissions?reason=none&state=VOID", 422),
        ("/submissions?epoch=x", 422),
        ("/epochs/77", 404),
        ("/epochs/x", 404),
        ("/find?q=<script>", 404),
        ("/cases?before=%00", 200),
        ("/nodes?after=%00", 200),
        ("/submissions?node=%00", 422),
        ("/submissions?validator=<b>", 422),
        (f"/cases?before=5-0x{'%00' * 64}", 200),
    ],
)
async def test_pages__what_is_not_there__is_said_on_a_page(
    cheated: tuple[httpx.AsyncClient, str], path: str, status: int
):
    client, _ = cheated
    answer = await client.get(path)
    assert answer.status_code == status
    assert Page(answer.text).blocked == []
    assert "<script>alert" not in answer.text


async def test_find__addresses_and_hashes__lead_to_their_pages(cheated: tuple[httpx.AsyncClient, str]):
    client, caught = cheated
    owner = make_address("a's owner")
    for text, target in (
        (make_address("a"), f"/nodes/{make_address('a')}"),
        (owner, f"/addresses/{owner}"),
        (caught[2:20], f"/submissions/{caught[:20]}"),
    ):
        answer = await client.get("/find", params={"q": text})
        assert (answer.status_code, answer.headers["location"]) == (303, target)


async def test_leaf__of_a_closed_epoch__is_in_its_tree(cheated: tuple[httpx.AsyncClient, str]):
    client, caught = cheated
    body = (await client.get(f"/v1/epochs/0/leaves/{caught}")).json()
    assert body["fields"]["receipt_hash"] == caught
    proof = [Hash(each) for each in body["proof"]]
    leaf = WorkLeaf(**{name: int(text) if text.isdecimal() else text for name, text in body["fields"].items()})
    assert is_in_tree(body["work_root"], leaf.compute_hash(), proof)
    assert (await client.get(f"/v1/epochs/0/leaves/{make_hash('other')}")).json()["code"] == "no_leaf"


async def test_assets__asked_for_twice__are_compressed_kept_and_not_sent_again(
    cheated: tuple[httpx.AsyncClient, str],
):
    client, _ = cheated
    first = await client.get("/assets/htmx-2.0.11.min.js", headers={"accept-encoding": "gzip"})
    assert first.content == (ASSETS / "htmx-2.0.11.min.js").read_bytes()
    assert (first.headers["content-encoding"], first.headers["cache-control"]) == ("gzip", "public, max-age=3600")
    again = await client.get("/assets/htmx-2.0.11.min.js", headers={"if-none-match": first.headers["etag"]})
    assert (again.status_code, again.headers["cache-control"]) == (304, "public, max-age=3600")


def test_assets__all_together__are_at_most_120_kb():
    files = [*ASSETS.iterdir(), *OWN_ASSETS.iterdir()]
    assert sum(file.stat().st_size for file in files if not file.name.startswith("LICENSE")) <= 120_000


@pytest.mark.parametrize(
    "value", ["%00", "..%2f..%2fetc", "x" * 10_000, "%F0%9F%A6%86", "-1", "9" * 40, "0x" + "g" * 64]
)
async def test_routes__odd_values_in_their_paths__are_pages_that_do_not_exist(
    cheated: tuple[httpx.AsyncClient, str], value: str
):
    client, _ = cheated
    routes = [route for part in (data_routes, html_routes, evidence_routes) for route in part.router.routes]
    paths = {route.path for route in routes if isinstance(route, APIRoute) and "{" in route.path}
    assert len(paths) >= 12
    for path in paths:
        answer = await client.get(re.sub(r"\{[^}]*\}", value, path), headers={"accept": "text/html"})
        assert answer.status_code in (404, 422), (path, answer.status_code)
