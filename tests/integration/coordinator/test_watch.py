"""`covey watch` on a real chain: it finds what is false, and does what is due, with the coordinator gone."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from covey import cli
from covey.chain.events import EpochPosted
from covey.chain.wallet import save_key
from covey.devnet import deploy
from covey.network.kept_rewards import KeptRewards
from covey.protocol.epoch_file import EpochFile
from covey.protocol.object_keys import build_epoch_key
from covey.protocol.prices import compute_reward
from covey.runtime.cycle import CycleResult
from tests.fakes.network import CoordinatorHarness
from tests.integration.coordinator.handing import settle
from worker.config import WorkerConfig
from worker.pool_watch import build_watch, watch_pool

pytestmark = pytest.mark.integration
GONE = "http://127.0.0.1:9"


class Watching:
    """Runs `covey watch --once` in a folder."""

    def __init__(self, harness: CoordinatorHarness, folder: Path) -> None:
        self._harness, self._folder = harness, folder
        harness.chain.deployment.save(folder / "deployment.json")

    async def __call__(self, key: str, *arguments: str, url: str | None = None) -> tuple[int, list[dict[str, Any]]]:
        """Return the exit code, and the lines without their times."""
        file = self._folder / f"{key}.key"
        if not file.exists():
            save_key(file, deploy.derive_key("test", key))
        words = ["watch", "--once", "--json", "--key-file", str(file), "--coordinator-url", url or self._harness.url]
        words += ["--deployment", str(self._folder / "deployment.json"), "--pool", str(self._harness.ctx.ledger.pool)]
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(self._folder)
            result = await asyncio.to_thread(CliRunner().invoke, cli.app, [*words, *arguments])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        lines = [json.loads(line) for line in result.stdout.splitlines()]
        return result.exit_code, [{name: line[name] for name in line if name not in ("time", "text")} for line in lines]


@pytest.fixture
def watch(harness: CoordinatorHarness, tmp_path: Path) -> Watching:
    return Watching(harness, tmp_path)


async def test_watch__honest_epoch__is_true_kept_and_claimed_when_the_coordinator_is_gone(
    harness: CoordinatorHarness, watch: Watching, tmp_path: Path
):
    await settle(harness)
    true = {"event": "epoch", "code": "true"}
    epochs = harness.chain.contracts.ledger.epochs_of(harness.ctx.ledger.pool)
    assert epochs == 1
    code, lines = await watch("contributor")
    assert (code, lines) == (0, [true | {"epoch": number} for number in range(epochs)])
    (file,) = (tmp_path / "watch" / "epochs").iterdir()
    true_file = file.read_bytes()
    file.write_bytes(b"garbage")  # It is asked for again, and says nothing about the epoch.
    assert (await watch("contributor", url=GONE))[1] == [{"event": "epoch", "code": "missing", "epoch": 0}]
    assert (await watch("contributor"))[0] == 0
    assert file.read_bytes() == true_file
    harness.chain.advance(20)
    code, lines = await watch("contributor", url=GONE)
    assert (code, lines[0]) == (0, {"event": "claim", "about": str(epochs - 1), "code": "due"})
    code, lines = await watch("contributor", "--act", url=GONE)
    assert (code, lines[0]["code"]) == (0, "sent")
    pool, who = harness.ctx.ledger.pool, harness.chain.address("contributor")
    assert harness.chain.contracts.ledger.claimed_of(pool, who) > 0
    code, lines = await watch("contributor", "--act", url=GONE)
    assert [line["event"] for line in lines] == ["epoch"] * epochs


async def test_watch_pool__worker_watches_its_own_pool__keeps_a_proof_that_it_has_computed(
    harness: CoordinatorHarness, watch: Watching, tmp_path: Path
):
    await settle(harness)
    home = tmp_path / "worker"
    config = WorkerConfig(
        home=home,
        deployment=tmp_path / "deployment.json",
        key_file=tmp_path / "node.key",
        pool=harness.ctx.ledger.pool,
        coordinator_url=harness.url,
    )
    assert await watch_pool(build_watch(config, harness.chain.address("contributor"))) is CycleResult.IDLE
    assert KeptRewards(home / "watch" / "rewards").list_epochs() == [0]


def forge(kind: str, true: EpochFile, posted: EpochPosted, account: str, price: int) -> EpochFile:
    """Return the file of the epoch after `posted`, false in one way, or true and empty."""
    leaves, rewards = (), dict(true.rewards)
    if kind == "too high":
        rewards[account] += 1
    elif kind == "missing":
        del rewards[account]
    elif kind == "doubled":
        leaves = true.leaves[:1]
        rewards[account] += compute_reward(leaves[0].units, price)
    return replace(
        true, epoch=posted.epoch + 1, leaves=leaves, previous_hash=posted.record.header_hash, rewards=rewards
    )


@pytest.mark.parametrize(
    ("kind", "code"),
    [("too high", "false_rewards"), ("missing", "false_rewards"), ("doubled", "bad_epoch"), ("withheld", "missing")],
)
async def test_watch__false_or_withheld_epoch__is_disabled_by_the_arbiter_in_the_window(
    harness: CoordinatorHarness, watch: Watching, tmp_path: Path, kind: str, code: str
):
    await settle(harness)
    pool, chain = harness.ctx.ledger.pool, harness.chain
    (posted,) = watch_history(harness).list_epochs(pool)
    data = harness.ctx.store.get(build_epoch_key(pool, posted.header.data_hash), max_bytes=1 << 20)
    true = EpochFile.from_bytes(data, posted.header)
    terms = chain.contracts.pools.get_terms(pool)
    false = forge(kind, true, posted, chain.address("contributor"), terms.reward_per_million)
    header = false.build_header(chain=harness.ctx.ledger.chain_id, ledger=harness.ctx.ledger.address)
    chain.advance(terms.epoch_length)
    chain.send("operator", chain.contracts.ledger.post(header, {}))
    about = {"event": "epoch", "epoch": header.epoch}
    exit_code, lines = await watch("arbiter", "--act")  # The file may still appear.
    assert (exit_code, lines[1:]) == (1, [about | {"code": "missing"}])
    if kind == "withheld":
        chain.advance(terms.challenge_window - terms.challenge_window // 2)
    else:
        (tmp_path / "watch" / "epochs" / f"{header.data_hash}.json").write_bytes(false.to_bytes())  # somebody gave it
    exit_code, lines = await watch("contributor")
    assert (exit_code, lines[-1]) == (1, about | {"code": code})
    exit_code, lines = await watch("arbiter", "--act")
    assert (lines[0]["event"], lines[0]["code"], lines[-1]) == ("disable", "sent", about | {"code": code})
    assert (await watch("arbiter", "--act"))[0] == 0
    assert [event.epoch for event in watch_history(harness).list_disabled()] == [header.epoch]


def watch_history(harness: CoordinatorHarness) -> Any:
    from covey.chain.history import History

    return History(client=harness.chain.client, contracts=harness.chain.contracts)
