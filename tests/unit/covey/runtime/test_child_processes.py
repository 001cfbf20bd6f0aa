"""Processes of one command: kept running, and ended together. Those that start others are in integration tests."""

import asyncio
import multiprocessing
import os
from functools import partial
from pathlib import Path

import pytest

from covey.errors import OperatorError
from covey.runtime.child_processes import ChildProcesses

pytestmark = pytest.mark.integration
HANG_S = 300
"""Deadline against hanging, in seconds. Only a wrong implementation reaches it."""


async def test_run__processes_end_as_soon_as_they_start__gives_up():
    processes = ChildProcesses([partial(len, 0)], name="broken")  # type: ignore[arg-type]
    async with asyncio.timeout(HANG_S):
        with pytest.raises(OperatorError, match=r"processes_end: 5 broken processes"):
            await processes.run(asyncio.Event())
    assert multiprocessing.active_children() == []


async def test_run__one_is_killed_and_then_all_are_stopped__is_replaced_and_none_is_left(tmp_path: Path):
    stop = asyncio.Event()
    waits = [partial(os.execlp, "sh", "sh", "-c", f"echo x >> {tmp_path / name}; exec sleep 600") for name in "ab"]
    processes = ChildProcesses(waits, name="waiting")
    running = asyncio.create_task(processes.run(stop))
    async with asyncio.timeout(HANG_S):
        await await_starts(tmp_path, ["a", "b"])
        processes.running[0].kill()
        await await_starts(tmp_path, ["a", "a", "b"])
        stop.set()
        await running
    assert [process.exitcode for process in processes.running.values()] == [-15, -15]


async def await_starts(folder: Path, names: list[str]) -> None:
    """Wait until the processes with these names have started, one that has started twice twice."""
    while sorted(path.name for path in folder.iterdir() for _ in path.read_text().split()) != names:  # noqa: ASYNC110
        await asyncio.sleep(0.02)
