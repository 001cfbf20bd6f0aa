"""A pool on random weights: alarms are raised, new tasks are paused with the reason, and a command resumes them.

The slice drives the cycles of a network in this process with small bounds. The full version runs the commands of an
operator and a contributor as processes, with the default bounds.
"""

import asyncio
import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
import tomlkit
from rich.console import Console
from structlog.testing import capture_logs
from typer.testing import CliRunner

import trainer.loop
import worker.loop
from covey import cli
from covey.demo.participants import DemoOptions, Participants
from covey.errors import ProtocolError
from covey.local.keeper import stop_keeper
from covey.local.screen import Screen
from covey.model.policy_files import save_policy
from covey.model.tiny import build_model, build_tokenizer
from covey.protocol.learning_signs import LearningSign
from covey.protocol.status import StepState
from covey.runtime.http import find_free_ports
from tests.e2e.submitting import hand_in, judge_all, list_submissions
from tests.e2e.walk import Walk, open_walk

pytestmark = [pytest.mark.e2e]
ROOT = Path(__file__).resolve().parents[2]
OPTIONS = DemoOptions(steps=6, workers=1, cheats=0, max_staleness=0)
SIGNS = [
    LearningSign.TRUNCATED,
    LearningSign.CONSTANT_REWARD,
    LearningSign.NO_LIVE_GROUP,
    LearningSign.ZERO_GRADIENT,
]
BOUND, PAUSE_BOUND = 5, 20
"""Default number of steps of an alarm, and of dead steps before a pause."""
SLACK = 5
"""Number of steps by which both may be late."""
HANG_S = 1200.0
METERED = {
    "coordinator": "covey_request_seconds_count",
    "trainer": 'covey_cycles_total{outcome="done"}',
    "validator-1": 'covey_cycles_total{outcome="done"}',
}
"""Processes that serve metrics, each with one of its series."""


def save_random_policy(folder: Path) -> Path:
    """Save a model that has learned nothing. It ends a completion of 8 tokens in time once in 30 times."""
    save_policy(build_model(7), build_tokenizer(), folder, "bfloat16")
    return folder


class RandomParticipants(Participants):
    """A pool on random weights with two small groups per step, and a trainer with bounds of two steps."""

    def __init__(self, folder: Path, options: DemoOptions) -> None:
        super().__init__(folder, options, policy=save_random_policy(folder / "random"))

    def _write(self, name: str, values: Mapping[str, Any]) -> Any:
        if name == "pool":
            values["params"].update({"group_size": 4, "groups_per_step": 2, "groups_per_task": 2})
        if name == "trainer":
            values = {**values, "stop_when_dead": 2, "alarms": {"steps": 2}}
        return super()._write(name, values)


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "trainer" / "metrics.jsonl").read_text().splitlines()]


def list_alarms(lines: list[dict[str, Any]]) -> list[tuple[int, str]]:
    """Return steps and signs of the alarms that say that a run cannot learn."""
    return [(line["step"], line["sign"]) for line in lines if line["event"] == "alarm" and "advice" in line]


async def train_step(walk: Walk, number: int) -> None:
    await walk.publish()
    await walk.follow()
    while walk.get_status().steps[number].state == StepState.OPEN:
        await hand_in(walk, "worker-1")
        await judge_all(walk)
    await trainer.loop.cycle(walk.trainer)


async def show_screen(walk: Walk, folder: Path) -> str:
    """Return what `covey up` prints where its output is not a terminal.

    The screen waits only STATUS_SECONDS for an answer and asks again later, as on a busy machine here. There a status
    that was expensive is served again for a while, so it may be of the time before the pause.
    """
    console, deadline = Console(file=(out := io.StringIO()), width=400), time.monotonic() + HANG_S
    with Screen(console, folder, walk.network.url) as screen:
        while screen.status is None or screen.status.pause is None:
            assert time.monotonic() < deadline, "the coordinator gave no status with a pause"
            await asyncio.to_thread(screen.show, [])
            await asyncio.sleep(0.1)
    return out.getvalue()


