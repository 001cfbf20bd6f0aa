"""What a viewer may cost."""

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from coordinator.api.process.meters import Meters
from coordinator.pages.guard import Guard, charge

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("path", "burst", "admitted"), [("/v1/nodes?limit=200", 10.0, 3), ("/?limit=1", 4.0, 2)], ids=["list", "page"]
)
async def test_guard__one_address__is_refused_after_its_burst(path: str, burst: float, admitted: int):
    """A list costs by its rows. A page does not read the number of rows, so a small one makes it no cheaper."""
    routes = [Route(each, lambda _: PlainTextResponse("yes")) for each in ("/v1/nodes", "/")]
    app = Guard(Starlette(routes=routes), requests_per_s=1e-6, meters=Meters())
    app._addresses._burst = burst
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://pages") as client:
        answers = [await client.get(path) for _ in range(admitted + 2)]
    assert [answer.status_code for answer in answers] == [*[200] * admitted, 429, 429]
    assert answers[-1].json()["code"] == "rate_limited"


async def test_guard__a_request_that_writes__is_refused():
    transport = httpx.ASGITransport(app=Guard(Starlette(), requests_per_s=100, meters=Meters()))
    async with httpx.AsyncClient(transport=transport, base_url="http://pages") as client:
        answer = await client.post("/")
    assert (answer.status_code, answer.json()["code"]) == (405, "method_not_allowed")


async def test_charge__answers_that_took_cpu_time__use_up_the_rate_of_their_viewer():
    """One address may take a quarter of a processor on average, and four seconds' worth at once."""

    def answer(request: Request) -> PlainTextResponse:
        charge(request, 0.4)
        return PlainTextResponse("yes")

    app = Guard(Starlette(routes=[Route("/", answer)]), requests_per_s=100.0, meters=Meters())
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://pages") as client:
        answers = [await client.get("/") for _ in range(5)]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 429, 429]
