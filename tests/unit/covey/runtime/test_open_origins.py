"""Which requests of foreign web sites a browser allows."""

import httpx
import pytest
from starlette.types import Receive, Scope, Send

from covey.runtime.open_origins import OpenOrigins

pytestmark = pytest.mark.unit
ORIGIN = {"origin": "https://dashboard.example"}


async def answer_all(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"etag", b'"1"')]})
    await send({"type": "http.response.body", "body": b"{}"})


async def ask(method: str, path: str) -> httpx.Response:
    transport = httpx.ASGITransport(app=OpenOrigins(answer_all))
    async with httpx.AsyncClient(transport=transport, base_url="http://pages") as client:
        return await client.request(method, path, headers=ORIGIN)


async def test_open_origins__get_of_public_data__is_allowed_without_credentials():
    answer = await ask("GET", "/v1/overview")
    assert answer.headers["access-control-allow-origin"] == "*"
    assert answer.headers["access-control-expose-headers"] == "etag"
    assert "access-control-allow-credentials" not in answer.headers


async def test_open_origins__preflight__names_get_only():
    answer = await ask("OPTIONS", "/v1/overview")
    assert (answer.status_code, answer.headers["access-control-allow-methods"]) == (204, "GET")
    assert answer.headers["access-control-allow-headers"] == "if-none-match"


@pytest.mark.parametrize(("method", "path"), [("POST", "/v1/pause"), ("GET", "/nodes"), ("GET", "/v1")])
async def test_open_origins__everything_else__is_not_allowed(method: str, path: str):
    answer = await ask(method, path)
    assert answer.status_code == 200
    assert "access-control-allow-origin" not in answer.headers