async def test_walk__random_weights__alarms_pause_and_resume(tmp_path: Path):
    folder = tmp_path / "net"
    async with open_walk(folder, OPTIONS, participants=RandomParticipants) as walk:
        with capture_logs() as logs:
            for number in range(2):
                await train_step(walk, number)
            assert await trainer.loop.cycle(walk.trainer) is not None  # reports, and waits for a batch in vain
        assert list_alarms(read_metrics(folder)) == [(1, sign.value) for sign in SIGNS]
        logged = [log["event"] for log in logs if log["log_level"] in ("warning", "error")]
        assert [sign.sentence for sign in SIGNS] == [event for event in logged if event in {s.sentence for s in SIGNS}]
        assert "new tasks are paused, because the run cannot learn" in logged

        await walk.publish()
        await walk.follow()
        ctx, before = walk.workers["worker-1"], len(list_submissions(walk))
        claim = asyncio.create_task(worker.loop.claim(ctx))
        await walk.until(claim.done, walk.run_jobs)
        with pytest.raises(
            ProtocolError, match="the pool is paused: its trainer has paused it after 2 steps"
        ) as caught:
            await claim
        assert caught.value.code == "pool_paused"
        shown = await show_screen(walk, folder)
        assert (
            "the run cannot learn: most completions are cut at the token limit. Create a pool with a larger " in shown
        )
        assert f"Resume with covey pool resume {folder}\n" in shown

        resumed = await asyncio.to_thread(CliRunner().invoke, cli.app, ["pool", "resume", str(folder)])
        assert resumed.exception is None
        assert walk.get_status().pause is None
        await hand_in(walk, "worker-1")
        assert len(list_submissions(walk)) == before + 1
        await trainer.loop.cycle(walk.trainer)
        assert walk.get_status().pause is None, "one pause is not asked for twice"


# -- the full version


def covey(*arguments: str, folder: Path) -> str:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "400"}
    command = [sys.executable, "-m", "covey", *arguments]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[Path]:
    """A folder with a pool on random weights. It has two workers' tasks per step, so that a step takes little time."""
    save_random_policy(tmp_path / "random")
    port = min(find_free_ports(4))
    covey("init", "pool", "pool", "--model", str(tmp_path / "random"), "--port", str(port), folder=tmp_path)
    file = tmp_path / "pool" / "pool.toml"
    document: Any = tomlkit.parse(file.read_text())
    document["params"].update({"group_size": 4, "groups_per_step": 4, "groups_per_task": 2})
    document["params"]["model"]["max_completion_tokens"] = 8
    file.write_text(tomlkit.dumps(document))
    for name, free in zip(METERED, find_free_ports(len(METERED)), strict=True):
        settings = tmp_path / "pool" / f"{name}.toml"
        metered: Any = tomlkit.parse(settings.read_text())
        metered["metrics_port"] = free
        settings.write_text(tomlkit.dumps(metered))
    yield tmp_path / "pool"
    for lock in tmp_path.glob("*/.up.lock"):
        stop_keeper(lock.parent)


def get_status(url: str) -> dict[str, Any]:
    status: dict[str, Any] = httpx.get(f"{url}/v1/status", timeout=60).json()
    return status


def wait_for(url: str, what: str, is_reached: Any) -> dict[str, Any]:
    deadline = time.monotonic() + HANG_S
    while not is_reached(status := get_status(url)):
        assert time.monotonic() < deadline, f"{what}: {status}"
        time.sleep(0.5)
    return status


@pytest.mark.slow
@pytest.mark.full
def test_up__random_weights_and_default_bounds__alarms_pause_and_resume(pool: Path):
    root = pool.parent
    url = f"http://127.0.0.1:{tomlkit.parse((pool / 'coordinator.toml').read_text())['port']}"
    covey("up", "pool", "--detach", folder=root)
    covey("join", url, "worker", "--deployment", "pool/chain/deployment.json", folder=root)
    covey("worker", "enroll", "worker", folder=root)
    covey("up", "worker", "--detach", folder=root)
    wait_for(url, "pause", lambda status: status["pause"] is not None)
    lines = read_metrics(pool)
    for name, series in METERED.items():
        metered = tomlkit.parse((pool / f"{name}.toml").read_text())["metrics_port"]
        assert series in httpx.get(f"http://127.0.0.1:{metered}/metrics", timeout=60).text, name
    first = {sign: step for step, sign in reversed(list_alarms(lines))}
    assert {sign: step for sign, step in first.items() if step >= BOUND + SLACK} == {}
    assert {"truncated", "no_live_group", "zero_gradient"} <= set(first)
    (pause,) = [line for line in lines if line["event"] == "pause"]
    assert pause["step"] < PAUSE_BOUND + SLACK
    time.sleep(3)  # the screen asks every two seconds
    shown = (pool / "logs" / "up.log").read_text()
    assert "the run cannot learn: most completions are cut at the token limit. Create a pool with" in shown
    assert "the pool is paused: its trainer has paused it after" in shown
    assert "Resume with covey pool resume pool" in shown
    assert "new tasks are paused, because the run cannot learn" in (pool / "logs" / "trainer.log").read_text()
    paused = wait_for(url, "end of the leases", lambda status: not status["tasks"].get("ASSIGNED"))
    deadline = time.monotonic() + HANG_S
    while "pool_paused" not in (root / "worker" / "logs" / "worker.log").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.5)
    assert sum(get_status(url)["submissions"].values()) == sum(paused["submissions"].values()), "no task is assigned"

    covey("pool", "resume", "pool", folder=root)
    count = sum(paused["submissions"].values())
    wait_for(url, "work after the pause", lambda status: sum(status["submissions"].values()) > count)
