"""What the routes of the pages share: their context, answers that are kept, and the streams of events."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import urlencode

from fastapi import Request

from coordinator.api.process.cached_page import CachedPage
from coordinator.api.process.changes import Changes
from coordinator.pages import pool_views
from coordinator.pages.answers import Answers
from coordinator.pages.chain_facts import LOOK_SECONDS
from coordinator.pages.completions import Completions
from coordinator.pages.context import PagesContext
from coordinator.pages.event_streams import Events
from coordinator.pages.evidence_views import EvidenceReader
from coordinator.pages.policy_sources import ANSWER_SECONDS, MAX_SOURCES
from coordinator.pages.work_leaves import WorkTrees
from covey.errors import TransientError
from covey.runtime.bounded_executor import BoundedExecutor
from covey.runtime.cycle import wait_or_stop
from covey.runtime.log import get_logger


@dataclass(frozen=True, slots=True, kw_only=True)
class PagesState:
    """Example: `async with state.run(): ...` keeps it up to date within the block."""

    ctx: PagesContext
    answers: Answers
    changes: Changes
    events: Events
    evidence: EvidenceReader
    completions: Completions
    trees: WorkTrees

    def name(self, request: Request) -> str:
        """Return the key of the answer to a request: its path, and what the route reads of its query."""
        known = {parameter.alias for parameter in request.scope["route"].dependant.query_params}
        query = sorted((name, value) for name, value in request.query_params.items() if name in known)
        return f"{request.url.path}?{urlencode(query)}"

    def list_common(self, request: Request) -> dict[str, Any]:
        """Return the values that every page shows."""
        ctx = self.ctx
        return {
            "pool": ctx.config.pool,
            "name": ctx.params.name,
            "unit": ctx.unit,
            "path": request.url.path,
            "api_url": ctx.config.base_url,
        }

    def get_address(self, request: Request) -> str:
        """Return the address of a viewer."""
        return request.client.host if request.client else ""

    @asynccontextmanager
    async def run(self) -> AsyncIterator[None]:
        """Run the tasks of this process within the block."""
        loops = self.changes.run(), self.events.run(), self._look_at_chain(), self._look_at_sources()
        tasks = [asyncio.create_task(each) for each in loops]
        for task in tasks:
            task.add_done_callback(lambda _: self.ctx.stop.set())  # None of them ends before the process is to end.
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _look_at_chain(self) -> None:
        while not self.ctx.stop.is_set():
            try:
                await self.ctx.executor.run(self.ctx.chain.refresh)
            except TransientError as error:
                get_logger().warning("the chain's node does not answer", code=error.code, message=error.message)
            await wait_or_stop(self.ctx.stop, LOOK_SECONDS)

    async def _look_at_sources(self) -> None:
        """Ask origins and relays in a thread of its own: strangers run them, and may answer as slowly as they like."""
        lane = BoundedExecutor("origins and relays", threads=1, patience_s=MAX_SOURCES * ANSWER_SECONDS)
        while not self.ctx.stop.is_set():
            try:
                await lane.run(self.ctx.sources.refresh)
            except TransientError as error:
                get_logger().warning("origins and relays were not asked", code=error.code, message=error.message)
            await wait_or_stop(self.ctx.stop, LOOK_SECONDS)


def build_state(ctx: PagesContext) -> PagesState:
    """Return the state of a new process."""
    changes = Changes(ctx.database, poll_s=max(0.1, ctx.config.poll_seconds))
    overview = CachedPage(ctx.database, lambda rows: pool_views.build_overview(ctx, rows).model_dump_json().encode())
    return PagesState(
        ctx=ctx,
        answers=Answers(ctx.database),
        changes=changes,
        events=Events(changes, overview, ctx.stop),
        evidence=EvidenceReader(ctx),
        completions=Completions(ctx),
        trees=WorkTrees(ctx),
    )


async def get_pages(request: Request) -> PagesState:
    """Return the state of this process, as a parameter of routes."""
    return cast(PagesState, request.app.state.pages)
