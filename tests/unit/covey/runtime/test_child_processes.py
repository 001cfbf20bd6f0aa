"""Processes of one command: kept running, and ended together. Those that start others are in integration tests."""

import asyncio
import multiprocessing
import os
from functools import partial
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from covey.errors import OperatorError, TransientError
from covey.runtime import child_processes
from covey.runtime.child_processes import ChildProcesses

pytestmark = pytest.mark.integration
HANG_S = 300
"""Deadline against hanging, in seconds. Only a wrong implementation reaches it."""


def _end_early(path: Path) -> None:
    """Note the start, and raise an error that may pass."""
    with path.open("a") as file:
        file.write("x\n")
    raise TransientError("database_unavailable", "nobody answers")


def _refuse() -> None:
    raise OperatorError("unknown_tables", "the tables are of a later version", fix="Install it")


async def test_run__processes_end_early_again_and_again__go_on_with_growing_pauses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Until 7 starts: a server that is killed or finds no database must not end the command."""
    monkeypatch.setattr(child_processes, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(child_processes, "FIRST_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(child_processes, "MAX_PAUSE_SECONDS", 0.04)
    stop = asyncio.Event()
    with capture_logs() as logs:
        running = asyncio.create_task(ChildProcesses([partial(_end_early, tmp_path / "a")], name="broken").run(stop))
        async with asyncio.timeout(HANG_S):
            await await_starts(tmp_path, ["a"] * 7)
        stop.set()
        await running
    assert [line["pause_s"] for line in logs[:4]] == [0.01, 0.02, 0.04, 0.04]
    assert {line["error"] for line in logs} == {"database_unavailable: nobody answers"}
    assert multiprocessing.active_children() == []


async def test_run__error_that_no_start_cures__ends_all_and_is_raised(tmp_path: Path):
    waits = partial(os.execlp, "sh", "sh", "-c", "exec sleep 600")
    async with asyncio.timeout(HANG_S):
        with pytest.raises(OperatorError) as caught:
            await ChildProcesses([waits, _refuse], name="server").run(asyncio.Event())
    assert str(caught.value) == "unknown_tables: the tables are of a later version. Install it"
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
    while sorted(path.name for path in folder.iterdir() for _ in path.read_text().split())[: len(names)] != names:  # noqa: ASYNC110
        await asyncio.sleep(0.02)
