"""The public JSON of the pages. Everything here can be read by anyone, and nothing here writes."""

from collections.abc import AsyncIterator, Callable
from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query, Request, Response
from fastapi.sse import EventSourceResponse, ServerSentEvent

from coordinator.db.repository import Repository
from coordinator.pages import address_views, case_views, pool_views, submission_views
from coordinator.pages.pages_state import PagesState, get_pages
from covey.protocol.api.common import AddressText, Body, HashText
from covey.protocol.api.overview import OverviewView
from covey.protocol.api.pages import (
    AddressView,
    CaseDetail,
    CaseListView,
    CurveView,
    EpochItemView,
    EpochListView,
    JudgeListView,
    LeafView,
    NodeListView,
    PolicyListView,
    RatesView,
    SubmissionListView,
)
from covey.protocol.ids import Address
from covey.protocol.verdict import Reason

router = APIRouter(prefix="/v1", tags=["pages"])
Pages = Annotated[PagesState, Depends(get_pages)]
Limit = Annotated[int, Query(ge=1, le=200, description="Maximum number of items.")]
Before = Annotated[int | None, Query(ge=0, lt=1 << 63, description="Value of `before` in the part that came first.")]
Number = Annotated[int, Path(ge=0, lt=1 << 63)]
ReasonName = Annotated[str, Path(pattern="^[a-z_]{1,32}$")]


async def _send(pages: PagesState, request: Request, build: Callable[[Repository], Body]) -> Response:
    """Answer with what `build` returns, under the address of the request."""
    return await pages.answers.send(
        request,
        key=pages.name(request),
        media_type="application/json",
        build=lambda rows: build(rows).model_dump_json().encode(),
    )


@router.get("/overview", response_model=OverviewView)
async def get_overview(pages: Pages, request: Request) -> Response:
    """The pool at a glance: counts, rates, the money that is left, and alarms with what to do about each."""
    return await _send(pages, request, lambda rows: pool_views.build_overview(pages.ctx, rows))


@router.get("/rates", response_model=RatesView)
async def get_rates(pages: Pages, request: Request, minutes: Annotated[int, Query(ge=1, le=200)] = 180) -> Response:
    """What was submitted and decided in each of the last minutes."""
    return await _send(
        pages, request, lambda rows: pool_views.build_rates(rows, now=pages.ctx.clock(), minutes=minutes)
    )


@router.get("/curve", response_model=CurveView)
async def get_curve(pages: Pages, request: Request) -> Response:
    """Reward and other metrics by step, as the trainer reported them; at most 200 steps over the whole course."""
    return await _send(pages, request, pool_views.build_curve)


@router.get("/nodes", response_model=NodeListView)
async def list_nodes(
    pages: Pages,
    request: Request,
    limit: Limit = 100,
    after: Annotated[str, Query(pattern="^(0x[0-9a-fA-F]{40})?$")] = "",
) -> Response:
    """Nodes by address, with their states."""
    return await _send(
        pages, request, lambda rows: pool_views.build_nodes(rows, now=pages.ctx.clock(), after=after, limit=limit)
    )


@router.get("/epochs", response_model=EpochListView)
async def list_epochs(pages: Pages, request: Request, limit: Limit = 100, before: Before = None) -> Response:
    """Epochs, newest first."""
    return await _send(
        pages, request, lambda rows: pool_views.build_epochs(pages.ctx, rows, before=before, limit=limit)
    )


@router.get("/epochs/{number}", response_model=EpochItemView)
async def get_epoch(pages: Pages, request: Request, number: Number) -> Response:
    """One epoch with its transaction and the ends of its windows. Raises ProtocolError("unknown_epoch")."""
    return await _send(pages, request, lambda rows: pool_views.get_epoch(pages.ctx, rows, number))


@router.get("/epochs/{number}/leaves/{receipt_hash}")
async def get_leaf(pages: Pages, number: Number, receipt_hash: HashText) -> LeafView:
    """One leaf of an epoch with its Merkle proof, which anyone can check. Raises ProtocolError("no_leaf")."""
    return await pages.trees.find(number, receipt_hash)


@router.get("/policies", response_model=PolicyListView)
async def list_policies(pages: Pages, request: Request, limit: Limit = 100, before: Before = None) -> Response:
    """Policies, newest first."""
    return await _send(
        pages, request, lambda rows: pool_views.build_policies(pages.ctx, rows, before=before, limit=limit)
    )


