"""A pause as worker, operator and monitoring see it, over HTTP and by the commands of the operator."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import tomlkit
from typer.testing import CliRunner

from covey import cli
from covey.errors import OperatorError, ProtocolError
from covey.protocol.api.trainer import LearningReport
from covey.protocol.learning_signs import LearningSign
from tests.fakes.network import CoordinatorHarness
from tests.integration.coordinator.handing import FILE, build_receipt, claim_order, hand_in, sign

pytestmark = pytest.mark.integration
DEAD = (LearningSign.TRUNCATED, LearningSign.NO_LIVE_GROUP)
WHY = (
    "the pool is paused: its trainer has paused it after 20 steps, because the run cannot learn "
    "(most completions are cut at the token limit; no group has rewards that differ)"
)


@pytest.fixture
def folder(harness: CoordinatorHarness, tmp_path: Path) -> Path:
    """The operator's folder, as far as the commands read it."""
    config = harness.ctx.config
    settings = {"home": str(config.home), "pool": config.pool, "deployment": str(config.deployment)}
    settings |= {"key_file": str(config.key_file), "port": config.port}
    (tmp_path / "coordinator.toml").write_text(tomlkit.dumps(settings))
    return tmp_path


async def run(*arguments: str) -> Any:
    result = await asyncio.to_thread(CliRunner().invoke, cli.app, [*arguments, "--json"])
    if result.exception is not None:
        raise result.exception
    return json.loads(result.stdout)


async def test_claim__dead_run__waits_and_is_told_why_until_the_operator_resumes(
    harness: CoordinatorHarness, folder: Path
):
    async with harness.client("trainer") as trainer:
        await trainer.report_learning(LearningReport(steps=20, signs=DEAD, pause=True))
    async with harness.client("node") as node:
        await node.register()
        begun = asyncio.get_running_loop().time()
        with pytest.raises(ProtocolError) as caught:
            await harness.claim(node, wait_seconds=0.5)
        assert asyncio.get_running_loop().time() - begun >= 0.5
        assert (caught.value.code, caught.value.message, caught.value.status) == ("pool_paused", WHY, 409)
        detail = await node.get_node(harness.wallet("node").address)
        assert (detail.why, detail.sentence) == ("paused", f"{WHY[0].upper()}{WHY[1:]}.")
        assert await run("pool", "resume", str(folder)) == {
            "pool": harness.ctx.ledger.pool, "paused": False, "signs": ["truncated", "no_live_group"],
        }  # fmt: skip
        assert (await harness.claim(node)).task == 1


async def test_claim__lease_from_before_the_pause__is_collected_and_submitted(
    harness: CoordinatorHarness, folder: Path
):
    async with harness.client("node") as node:
        await node.register()
        await harness.claim(node)
        assert (await run("pool", "pause", str(folder)))["paused"]
        lost = await harness.claim(node)  # the worker has lost the answer, and asks again
        receipt = build_receipt(harness, lost, FILE)
        await node.submit(receipt, sign(harness, receipt), FILE)
        assert (await node.get_status()).submissions == {"SUBMITTED": 1}


async def test_status_and_metrics__pause_and_signs__show_both(harness: CoordinatorHarness, folder: Path):
    async with harness.client("trainer") as trainer:
        gauges = await asyncio.to_thread(harness.read_metrics)
        assert (gauges["covey_paused",], gauges["covey_alarm", "no_live_group"]) == (0, 0)
        await trainer.report_learning(LearningReport(steps=20, signs=DEAD, pause=True))
        gauges, status = await asyncio.to_thread(harness.read_metrics), await trainer.get_status()
        assert gauges["covey_paused",] == 1
        assert {name: value for name, value in gauges.items() if name[0] == "covey_alarm"} == {
            ("covey_alarm", sign.value): float(sign in DEAD) for sign in LearningSign
        }
        assert status.signs == DEAD
        assert status.pause is not None
        assert f"the pool is paused: {status.pause.reason}" == WHY
        await trainer.report_learning(LearningReport(steps=21, signs=(), pause=False))
        await run("pool", "resume", str(folder))
        gauges, status = await asyncio.to_thread(harness.read_metrics), await trainer.get_status()
        assert (gauges["covey_paused",], gauges["covey_alarm", "no_live_group"]) == (0, 0)
        assert (status.signs, status.pause) == ((), None)


async def test_pause__judging__goes_on(harness: CoordinatorHarness, folder: Path):
    async with harness.client("node") as node:
        await hand_in(harness, node)
    await run("pool", "pause", str(folder))
    harness.run_job("dispatch_validation")
    async with harness.client("validator-0") as validator:
        assert await claim_order(validator, wait_seconds=0) is not None


async def test_pool_resume__folder_without_a_coordinator__names_the_right_one(tmp_path: Path):
    with pytest.raises(OperatorError, match=r"no_coordinator: .* has no coordinator.toml"):
        await run("pool", "resume", str(tmp_path))
