"""Output of `covey up`: a table that is updated in place on a terminal, and otherwise lines for a readable log."""

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from covey.console.terminal import quote
from covey.errors import CoveyError
from covey.local.keeper import KeptProcess
from covey.local.logs import read_last
from covey.network.coordinator_client import CoordinatorClient
from covey.protocol.api.public import StatusView
from covey.protocol.learning_signs import LearningSign
from covey.protocol.status import SubmissionState

STATUS_SECONDS = 2.0
PAUSED = "the pool is paused: "
LAST_LINE = 70
"""Number of characters of a process's last log line that fit into the table."""


class Screen:
    """Display of a keeper. Example: `with Screen(Console(), folder, url) as screen: screen.show(keeper.kept)`."""

    def __init__(self, console: Console, folder: Path, coordinator_url: str | None) -> None:
        self._console, self._folder, self._url = console, folder, coordinator_url
        self._live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None
        self._asked_at = 0.0
        self._step = -1
        self._alarms: tuple[str, ...] = ()
        """Lines about alarms and a pause that were printed last."""
        self.status: StatusView | None = None
        """Last status from the coordinator. None before the first one."""

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def say(self, line: str) -> None:
        """Print a permanent line, without terminal control characters."""
        self._console.print(escape(quote(line)), highlight=False, soft_wrap=True)

    def show(self, kept: Sequence[KeptProcess]) -> None:
        """Print the state of all processes. The coordinator is asked at most every STATUS_SECONDS."""
        if self._url is not None and time.monotonic() - self._asked_at >= STATUS_SECONDS:
            self._asked_at = time.monotonic()
            self.status = asyncio.run(_ask(self._url)) or self.status
            if self._live is None and self.status is not None and self.status.step > self._step:
                self._step = self.status.step
                self.say(describe_status(self.status))
            self._say_alarms()
        if self._live is not None:
            self._live.update(self._build_table(kept), refresh=True)

    def _say_alarms(self) -> None:
        """Print alarms and a pause when they begin, and once more when a pause has ended."""
        if self.status is None:
            return
        alarms = describe_alarms(self.status, self._folder)
        for line in alarms:
            if line not in self._alarms:
                self.say(line)
        if any(line.startswith(PAUSED) for line in self._alarms) and self.status.pause is None:
            self.say("new tasks go on")
        self._alarms = alarms

    def _build_table(self, kept: Sequence[KeptProcess]) -> Table:
        title = f"{self._folder}" if self.status is None else f"{self._folder}: {describe_status(self.status)}"
        caption = escape("\n".join(map(quote, self._alarms))) or None
        heads = ("process", "state", "pid", "last error or log line")
        table = Table(*heads, title=escape(quote(title)), caption=caption, expand=True)
        for process in kept:
            running = process.running
            pid, line = ("", "") if running is None else (str(running.pid), read_last(running.log))
            shown = process.why if process.state in ("restarting", "failed") else line
            table.add_row(process.name, process.state, pid, escape(quote(shown[:LAST_LINE])))
        return table


def describe_status(status: StatusView) -> str:
    """Describe the status on one line.

    Example: "pool 1, step 3, submissions: 12 accepted, 0 rejected, 1 being judged; nodes: 2".
    """
    waiting = status.submissions.get(SubmissionState.SUBMITTED, 0)
    accepted = sum(node.accepted for node in status.nodes.values())
    rejected = sum(status.reasons.values())
    return (
        f"pool {status.pool}, step {status.step}, submissions: {accepted} accepted, {rejected} rejected, "
        f"{waiting} being judged; nodes: {len(status.nodes)}"
    )


def describe_alarms(status: StatusView, folder: Path) -> tuple[str, ...]:
    """Describe each sign that the run cannot learn on a line with its advice, and a pause on the last line.

    Example: ("the run cannot learn: no group has rewards that differ. Select tasks that ...",
    "the pool is paused: its operator has paused it. Resume with covey pool resume mypool").
    """
    lines = [f"the run cannot learn: {sign.sentence}. {sign.advice}" for sign in LearningSign if sign in status.signs]
    if status.pause is not None:
        lines.append(f"{PAUSED}{status.pause.reason}. Resume with covey pool resume {folder}")
    return tuple(lines)


async def _ask(url: str) -> StatusView | None:
    async with CoordinatorClient(url, None, chain_id=0, timeout_seconds=STATUS_SECONDS) as client:
        try:
            return await client.get_status()
        except CoveyError:
            return None
