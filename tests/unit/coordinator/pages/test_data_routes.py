"""The public JSON of the pages: what each route shows, and how lists go on."""

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from coordinator.domain import pausing
from coordinator.domain.pausing import PausedBy
from coordinator.pages.chain_facts import Money
from coordinator.pages.pages_application import build_pages
from covey.protocol.api.trainer import TaskTypePoint
from covey.protocol.verdict import Reason
from tests.fakes.pages import make_pages_context, open_pages, settle
from tests.fakes.pool import FakePool, make_address, make_hash
from tests.unit.coordinator.db.test_rate_queries import POINT

pytestmark = pytest.mark.unit


@pytest.fixture
async def client(earning: FakePool, tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    """Three accepted submissions in an epoch on chain, a rejected one with a case, and one without a verdict."""
    pool = earning
    for _ in range(3):
        pool.accept(pool.work("a"))
    pool.reject(pool.work("cheat"), Reason.PROOF)
    settle(pool)
    pool.work("b")
    async with open_pages(make_pages_context(pool, tmp_path)) as opened:
        yield opened


async def test_overview__a_pool_with_everything__counts_all_in_less_than_2_kb(client: httpx.AsyncClient):
    answer = await client.get("/v1/overview")
    body = answer.json()
    assert body["submissions"] == {"SETTLED": 4, "SUBMITTED": 1}
    assert body["reasons"] == {"proof": 1}
    assert body["nodes"] == {"removed": 0, "suspended": 1, "dead": 0, "unhealthy": 0, "waiting": 0, "busy": 2}
    assert (body["hour"]["submitted"], body["hour"]["accepted"], body["hour"]["rejected"]) == (5, 3, 1)
    spent = 3 * body["hour"]["units"]
    assert body["money"] == {
        "decimals": 2, "symbol": "CVT",
        "price": 3_000_000, "next_price": None, "next_price_at": None,
        "escrow": 1000, "promised": 100, "spent_per_day": spent, "days_left": 900 / spent,
    }  # fmt: skip
    assert len(answer.content) < 2000


async def test_overview__types_readiness_and_two_alarms__are_in_less_than_2_kb(pool: FakePool, tmp_path: Path):
    """Eight nodes have the policy after 1 to 8 s, and a ninth one is silent. Nine types are in the newest batch."""
    names = [f"node {i}" for i in range(9)]
    pool.register(*names)
    types = [TaskTypePoint(name=f"kind_{i}:name", share=i / 100, reward_mean=0.123456) for i in range(9)]
    with pool.database.write() as rows:
        rows.update_nodes(
            [
                {"address": make_address(name), "policy_seconds": i + 1.0, "seen_at": 0.0 if i == 8 else pool.now}
                for i, name in enumerate(names)
            ]
        )
        rows.record_point(3, POINT, now=pool.now, task_types=types)
        pausing.set_paused(rows, by=PausedBy.OPERATOR, is_paused=True, now=1.0)
    ctx = make_pages_context(pool, tmp_path)
    ctx.chain.money = Money(escrow=100, promised=100)
    async with open_pages(ctx) as client:
        answer, page = await client.get("/v1/overview"), await client.get("/")
    body = answer.json()
    assert body["readiness"] == {"nodes": 8, "p50_seconds": 4.0, "p95_seconds": 8.0}
    assert [each["name"] for each in body["task_types"]] == [f"kind_{i}:name" for i in range(8, 0, -1)]
    assert [each["code"] for each in body["alarms"]] == ["paused", "escrow_empty"]
    assert len(answer.content) < 2000
    for text in ("kind_8:name", "policy ready, median", "4.0 s"):
        assert text in page.text


async def test_submissions_of_address__two_pages__have_all_in_order_and_add_up(client: httpx.AsyncClient):
    owner = make_address("a's owner")
    path = f"/v1/addresses/{owner}/submissions"
    first = (await client.get(path, params={"limit": 2})).json()
    rest = (await client.get(path, params={"limit": 2, "before": first["before"]})).json()
    items = first["items"] + rest["items"]
    assert [item["task"] for item in items] == sorted((item["task"] for item in items), reverse=True)
    assert (len(items), rest["before"]) == (3, None)
    assert {(item["epoch_state"], item["transaction"]) for item in items} == {("posted", make_hash("transaction"))}
    address = (await client.get(f"/v1/addresses/{owner}")).json()
    assert address["settled"] == sum(item["pay"] for item in items) > 0
    assert (address["waiting"], address["submissions"], address["accepted"]) == (0, 3, 3)


@pytest.mark.parametrize(
    ("path", "count"),
    [
        ("/v1/epochs/0/submissions", 4),
        ("/v1/epochs/1/submissions", 0),
        ("/v1/policies/0/submissions", 5),
        ("/v1/reasons/proof/submissions", 1),
        ("/v1/reasons/seed/submissions", 0),
        (f"/v1/validators/{make_address('nobody')}/submissions", 0),
    ],
)
async def test_submissions__each_filter__finds_its_own(client: httpx.AsyncClient, path: str, count: int):
    answer = await client.get(path)
    assert answer.status_code == 200, answer.text
    assert len(answer.json()["items"]) == count


async def test_submissions_of_validators__all_turns__are_found_once_each(client: httpx.AsyncClient):
    found = []
    for index in range(3):
        answer = await client.get(f"/v1/validators/{make_address(f'validator-{index}')}/submissions?limit=1")
        found += answer.json()["items"]
        while (before := answer.json()["before"]) is not None:
            path = f"/v1/validators/{make_address(f'validator-{index}')}/submissions?limit=1&before={before}"
            answer = await client.get(path)
            found += answer.json()["items"]
    assert len({item["receipt_hash"] for item in found}) == 4


async def test_nodes__page_by_page__come_by_address(client: httpx.AsyncClient):
    names, after = [], ""
    while after is not None:
        body = (await client.get("/v1/nodes", params={"limit": 1, "after": after})).json()
        names += [item["node"] for item in body["items"]]
        after = body["after"]
    assert names == sorted(make_address(name) for name in ("a", "b", "cheat"))


async def test_epoch__posted__has_its_roots_and_its_state(client: httpx.AsyncClient):
    (listed,) = (await client.get("/v1/epochs")).json()["items"]
    one = (await client.get("/v1/epochs/0")).json()
    assert one == listed
    assert (one["state"], one["leaf_count"]) == ("posted", 4)


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/v1/epochs/9", 404, "unknown_epoch"),
        (f"/v1/addresses/{make_address('nobody')}", 404, "unknown_address"),
        ("/v1/nodes?limit=201", 422, "bad_body"),
        ("/v1/addresses/0x12/submissions", 422, "bad_body"),
        ("/v1/cases?before=x", 422, "bad_body"),
    ],
)
async def test_routes__what_is_not_there_or_not_well_formed__has_a_code(
    client: httpx.AsyncClient, path: str, status: int, code: str
):
    answer = await client.get(path)
    assert (answer.status_code, answer.json()["code"]) == (status, code)


