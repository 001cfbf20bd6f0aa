"""The pages. Each is rendered from the object that the JSON route of the same data returns."""

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import RedirectResponse

from coordinator.db.repository import Repository
from coordinator.domain import node_details
from coordinator.pages import address_views, case_views, pool_views, submission_views
from coordinator.pages.pages_state import PagesState, get_pages
from coordinator.pages.templates_engine import render
from covey.errors import CoveyError, ProtocolError, TransientError
from covey.protocol.ids import Address, is_address, is_hash

router = APIRouter()
Pages = Annotated[PagesState, Depends(get_pages)]
Values = dict[str, Any]
HTML = "text/html; charset=utf-8"
PART = 50
"""Number of items of a list on a page."""
MINUTES = 180
"""Number of minutes whose rates a page shows."""
MAX_DIGITS = 18


async def show(pages: PagesState, request: Request, template: str, build: Callable[[Repository], Values]) -> Response:
    """Answer with a page, or with the page of an error that `build` raises."""

    def draw(rows: Repository) -> bytes:
        return render(template, **pages.list_common(request), **build(rows))

    try:
        return await pages.answers.send(request, key=f"page {pages.name(request)}", media_type=HTML, build=draw)
    except (ProtocolError, TransientError) as error:
        return show_error(pages, request, error)


def show_error(pages: PagesState, request: Request, error: CoveyError) -> Response:
    """Answer with the page of an error."""
    status, message = (error.status, error.message) if isinstance(error, ProtocolError) else (503, "Try again.")
    body = render("error.html", **pages.list_common(request), code=error.code, message=message)
    return Response(body, status_code=status, media_type=HTML)


@router.get("/")
async def show_pool(pages: Pages, request: Request) -> Response:
    """The pool: what it does, what it costs, and what is wrong."""

    def build(rows: Repository) -> Values:
        return {
            "overview": pool_views.build_overview(pages.ctx, rows),
            "curve": pool_views.build_curve(rows).items,
            "rates": pool_views.build_rates(rows, now=pages.ctx.clock(), minutes=MINUTES).items,
        }

    return await show(pages, request, "pool.html", build)


@router.get("/nodes")
async def show_nodes(pages: Pages, request: Request, after: str = "") -> Response:
    """Nodes by address."""
    return await show(
        pages,
        request,
        "nodes.html",
        lambda rows: {
            "nodes": pool_views.build_nodes(
                rows, now=pages.ctx.clock(), after=after if is_address(after) else "", limit=PART
            )
        },
    )


@router.get("/nodes/{node}")
async def show_node(pages: Pages, request: Request, node: str, before: str = "") -> Response:
    """One node: why it gets no task, and what became of its work."""
    ctx = pages.ctx

    def build(rows: Repository) -> Values:
        detail = node_details.describe(
            rows,
            ctx.params,
            _require_address(node),
            rule=ctx.stake_rule,
            validators=ctx.chain.validators,
            now=ctx.clock(),
        )
        found = submission_views.build_submissions(ctx, rows, before=read_number(before), limit=PART, node=node)
        return {"node": detail, "submissions": found}

    return await show(pages, request, "node.html", build)


@router.get("/addresses/{address}")
async def show_address(pages: Pages, request: Request, address: str, before: str = "") -> Response:
    """One contributor: its standing, and the statement of its pay."""
    ctx = pages.ctx

    def build(rows: Repository) -> Values:
        who = _require_address(address)
        view = address_views.build_address(ctx, rows, who, now=ctx.clock())
        found = submission_views.build_submissions(ctx, rows, before=read_number(before), limit=PART, contributor=who)
        return {"address": view, "submissions": found, "price": ctx.read_prices(rows).present}

    return await show(pages, request, "address.html", build)


@router.get("/submissions")
async def show_submissions(
    pages: Pages,
    request: Request,
    before: str = "",
    contributor: str = "",
    node: str = "",
    state: str = "",
    epoch: str = "",
    policy_version: str = "",
    reason: str = "",
    validator: str = "",
) -> Response:
    """Submissions, newest first, by at most one of the filters in the address."""
    ctx = pages.ctx
    given = {"contributor": contributor, "node": node, "state": state, "epoch": epoch} | {
        "policy_version": policy_version,
        "reason": reason,
        "validator": validator,
    }

    def build(rows: Repository) -> Values:
        filters: Values = submission_views.parse_filters(given)
        found = submission_views.build_submissions(ctx, rows, before=read_number(before), limit=PART, **filters)
        shown = {name: given[name] for name in filters}
        return {"submissions": found, "filters": shown}

    return await show(pages, request, "submissions.html", build)


@router.get("/epochs")
async def show_epochs(pages: Pages, request: Request, before: str = "") -> Response:
    """Epochs, newest first."""
    return await show(
        pages,
        request,
        "epochs.html",
        lambda rows: {"epochs": pool_views.build_epochs(pages.ctx, rows, before=read_number(before), limit=PART)},
    )


@router.get("/policies")
async def show_policies(pages: Pages, request: Request, before: str = "") -> Response:
    """Policies, newest first."""
    return await show(
        pages,
        request,
        "policies.html",
        lambda rows: {"policies": pool_views.build_policies(pages.ctx, rows, before=read_number(before), limit=PART)},
    )


@router.get("/cases")
async def show_cases(pages: Pages, request: Request, before: str = "") -> Response:
    """Slashing cases, newest first."""
    return await show(
        pages,
        request,
        "cases.html",
        lambda rows: {
            "cases": case_views.build_cases(rows, before=_read_case_key(before), limit=PART),
            "veto_window": pages.ctx.terms.veto_window,
        },
    )


@router.get("/cases/{receipt_hash}")
async def show_case(pages: Pages, request: Request, receipt_hash: str) -> Response:
    """One case: its votes, the window of its veto, its outcome and its transactions."""
    return await show(
        pages, request, "case.html", lambda rows: {"case": case_views.build_case(pages.ctx, rows, receipt_hash)}
    )


@router.get("/validators")
async def show_validators(pages: Pages, request: Request) -> Response:
    """Validators, with what they have judged."""
    return await show(
        pages,
        request,
        "validators.html",
        lambda rows: {"judges": pool_views.build_judges(pages.ctx, rows, now=pages.ctx.clock()).items},
    )


@router.get("/find")
async def find(pages: Pages, request: Request, q: str = "") -> Response:
    """Lead to what has an address, a hash or a number."""
    text = q.strip()
    if is_address(text):
        is_node = await pages.ctx.database.query(lambda rows: rows.has_node(text))
        return RedirectResponse(f"/nodes/{text}" if is_node else f"/addresses/{text}", status_code=303)
    digits = text.lower().removeprefix("0x")
    if 8 <= len(digits) <= 64 and all(c in "0123456789abcdef" for c in digits):
        return RedirectResponse(f"/submissions/0x{digits}", status_code=303)
    message = "Enter an address with its checksum, or at least 8 digits of a receipt's hash."
    return show_error(pages, request, ProtocolError("bad_search", message, status=404))


def _require_address(text: str) -> Address:
    if not is_address(text):
        raise ProtocolError("bad_address", f"{text[:64]} is not an address with its checksum", status=404)
    return Address(text)


def read_number(text: str) -> int | None:
    """Return the key of a list from the address of a page. What is not a number stands for the first part."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= MAX_DIGITS else None


def _read_case_key(text: str) -> str:
    block, _, receipt_hash = text.partition("-")
    is_key = read_number(block) is not None and is_hash(receipt_hash)
    return text if is_key else ""
