"""Pages that lead from a submission to its evidence and its place in an epoch, and the page of the API."""

import asyncio
import time
from functools import cache
from typing import Any

from fastapi import APIRouter, Request, Response

from coordinator.db.repository import Repository
from coordinator.pages import evidence_views, pool_views, submission_views
from coordinator.pages.guard import charge
from coordinator.pages.html_routes import HTML, PART, Pages, Values, read_number, show, show_error
from coordinator.pages.pages_state import PagesState
from coordinator.pages.templates_engine import render
from covey.errors import CoveyError, ProtocolError
from covey.protocol.api.pages import SubmissionItemView
from covey.protocol.object_keys import build_epoch_key, build_evidence_key, build_submission_key
from covey.protocol.status import SubmissionState

router = APIRouter()
_DIGITS = "0123456789abcdef"
_PUBLIC_STATES = ("closed", "posted", "final")
"""States of epochs whose completions can be read."""


@router.get("/submissions/{receipt_hash}")
async def show_submission(pages: Pages, request: Request, receipt_hash: str) -> Response:
    """One submission: its verdicts with their evidence, its pay, and how to repeat the judgement."""
    ctx = pages.ctx
    try:
        item, turns = await _find(pages, receipt_hash)
        is_decided = item.state != SubmissionState.SUBMITTED
        bundles = await pages.evidence.load(evidence_views.list_evidence(turns, is_decided=is_decided))
    except CoveyError as error:
        return show_error(pages, request, error)

    def build(rows: Repository) -> Values:
        newest = submission_views.find_submission(ctx, rows, item.receipt_hash)
        now_decided = newest.state != SubmissionState.SUBMITTED
        found = rows.list_turn_items(newest.receipt_hash)
        votes = evidence_views.describe_votes(
            found, bundles, ctx.params.verification.thresholds, is_decided=is_decided and now_decided
        )
        return {
            "item": newest,
            "votes": votes,
            "is_public": newest.epoch_state in _PUBLIC_STATES,
            "file": build_submission_key(ctx.config.pool, newest.task, newest.lease, newest.work_key),
            "evidence": {vote.evidence_hash: build_evidence_key(ctx.config.pool, vote.evidence_hash) for vote in votes},
            "options": _list_options(pages),
        }

    return await show(pages, request, "submission.html", build)


@router.get("/submissions/{receipt_hash}/completions")
async def show_completions(pages: Pages, request: Request, receipt_hash: str) -> Response:
    """The completions of a submission whose epoch is closed, for the page of the submission or as a page."""
    is_part = "hx-request" in request.headers
    try:
        item, _ = await _find(pages, receipt_hash)
        if item.epoch_state not in _PUBLIC_STATES:
            raise ProtocolError("not_public", "completions are private until their epoch is closed", status=404)
        found = await pages.completions.read(task=item.task, lease=item.lease, work_key=item.work_key)
    except CoveyError as error:
        if is_part:  # A script would leave the place of an error empty.
            return Response(render("message.html", message=error.message), media_type=HTML)
        return show_error(pages, request, error)
    common = {"item": item, "completions": found, "has_text": bool(pages.ctx.config.pages_tokenizer)}
    template = "completions.html" if is_part else "completions_page.html"
    page, seconds = await asyncio.to_thread(_render_timed, template, pages.list_common(request) | common)
    charge(request, seconds)
    return Response(page, media_type=HTML, headers={"vary": "hx-request"})


def _render_timed(template: str, values: Values) -> tuple[bytes, float]:
    """Return a page, and the CPU seconds that it took. Texts of peers may take a second."""
    started = time.thread_time()
    page = render(template, **values)
    return page, time.thread_time() - started


@router.get("/epochs/{number}")
async def show_epoch(pages: Pages, request: Request, number: str, before: str = "") -> Response:
    """One epoch: its roots, its leaves, and a check of a leaf in the viewer's browser."""
    ctx = pages.ctx

    def build(rows: Repository) -> Values:
        wanted = read_number(number)
        if wanted is None:
            raise ProtocolError("unknown_epoch", f"{number[:32]} is not the number of an epoch", status=404)
        epoch = pool_views.get_epoch(ctx, rows, wanted)
        found = submission_views.build_submissions(ctx, rows, before=read_number(before), limit=PART, epoch=wanted)
        return {"epoch": epoch, "submissions": found, "file": build_epoch_key(ctx.config.pool, epoch.data_hash)} | {
            "windows": ctx.terms.challenge_window + ctx.terms.veto_window,
            "ledger": ctx.deployment.epoch_ledger,
        }

    return await show(pages, request, "epoch.html", build)


@router.get("/docs")
async def show_docs(pages: Pages, request: Request) -> Response:
    """The routes of the API and of the pages, without anything from another host."""
    documents = (request.app.openapi(), await asyncio.to_thread(_describe_api))
    return Response(render("docs.html", **pages.list_common(request), documents=documents), media_type=HTML)


@router.get("/{path:path}")
async def show_nothing(pages: Pages, request: Request, path: str) -> Response:
    """The page of an address that does not exist."""
    return show_error(pages, request, ProtocolError("not_found", f"There is no page /{path[:80]}.", status=404))


async def _find(pages: PagesState, text: str) -> tuple[SubmissionItemView, Any]:
    digits = text.lower().removeprefix("0x")
    if not 8 <= len(digits) <= 64 or any(c not in _DIGITS for c in digits):
        raise ProtocolError("unknown_submission", f"{text[:66]} is not the hash of a receipt", status=404)

    def read(rows: Repository) -> tuple[SubmissionItemView, Any]:
        item = submission_views.find_submission(pages.ctx, rows, f"0x{digits}")
        return item, rows.list_turn_items(item.receipt_hash)

    return await pages.ctx.database.query(read)


def _list_options(pages: PagesState) -> str:
    """Return the options of a command that repeats a judgement."""
    config = pages.ctx.config
    relays = " ".join(f"--relay {url}" for url in config.relays or ("RELAY_URL",))
    return f"--deployment deployment.json --storage {config.base_url} --pool {config.pool} {relays}"


@cache
def _describe_api() -> dict[str, Any]:
    from coordinator.api.application import build_routes  # which takes a second

    return build_routes().openapi()
