"""One worker, two pools: it works in both, and leaves the one that has no work."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import httpx
import pytest

from covey.demo.participants import DemoOptions
from covey.protocol.status import SubmissionState
from covey.runtime.http import find_free_ports
from tests.e2e.submitting import ShortParticipants
from tests.e2e.walk import Walk, open_walk

pytestmark = [pytest.mark.e2e]

SECONDS = 240


def count_submissions(walk: Walk) -> int:
    with walk.coordinator.database.read() as rows:
        return len(rows.list_submissions(*SubmissionState))


@pytest.mark.full  # test_three_pools.py has the same walk, and more.
async def test_worker_run__two_pools__works_in_the_second_once_the_first_has_no_work(tmp_path: Path):
    options = DemoOptions(steps=1, workers=1, cheats=0, max_staleness=0)
    async with (
        open_walk(tmp_path / "one", options, participants=ShortParticipants) as one,
        open_walk(tmp_path / "two", options, participants=ShortParticipants) as two,
    ):
        for walk in (one, two):
            await walk.publish()
            await walk.follow()
            walk.run_jobs()
        command = [sys.executable, "-m", "covey", "worker", "run", "--prefer", "first"]
        for name in ("one", "two"):
            command += ["--config", str(tmp_path / name / "worker-1.toml")]
        (port,) = find_free_ports(1)
        for setting in ("engine=hf", "idle_seconds=2", "stay_seconds=4", f"metrics_port={port}"):
            command += ["--set", setting]
        with (tmp_path / "worker.log").open("wb") as log:
            worker = await asyncio.create_subprocess_exec(*command, stdout=log, stderr=log, env=dict(os.environ))
            try:
                await one.until(
                    lambda: worker.returncode is not None or min(count_submissions(one), count_submissions(two)) > 0,
                    one.run_jobs,
                    two.run_jobs,
                    seconds=SECONDS,
                )
                assert worker.returncode is None, (tmp_path / "worker.log").read_text()
                async with httpx.AsyncClient(trust_env=False, timeout=60) as http:
                    metrics = (await http.get(f"http://127.0.0.1:{port}/metrics")).text
                assert 'covey_cycles_total{outcome="done"}' in metrics
                worker.send_signal(signal.SIGTERM)
                assert await asyncio.wait_for(worker.wait(), SECONDS) == 0
            finally:
                if worker.returncode is None:
                    worker.kill()
                    await worker.wait()
        said = (tmp_path / "worker.log").read_text()
        assert said.index("leaving the pool") < said.rindex("worker started")
