"""The coordinator's HTTP API: a thin door.  Each route names who may call it and hands values to a desk.

Bodies are those of `covey.protocol.api.common`; every error is an ErrorBody with a stable code.  OpenAPI at /docs.
"""

from collections.abc import Awaitable, Callable
from typing import Annotated

from fastapi import APIRouter, Depends, FastAPI, Query, Request, Response
from fastapi import Path as PathValue
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from coordinator.api import auth, desk, intake, public_objects, views
from coordinator.context import Context
from covey.errors import CoveyError, ProtocolError, TransientError
from covey.protocol.api.common import AddressText, ErrorBody
from covey.protocol.api.public import PoolView, RewardView, StatusView, SubmissionDetail, SubmissionView
from covey.protocol.api.trainer import BatchOrder, BatchRequest
from covey.protocol.api.validator import CommitRequest, HardCases, RevealRequest, TurnRequest, ValidationOrder
from covey.protocol.api.worker import (
    ClaimRequest,
    Heartbeat,
    RegistrationAnswer,
    ReturnRequest,
    SubmissionAnswer,
    SubmissionRequest,
    TaskOrder,
    UploadGrant,
    UploadRequest,
)
from covey.protocol.ids import Address
from covey.protocol.status import SubmissionState
from covey.runtime.log import get_logger

MAX_BODY_BYTES = 256 << 10
IMMUTABLE = {"cache-control": "public, max-age=31536000, immutable"}

public = APIRouter(prefix="/v1", tags=["public"])
workers = APIRouter(prefix="/v1", tags=["worker"])
validators = APIRouter(prefix="/v1", tags=["validator"])
trainers = APIRouter(prefix="/v1", tags=["trainer"])


def build_api(ctx: Context) -> FastAPI:
    """The FastAPI application of one pool."""
    api = FastAPI(title="Covey coordinator", version="1", description=__doc__ or "")
    api.state.ctx, api.state.polls = ctx, desk.Polls()
    for router in (public, workers, validators, trainers):
        api.include_router(router)
    _add_errors(api, ctx)
    api.add_middleware(BodyLimit, small=MAX_BODY_BYTES, upload=ctx.params.max_submission_bytes)
    return api


def get_context(request: Request) -> Context:
    ctx: Context = request.app.state.ctx
    return ctx


def get_polls(request: Request) -> desk.Polls:
    polls: desk.Polls = request.app.state.polls
    return polls


Ctx = Annotated[Context, Depends(get_context)]
Polls = Annotated[desk.Polls, Depends(get_polls)]


async def require_node(ctx: Ctx, request: Request) -> Address:
    return await auth.require_signer(ctx, request)


async def require_validator(ctx: Ctx, request: Request) -> Address:
    return (await require_office(ctx, request)).holder


async def require_office(ctx: Ctx, request: Request) -> auth.Office:
    who = await auth.require_signer(ctx, request)
    return await run_in_threadpool(auth.require_validator, ctx, who)


async def require_trainer(ctx: Ctx, request: Request) -> Address:
    who = await auth.require_signer(ctx, request)
    auth.require_trainer(ctx, who)
    return who


Node = Annotated[Address, Depends(require_node)]
Validator = Annotated[Address, Depends(require_validator)]
Office = Annotated[auth.Office, Depends(require_office)]
Trainer = Annotated[Address, Depends(require_trainer)]


@public.get("/pool")
def get_pool(ctx: Ctx) -> PoolView:
    """Parameters and contracts; the chain holds the parameters' hash."""
    return views.get_pool(ctx)


@public.get("/status")
def get_status(ctx: Ctx) -> StatusView:
    """The network at a glance."""
    return views.get_status(ctx)


@public.get("/submissions")
def list_submissions(
    ctx: Ctx,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 100,
    contributor: AddressText | None = None,
    node: AddressText | None = None,
    state: SubmissionState | None = None,
) -> list[SubmissionView]:
    """The newest submissions, without their content; of one contributor, one node or in one state where named."""
    return views.list_submissions(ctx, limit, contributor=contributor, node=node, state=state)


