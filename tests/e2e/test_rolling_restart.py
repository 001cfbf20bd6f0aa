"""An upgrade under load: every process of a coordinator is replaced, one at a time, and no promise is broken.

API processes are started by their parent from the code that is on disk, so an upgrade replaces the code first. Then
each API process is ended, each jobs process, and `serve` itself.
"""

import asyncio
import io
import shutil
import subprocess
import tarfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.chaos.__main__ import Chaos, open_chaos
from tests.fakes.coordinator_processes import ROOT

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.full]
PACKAGES = ("covey", "coordinator", "worker", "validator", "trainer")
SHARED = ("coordinator/db/models.py", "coordinator/db/migrations", "covey/protocol")
"""What processes of both versions share: tables, and bodies of requests."""
LOAD = 20
"""Number of promises after each replacement, which shows that work goes on."""
HANG_S = 300.0
"""Deadline against hanging, in seconds, of each step."""


def run_git(*arguments: str) -> bytes | None:
    """Return the output of git. None if it fails, as without history."""
    try:
        return subprocess.run(["git", "-C", str(ROOT), *arguments], check=True, capture_output=True, timeout=60).stdout
    except (OSError, subprocess.SubprocessError):
        return None


def put_version_before(code: Path) -> None:
    """Put the commit before this one into `code`, or this version if they do not share tables and requests."""
    is_compatible = run_git("diff", "--quiet", "HEAD~1", "--", *SHARED) is not None
    data = run_git("archive", "HEAD~1", *PACKAGES) if is_compatible else None
    if data is None:
        put_this_version(code)
    else:
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            archive.extractall(code, filter="data")
    (code / "tests" / "fakes").mkdir(parents=True)
    shutil.copy(ROOT / "tests" / "fakes" / "moved_clock.py", code / "tests" / "fakes")


def put_this_version(code: Path) -> None:
    """Replace the code in a folder, as the installation of a package does."""
    for package in PACKAGES:
        shutil.rmtree(code / package, ignore_errors=True)
        shutil.copytree(ROOT / package, code / package, ignore=shutil.ignore_patterns("__pycache__"))


async def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + HANG_S
    while not is_so():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)


async def replace_all(chaos: Chaos) -> None:
    """Replace one process after the other, each while work goes on."""
    processes, promises = chaos.processes, chaos.record.promises

    async def await_load() -> None:
        before = len(promises)
        await wait_until(lambda: len(promises) >= before + LOAD)

    await await_load()
    for old in processes.list_servers():
        count = len(processes.list_servers())
        old.terminate()
        await wait_until(
            lambda old=old, count=count: old not in (now := processes.list_servers()) and len(now) == count
        )
        await await_load()
    for name in ("jobs", "more jobs", "serve"):
        assert await asyncio.to_thread(processes.stop, name) == 0
        processes.start(name)
        await await_load()


def test_upgrade__from_the_commit_before_under_load__every_promise_is_kept(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    """Without history, or if the commit before has other tables or requests, this version replaces itself."""
    put_version_before(tmp_path)
    with open_chaos(0, has_servers=True) as chaos:
        chaos.processes.code = tmp_path

        async def upgrade() -> None:
            put_this_version(tmp_path)
            await replace_all(chaos)

        broken = asyncio.run(chaos.run(upgrade))
        if broken:
            chaos.report(broken)
    assert broken == [], capsys.readouterr().out
