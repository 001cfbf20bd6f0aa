"""The headers of every answer with a page."""

import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from covey.reporting.page_headers import PageHeaders

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("path", ["/", "/missing"])
async def test_page_headers__any_answer__allows_files_of_the_server_alone(path: str):
    app = PageHeaders(Starlette(routes=[Route("/", lambda _: PlainTextResponse("yes"))]))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://pages") as client:
        headers = (await client.get(path)).headers
    policy = dict(each.split(" ", 1) for each in headers["content-security-policy"].split("; "))
    assert policy["default-src"] == policy["frame-ancestors"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert headers["x-content-type-options"] == "nosniff"