@router.get("/cases", response_model=CaseListView)
async def list_cases(
    pages: Pages,
    request: Request,
    limit: Limit = 100,
    before: Annotated[str, Query(pattern="^([0-9]{1,18}-0x[0-9a-f]{64})?$")] = "",
) -> Response:
    """Slashing cases, newest first."""
    return await _send(pages, request, lambda rows: case_views.build_cases(rows, before=before, limit=limit))


@router.get("/cases/{receipt_hash}", response_model=CaseDetail)
async def get_case(pages: Pages, request: Request, receipt_hash: HashText) -> Response:
    """One case with its votes, the window of its veto, and its outcome. Raises ProtocolError("unknown_case")."""
    return await _send(pages, request, lambda rows: case_views.build_case(pages.ctx, rows, receipt_hash))


@router.get("/validators", response_model=JudgeListView)
async def list_validators(pages: Pages, request: Request) -> Response:
    """Validators with their bonds and what they have judged."""
    return await _send(pages, request, lambda rows: pool_views.build_judges(pages.ctx, rows, now=pages.ctx.clock()))


@router.get("/addresses/{address}", response_model=AddressView)
async def get_address(pages: Pages, request: Request, address: AddressText) -> Response:
    """One contributor: its standing, its pay, its nodes. Raises ProtocolError("unknown_address")."""
    now = pages.ctx.clock
    return await _send(
        pages, request, lambda rows: address_views.build_address(pages.ctx, rows, Address(address), now=now())
    )


@router.get("/addresses/{address}/submissions", response_model=SubmissionListView)
async def list_submissions_of_address(
    pages: Pages, request: Request, address: AddressText, limit: Limit = 100, before: Before = None
) -> Response:
    """The statement of a contributor: each submission with its verdict, pay, epoch and transaction, newest first."""
    return await _list(pages, request, limit, before, contributor=address)


@router.get("/epochs/{number}/submissions", response_model=SubmissionListView)
async def list_submissions_of_epoch(
    pages: Pages, request: Request, number: Number, limit: Limit = 100, before: Before = None
) -> Response:
    """The submissions of an epoch, newest first."""
    return await _list(pages, request, limit, before, epoch=number)


@router.get("/policies/{number}/submissions", response_model=SubmissionListView)
async def list_submissions_of_policy(
    pages: Pages, request: Request, number: Number, limit: Limit = 100, before: Before = None
) -> Response:
    """The submissions that a policy generated, newest first."""
    return await _list(pages, request, limit, before, policy_version=number)


@router.get("/validators/{address}/submissions", response_model=SubmissionListView)
async def list_submissions_of_validator(
    pages: Pages, request: Request, address: AddressText, limit: Limit = 100, before: Before = None
) -> Response:
    """The submissions of a validator's turns, newest first."""
    return await _list(pages, request, limit, before, validator=address)


@router.get("/reasons/{reason}/submissions", response_model=SubmissionListView)
async def list_submissions_of_reason(
    pages: Pages, request: Request, reason: ReasonName, limit: Limit = 100, before: Before = None
) -> Response:
    """The submissions that were not accepted for a reason, newest first."""
    number = Reason[reason.upper()].value if reason.upper() in Reason.__members__ else -1
    return await _list(pages, request, limit, before, reason=number)


async def _list(pages: PagesState, request: Request, limit: int, before: int | None, **chosen: str | int) -> Response:
    def build(rows: Repository) -> SubmissionListView:
        return submission_views.build_submissions(pages.ctx, rows, before=before, limit=limit, **chosen)  # type: ignore[arg-type]

    return await _send(pages, request, build)


async def _hold_place(pages: Pages, request: Request) -> AsyncIterator[None]:
    with pages.events.enter(pages.get_address(request)):
        yield


@router.get("/events", response_class=EventSourceResponse, dependencies=[Depends(_hold_place)])
async def stream_events(pages: Pages, request: Request) -> AsyncIterator[ServerSentEvent]:
    """Events "overview" with the body of `/v1/overview`: the newest known one, then one after each change.

    There is at most one a second.
    """
    async for event in pages.events.stream():
        yield event
