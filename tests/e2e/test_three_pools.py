"""Three operators on one chain: a newcomer finds two pools that fit, earns in both, and leaves one without money."""

import asyncio
import contextlib
import io
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from covey.chain.deployment import Deployment
from covey.chain.history import History
from covey.console.account import Account
from covey.demo import demo_network
from covey.demo.demo_network import DemoNetwork
from covey.demo.participants import LEDGER_SECONDS, DemoOptions, Participants
from covey.devnet.deploy import derive_wallet, fund
from covey.protocol.ids import PoolId
from covey.protocol.status import SubmissionState
from tests.e2e.submitting import ShortParticipants
from tests.e2e.walk import Walk, open_walk, take_judgement
from tests.fakes.commands import invoke

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

SECONDS = 240
MOVE_SECONDS = 60
"""Time in which the worker must leave a pool once its escrow does not pay for another epoch."""
SHORT_BUDGET = 8 * 10**14
"""Escrow of the first pool. It pays all four tasks of 32 completions of at most 5 tokens, and one more."""


class QuickParticipants(ShortParticipants):
    """A pool whose epochs come as often as the contract allows."""

    def _write(self, name: str, values: Mapping[str, Any]) -> Any:
        if name == "pool":
            values["params"]["epoch_seconds"] = LEDGER_SECONDS
        return super()._write(name, values)


class NeedyParticipants(Participants):
    """A pool that asks for more memory than any machine has."""

    def _write(self, name: str, values: Mapping[str, Any]) -> Any:
        if name == "pool":
            values["params"]["needs"] = {"min_memory_bytes": 1 << 50, "accelerators": ["gpu:count=8;model=h100"]}
        return super()._write(name, values)


def make_options(seed: int) -> DemoOptions:
    """Return options whose seed decides all keys, so that each pool has an operator of its own."""
    return DemoOptions(steps=1, workers=1, cheats=0, max_staleness=0, seed=seed)


@contextlib.asynccontextmanager
async def open_next(folder: Path, first: Walk, number: int) -> AsyncIterator[Walk]:
    """Open another pool on the chain of the first one."""
    deployment = first.network.contracts.deployment

    def share(home: Path, **_: object) -> tuple[None, Deployment]:
        deployment.save(home / "deployment.json")
        return None, deployment

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo_network, "up", share)
        patch.setattr(demo_network, "POOL", PoolId(number))
        async with open_walk(folder, make_options(number), participants=QuickParticipants) as walk:
            yield walk


def create_needy(folder: Path, deployment: Deployment) -> None:
    """Create a third pool, which nobody serves."""
    third = NeedyParticipants(folder, make_options(3))
    deployment.save(third.deployment)
    fund(deployment, derive_wallet("demo-3", "deployer"), third.list_funded())
    DemoNetwork(third, invoke).command("pool", "create", str(third.write_pool()), key="operator", pool=False)


def announce(walk: Walk, number: int) -> None:
    """Announce the URL of a pool's coordinator, signed by its operator."""
    participants = walk.network.participants
    operator = Account(participants.deployment, participants.get_key_file("operator"), number)
    operator.send(operator.contracts.pools.announce(PoolId(number), walk.network.url))


def run_command(*words: str) -> dict[str, Any]:
    """Run a command of the newcomer, and return its JSON."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        invoke([*words, "--json"])
    printed: dict[str, Any] = json.loads(output.getvalue())
    return printed


def list_rows(walk: Walk, node: str, *states: SubmissionState) -> list[Any]:
    with walk.coordinator.database.read() as rows:
        return [row for row in rows.list_submissions(*states) if row.node == node]


async def test_market__three_operators__newcomer_earns_in_two_and_leaves_the_one_without_money(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(demo_network, "BUDGET", SHORT_BUDGET)
    async with open_walk(tmp_path / "one", make_options(1), participants=QuickParticipants) as one:
        monkeypatch.undo()
        async with open_next(tmp_path / "two", one, 2) as two:
            deployment = one.network.contracts.deployment
            create_needy(tmp_path / "three", deployment)
            for number, walk in enumerate((one, two), start=1):
                announce(walk, number)
                await walk.publish()
                await walk.follow()
                walk.run_jobs()
            file = str(tmp_path / "one" / "deployment.json")
            listed = await asyncio.to_thread(
                run_command, "market", "--deployment", file, "--all", "--fits", "--sort", "earnings"
            )
            assert {each["pool"]: each["service"] for each in listed["pools"]} == {1: "served", 2: "served"}
            assert len({each["operator"] for each in listed["pools"]}) == 2
            assert "gpu:count=8;model=h100" in listed["misfits"]["3"][0]
            nodes = []
            for each in sorted(listed["pools"], key=lambda row: row["pool"]):
                folder = str(tmp_path / f"newcomer-{each['pool']}")
                joining = ("join", each["url"], folder, "--deployment", file, "--gpus", "0")
                joined = await asyncio.to_thread(run_command, *joining)
                assert [row["name"] for row in joined["checks"] if row["status"] == "fail"] == []
                enrolled = await asyncio.to_thread(run_command, "worker", "enroll", folder)
                nodes += enrolled["nodes"]
            await work_in_both(tmp_path, one, two, nodes)


async def work_in_both(tmp_path: Path, one: Walk, two: Walk, nodes: list[str]) -> None:
    command = [sys.executable, "-m", "covey", "worker", "run", "--prefer", "first"]
    for number in (1, 2):
        command += ["--config", str(tmp_path / f"newcomer-{number}" / "worker.toml")]
    # With this much patience it leaves only for money.
    for setting in ("engine=hf", "idle_seconds=600", "stay_seconds=600"):
        command += ["--set", setting]
    log = tmp_path / "worker.log"
    contracts = one.network.contracts
    history = History(client=one.chain, contracts=contracts)
    moments: dict[str, float] = {}

    def note_moments() -> None:
        """Note when the first pool's escrow no longer pays another such epoch, and when the worker leaves it."""
        rewards = [event.record.reward for event in history.list_epochs(PoolId(1))]
        if rewards and SHORT_BUDGET - sum(rewards) < rewards[-1]:
            moments.setdefault("broke", time.monotonic())
        if "leaving the pool" in log.read_text():
            moments.setdefault("left", time.monotonic())

    def has_earned() -> bool:
        earned = [sum(event.record.reward for event in history.list_epochs(PoolId(number))) for number in (1, 2)]
        return "left" in moments and min(earned) > 0

    async def judge() -> None:
        for walk in (one, two):
            await walk.sign_epochs()
            await walk.follow()
            for ctx in walk.validators:
                await take_judgement(ctx)

    with log.open("wb") as output:
        worker = await asyncio.create_subprocess_exec(*command, stdout=output, stderr=output, env=dict(os.environ))
        try:
            await one.until(
                lambda: worker.returncode is not None or has_earned(),
                one.run_jobs,
                two.run_jobs,
                judge,
                note_moments,
                seconds=SECONDS,
            )
            assert worker.returncode is None, log.read_text()
            worker.send_signal(signal.SIGTERM)
            assert await asyncio.wait_for(worker.wait(), SECONDS) == 0
        finally:
            if worker.returncode is None:
                worker.kill()
                await worker.wait()
    said = log.read_text()
    assert said.count("leaving the pool") == 1, said
    assert moments["left"] - moments["broke"] < MOVE_SECONDS
    for walk, node in zip((one, two), nodes, strict=True):
        assert list_rows(walk, node, SubmissionState.ACCEPTED, SubmissionState.SETTLED)