@public.get("/submissions/{receipt_hash}")
def get_submission(ctx: Ctx, receipt_hash: Annotated[str, PathValue(pattern="^0x[0-9a-f]{8,64}$")]) -> SubmissionDetail:
    """One submission by its receipt's hash or at least 8 digits of it; with receipt and verdicts once decided."""
    return views.get_submission(ctx, receipt_hash)


@public.get("/rewards/{contributor}")
def get_reward(ctx: Ctx, contributor: AddressText, epoch: Annotated[int, Query(ge=0, lt=1 << 63)]) -> RewardView:
    """What a contributor had earned by the end of an epoch, with the proof."""
    return views.get_reward(ctx, contributor, epoch)


@public.get("/public/{key:path}")
def get_public(ctx: Ctx, key: str) -> Response:
    """Evidence of a decided submission; its file, and the epoch's, once its epoch is closed."""
    return Response(public_objects.get_object(ctx, key), media_type="application/octet-stream", headers=IMMUTABLE)


@public.get("/objects/{key:path}")
def get_object(ctx: Ctx, key: str, request: Request) -> Response:
    """Get a file by a signed link."""
    return Response(intake.get_object(ctx, key, request.query_params), media_type="application/octet-stream")


@public.put("/objects/{key:path}", status_code=201)
async def put_object(ctx: Ctx, key: str, request: Request) -> None:
    """Put a file by a signed link, once."""
    size = intake.require_upload(ctx, key, request.query_params)
    await run_in_threadpool(intake.put_object, ctx, key, size, await request.body())


@workers.post("/nodes")
def register(ctx: Ctx, node: Node) -> RegistrationAnswer:
    """Register a node that the chain knows and whose contributor has staked enough."""
    return desk.register_node(ctx, node)


@workers.post("/heartbeat", status_code=204)
def heartbeat(ctx: Ctx, node: Node, body: Heartbeat) -> None:
    """A sign of life."""
    desk.record_heartbeat(ctx, node, body)


@workers.post("/tasks/claim")
async def claim_task(ctx: Ctx, node: Node, body: ClaimRequest) -> TaskOrder | None:
    """Long-poll for a lease; null when there is none yet."""
    await run_in_threadpool(desk.ask_for_task, ctx, node, body)
    return await desk.wait_for(ctx, body.wait_seconds, lambda: desk.collect_task(ctx, node, body))


@workers.post("/tasks/return", status_code=204)
def return_task(ctx: Ctx, node: Node, body: ReturnRequest) -> None:
    """Give a lease back before its end."""
    desk.return_task(ctx, node, body)


@workers.post("/uploads")
def open_upload(ctx: Ctx, node: Node, body: UploadRequest) -> UploadGrant:
    """A link to put the file of a leased task."""
    return intake.open_upload(ctx, node, body)


@workers.post("/submissions")
def submit(ctx: Ctx, node: Node, body: SubmissionRequest) -> SubmissionAnswer:
    """Hand in a signed receipt; the answer is the operator's countersignature."""
    return intake.record_submission(ctx, node, body)


@validators.post("/validations/claim")
async def claim_validation(ctx: Ctx, polls: Polls, office: Office, body: TurnRequest) -> ValidationOrder | None:
    """Long-poll for a submission to judge, or for the word to reveal; a newer poll of the validator ends this one."""
    poll = polls.open(office.holder)
    await run_in_threadpool(desk.note_validator, ctx, office.holder)
    return await desk.wait_for(
        ctx, body.wait_seconds, lambda: desk.claim_validation(ctx, office, body), is_open=lambda: polls.is_open(poll)
    )