async def test_answers__known_to_the_client__are_not_sent_again(client: httpx.AsyncClient):
    first = await client.get("/v1/epochs/0/submissions")
    assert first.headers["cache-control"] == "public, max-age=1"
    assert first.headers["content-encoding"] == "gzip"
    again = await client.get("/v1/epochs/0/submissions", headers={"if-none-match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


async def test_routes__writing_methods__are_refused(client: httpx.AsyncClient):
    assert (await client.post("/v1/nodes", json={})).status_code == 405


async def test_routes__a_script_of_another_site__can_read_data_and_no_page(client: httpx.AsyncClient):
    origin = {"origin": "https://dashboard.example"}
    for path in ("/v1/overview", "/v1/epochs/9"):
        assert (await client.get(path, headers=origin)).headers["access-control-allow-origin"] == "*"
    assert (await client.options("/v1/overview", headers=origin)).status_code == 204
    assert "access-control-allow-origin" not in (await client.get("/", headers=origin)).headers


async def test_answers__the_same_question_in_other_words__is_computed_once(earning: FakePool, tmp_path: Path):
    ctx = make_pages_context(earning, tmp_path)
    app = build_pages(ctx)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://pages") as client:
        for path in (
            "/?x=1",
            "/?y=2",
            "/",
            "/nodes?after=&z=3",
            "/nodes",
            "/v1/nodes?limit=5&q=1",
            "/v1/nodes?q=2&limit=5",
        ):
            assert (await client.get(path)).status_code == 200
    assert len(app.state.pages.answers._pages) == 4
