"""Watches the pool for the worker's own receipts, and reports in the worker's log what is false or due.

It sends no transaction, because a node's key holds no money. `covey watch --act` does what is due.
"""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field

from covey.console.account import Account
from covey.console.pool_watcher import PoolWatcher
from covey.network.watch_steps import WatchedPool, list_reports, list_steps
from covey.protocol.ids import Address
from covey.runtime.cycle import CycleResult
from covey.runtime.log import get_logger
from worker.config import WorkerConfig

WATCH_SECONDS = 60.0
"""Seconds between two looks at the pool."""
OWN_FILES = "outgoing/sent/*.json"
"""Receipts with the operator's promise, in the worker's home."""


@dataclass(slots=True)
class PoolWatch:
    """A pool that is watched, and what the last look has reported. Example: `PoolWatch(open_watcher)`."""

    open_look: Callable[[], Callable[[], WatchedPool]]
    """Opens a watcher, which needs the chain, and returns its function `look`."""
    look: Callable[[], WatchedPool] | None = None
    """None before the first look."""
    reported: set[str] = field(default_factory=set)
    """What the last look has found. It is not reported again while it lasts."""


def build_watch(config: WorkerConfig, contributor: Address) -> PoolWatch:
    """Return the watch of a worker. It keeps events, files of epochs and proofs in the folder `watch` of the home."""

    def open_look() -> Callable[[], WatchedPool]:
        account = Account(config.deployment, None, config.pool, rpc_url=config.rpc_url)
        watcher = PoolWatcher(
            account, contributor, coordinator_url=config.coordinator_url, folder=config.home, sent=OWN_FILES
        )
        return watcher.look

    return PoolWatch(open_look)


async def watch_pool(watch: PoolWatch) -> CycleResult:
    """Look at the pool, and log what is false and what is due, once each."""
    log = get_logger()
    if watch.look is None:
        watch.look = await asyncio.to_thread(watch.open_look)
    seen = await asyncio.to_thread(watch.look)
    found: set[str] = set()
    for report in list_reports(seen):
        if report["code"] != "true" and _is_new(watch, found, report):
            about = {name: report[name] for name in report if name not in ("event", "text")}
            log.warning("the pool is watched", what=report["event"], message=report["text"], **about)
    for step in list_steps(seen):
        if _is_new(watch, found, {"verb": step.verb.value, "about": step.about}):
            log.info("due: covey watch --act does it", verb=step.verb.value, about=step.about, message=step.text)
    watch.reported = found
    return CycleResult.IDLE


def _is_new(watch: PoolWatch, found: set[str], values: dict[str, str | int]) -> bool:
    key = json.dumps(values, sort_keys=True)
    found.add(key)
    return key not in watch.reported
