"""Signed requests get the answers of their endpoints, without the application."""

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest
from fastapi import APIRouter
from pydantic import BaseModel, Field

from coordinator.api.admission import SIGNER
from coordinator.api.auth import Ctx, Node, State
from coordinator.api.signed_routes import SignedRoutes
from covey.errors import ProtocolError, TransientError

pytestmark = pytest.mark.unit
router = APIRouter(prefix="/v1")
STATE = cast(Any, SimpleNamespace(ctx=SimpleNamespace(clock=lambda: 7.0)))


class Question(BaseModel):
    size: int = Field(ge=0)


class Told(BaseModel):
    node: str
    size: int
    has_state: bool


@router.post("/told")
async def tell(state: State, ctx: Ctx, node: Node, body: Question) -> Told | None:
    return Told(node=node, size=body.size, has_state=state.ctx is ctx) if body.size else None


@router.post("/noted", status_code=204)
async def note(_: Node, body: Question | None = None) -> None:
    if body is None:
        return
    if body.size == 1:
        raise ProtocolError("odd", "one is odd", status=409)
    if body.size == 3:
        raise TransientError("database_busy", "postgresql://secret is busy")
    raise ZeroDivisionError


@router.get("/told")
async def get_told() -> str:
    return "public"


async def ask(path: str, body: bytes, *, is_signed: bool = True, method: str = "POST") -> tuple[int, bytes, bool]:
    """Return status and body of the answer, and whether the application gave it."""
    sent: list[dict[str, Any]] = []
    asked: list[str] = []

    async def application(scope: Any, receive: Any, send: Any) -> None:
        asked.append(scope["path"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def receive() -> Any:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    scope: dict[str, Any] = {"type": "http", "method": method, "path": path}
    if is_signed:
        scope[SIGNER] = "0xabc"
    await SignedRoutes(application, state=STATE, routers=[router])(scope, receive, send)
    return sent[0]["status"], sent[1]["body"], bool(asked)


async def test_answer__endpoint_returns_a_model_or_none__is_its_json():
    assert await ask("/v1/told", b'{"size": 2}') == (200, b'{"node":"0xabc","size":2,"has_state":true}', False)
    assert await ask("/v1/told", b'{"size": 0}') == (200, b"null", False)


async def test_answer__status_204_and_a_body_that_may_be_missing__is_empty():
    assert await ask("/v1/noted", b"") == (204, b"", False)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"size": -1}', b'{"size": "\xff"}', b"[" * 60_000])
async def test_answer__body_of_another_form__is_bad_body(body: bytes):
    status, answer, _ = await ask("/v1/told", body)
    assert (status, json.loads(answer)["code"], json.loads(answer)["time"]) == (422, "bad_body", 7)


async def test_answer__endpoint_refuses__is_its_status_and_code():
    status, answer, _ = await ask("/v1/noted", b'{"size": 1}')
    assert (status, json.loads(answer)) == (409, {"code": "odd", "message": "one is odd", "time": 7})


async def test_answer__endpoint_cannot_answer_now__says_nothing_of_the_set_up():
    status, answer, _ = await ask("/v1/noted", b'{"size": 3}')
    assert (status, json.loads(answer)["code"], b"secret" in answer) == (503, "database_busy", False)


async def test_answer__endpoint_has_a_defect__is_raised_for_the_application_to_log():
    with pytest.raises(ZeroDivisionError):
        await ask("/v1/noted", b'{"size": 2}')


async def test_call__unsigned_request_or_unknown_path__goes_to_the_application():
    assert (await ask("/v1/told", b"", is_signed=False, method="GET"))[2]
    assert (await ask("/v1/unknown", b"{}"))[2]
