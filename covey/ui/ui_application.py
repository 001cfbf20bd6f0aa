"""The application of `covey ui`: a list of runs, a page of each run, its completions by step, and comparisons."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote, urlencode

from fastapi import FastAPI, Query, Request, Response
from fastapi.responses import RedirectResponse
from starlette.exceptions import HTTPException
from starlette.middleware.trustedhost import TrustedHostMiddleware

from covey.errors import ProtocolError
from covey.reporting.page_assets import serve_assets
from covey.reporting.page_headers import PageHeaders
from covey.reporting.page_templates import ASSETS, PageTemplates
from covey.runtime.cycle import stop_signals
from covey.runtime.http import find_free_ports, serve_http
from covey.ui.run_folders import RunFolders
from covey.ui.run_reader import MAX_COMPARED, RunReader

LOOPBACK = "127.0.0.1"
HOSTS = (LOOPBACK, "localhost")
"""Host names that are answered. A page of another site could otherwise read runs under a name that leads here."""
HTML = "text/html; charset=utf-8"
NO_STORE = {"cache-control": "no-store"}
MAX_DIGITS = 9
Runs = Annotated[list[str] | None, Query()]


def build_ui(folders: RunFolders) -> FastAPI:
    """Return the application for a folder of runs. It only reads."""
    reader, templates = RunReader(folders), PageTemplates(Path(__file__).parent / "templates")
    app = FastAPI(title="Covey runs", openapi_url=None)
    app.mount("/assets", serve_assets(ASSETS))

    def show(request: Request, template: str, *, status: int = 200, **values: Any) -> Response:
        common = {"name": folders.path.name or "/", "folder": str(folders.path), "path": request.url.path}
        return Response(templates.render(template, **common, **values), status, NO_STORE, HTML)

    @app.get("/")
    def show_runs(request: Request, seen: str = "") -> Response:
        version = reader.compute_version()
        if version == seen:
            return _answer_unchanged()
        runs, problems = reader.list_runs()
        return show(request, "runs.html", runs=runs, problems=problems, most=MAX_COMPARED, version=version)

    @app.get("/runs/{run}")
    def show_run(request: Request, run: str, seen: str = "") -> Response:
        version = reader.compute_version([run])
        if version == seen:
            return _answer_unchanged()
        return show(request, "run.html", run=reader.read_run(run), version=version)

    @app.get("/runs/{run}/completions")
    def choose_step(run: str, step: str = "") -> Response:
        shown = _read_step(step) if step else reader.read_samples(run, None).step
        return RedirectResponse(f"/runs/{quote(run, safe='')}/completions/{shown}", 303, NO_STORE)

    @app.get("/runs/{run}/completions/{step}")
    def show_completions(request: Request, run: str, step: str) -> Response:
        return show(request, "samples.html", run=run, page=reader.read_samples(run, _read_step(step)))

    @app.get("/compare")
    def compare(request: Request, run: Runs = None, seen: str = "") -> Response:
        names = run or []
        version = reader.compute_version(names)
        if version == seen:
            return _answer_unchanged()
        query = urlencode([("run", name) for name in names])
        return show(request, "comparison.html", page=reader.compare(names), query=query, version=version)

    @app.exception_handler(ProtocolError)
    async def on_refusal(request: Request, error: ProtocolError) -> Response:
        return show(request, "error.html", status=error.status, code=error.code, message=error.message)

    @app.exception_handler(HTTPException)
    async def on_http_error(request: Request, error: HTTPException) -> Response:
        code = "not_found" if error.status_code == 404 else "bad_request"
        return show(request, "error.html", status=error.status_code, code=code, message=str(error.detail))

    app.add_middleware(TrustedHostMiddleware, allowed_hosts=[*HOSTS])
    app.add_middleware(PageHeaders)
    return app


def serve_ui(folders: RunFolders, *, port: int, on_bound: Callable[[str], None]) -> None:
    """Serve the pages on this machine until a stop signal. `on_bound` is called with their address.

    Port 0 is a free one. Raises OperatorError("address_in_use") if the port is taken.
    """

    async def run() -> None:
        chosen, stop = port or find_free_ports(1)[0], asyncio.Event()
        with stop_signals(stop):
            await serve_http(
                build_ui(folders),
                host=LOOPBACK,
                port=chosen,
                stop=stop,
                on_bound=lambda: on_bound(f"http://{LOOPBACK}:{chosen}"),
            )

    asyncio.run(run())


def _answer_unchanged() -> Response:
    """Answer a page that asks whether it is still current. htmx changes nothing then."""
    return Response(status_code=204, headers=NO_STORE)


def _read_step(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= MAX_DIGITS):
        raise ProtocolError("no_completions", f"{text[:64]} is not the number of a step.", status=404)
    return int(text)