@validators.post("/validations/commit", status_code=204)
def commit(ctx: Ctx, who: Validator, body: CommitRequest) -> None:
    """Commit to a verdict."""
    desk.record_commit(ctx, who, body)


@validators.post("/validations/reveal", status_code=204)
def reveal(ctx: Ctx, who: Validator, body: RevealRequest) -> None:
    """Reveal the verdict that was committed."""
    desk.record_reveal(ctx, who, body)


@validators.post("/cases")
def list_hard_cases(ctx: Ctx, _: Validator) -> HardCases:
    """Hard rejections with the signatures that open a case on chain."""
    return views.list_hard_cases(ctx)


@trainers.post("/batches/claim")
async def claim_batch(ctx: Ctx, _: Trainer, body: BatchRequest) -> BatchOrder | None:
    """Long-poll for the batch of a step."""
    return await desk.wait_for(ctx, body.wait_seconds, lambda: desk.find_batch(ctx, body.step))


def _add_errors(api: FastAPI, ctx: Context) -> None:
    def answer(status: int, code: str, message: str) -> JSONResponse:
        body = ErrorBody(code=code, message=message, time=int(ctx.clock()))
        return JSONResponse(body.model_dump(), status_code=status)

    @api.exception_handler(ProtocolError)
    async def on_protocol_error(_: Request, error: ProtocolError) -> Response:
        return answer(error.status, error.code, error.message)

    @api.exception_handler(TransientError)
    async def on_transient_error(_: Request, error: TransientError) -> Response:
        # The message names places inside the operator's network: it is for the log.
        get_logger().warning("request put off", code=error.code, message=error.message)
        return answer(503, error.code, "the coordinator waits for something that it needs; try again")

    @api.exception_handler(CoveyError)
    async def on_other_error(_: Request, error: CoveyError) -> Response:
        get_logger().error("request failed", code=error.code, message=error.message)
        return answer(500, error.code, "the coordinator's set-up is wrong; its log says more")

    @api.exception_handler(RequestValidationError)
    async def on_bad_body(_: Request, error: RequestValidationError) -> Response:
        wrong = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()[:8])
        return answer(422, "bad_body", wrong[:2000])

    @api.exception_handler(Exception)
    async def on_defect(_: Request, error: Exception) -> Response:
        get_logger().error("defect", error=type(error).__name__, exc_info=error)
        return answer(500, "internal", "a defect of the coordinator; its log says more")

    @api.exception_handler(HTTPException)
    async def on_http_error(_: Request, error: HTTPException) -> Response:
        codes = {400: "bad_body", 404: "not_found", 405: "method_not_allowed", 413: "oversized"}
        status = 422 if error.status_code == 400 else error.status_code
        return answer(status, codes.get(error.status_code, "bad_request"), str(error.detail))


class BodyLimit:
    """Refuses a request body over the limit before it is read whole: `upload` bytes for objects, `small` elsewhere."""

    def __init__(self, app: ASGIApp, *, small: int, upload: int) -> None:
        self._app, self._small, self._upload = app, small, upload

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        limit = self._upload if scope["path"].startswith("/v1/objects/") else self._small
        declared = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
        if not declared.isdigit() or int(declared) > limit:
            await _refuse_body(send, limit)
            return
        await self._app(scope, _count(receive, limit), send)


def _count(receive: Receive, limit: int) -> Callable[[], Awaitable[Message]]:
    seen = 0

    async def counted() -> Message:
        nonlocal seen
        message = await receive()
        seen += len(message.get("body", b""))
        if seen > limit:
            raise HTTPException(413, f"a body is at most {limit} bytes")
        return message

    return counted


async def _refuse_body(send: Send, limit: int) -> None:
    response = JSONResponse({"code": "oversized", "message": f"a body is at most {limit} bytes", "time": 0}, 413)
    await send({"type": "http.response.start", "status": 413, "headers": response.raw_headers})
    await send({"type": "http.response.body", "body": response.body})
