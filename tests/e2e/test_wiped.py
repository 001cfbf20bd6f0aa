"""The coordinator's machine is wiped after its epochs were posted: contributors claim all they have earned."""

import asyncio
import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from covey.cli import app
from covey.demo.demo_network import POOL
from covey.demo.participants import CHALLENGE_SECONDS, PRICE, VETO_SECONDS, DemoOptions
from covey.protocol.prices import compute_reward
from covey.protocol.status import SubmissionState
from tests.e2e.submitting import ShortParticipants, hand_in, judge_all, list_submissions
from tests.e2e.walk import open_walk
from worker.reward_keeping import keep_rewards

pytestmark = [pytest.mark.e2e]


def covey(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.stdout


async def test_claim__coordinator_is_wiped__three_contributors_have_all_by_two_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    folder, options = tmp_path / "net", DemoOptions(steps=1, workers=3, cheats=0, max_staleness=0)
    async with open_walk(folder, options, participants=ShortParticipants) as walk:
        await walk.publish()
        await walk.follow()
        for name in ("worker-1", "worker-2", "worker-3", "worker-1"):
            await hand_in(walk, name)
        await judge_all(walk)
        rows = list_submissions(walk)
        walk.network.command("pool", "end", "--yes", key="operator")
        await walk.follow()
        settled = {SubmissionState.SETTLED}
        await walk.until(
            lambda: {row.state for row in list_submissions(walk)} == settled,
            walk.run_jobs,
            walk.sign_epochs,
            walk.follow,
        )
        for ctx in walk.workers.values():
            await keep_rewards(ctx)

        gone = walk.coordinator.config
        walk.closers.close()  # Its servers end.
        shutil.rmtree(gone.home)
        shutil.rmtree(folder / "store", ignore_errors=True)
        walk.network.advance_clock(CHALLENGE_SECONDS + VETO_SECONDS + 1)
        chain = ("--deployment", str(walk.network.participants.deployment), "--pool", str(POOL))
        monkeypatch.chdir(folder)
        for participant in walk.network.participants.workers:
            key = ("--key-file", str(walk.network.participants.get_key_file(participant.contributor)))
            home = walk.workers[participant.name].config.home
            if participant.name == "worker-1":
                command = ["rewards", "claim", "--proofs", str(home / "rewards"), "--coordinator-url", gone.base_url]
            else:
                command = ["watch", "--once", "--act", "--coordinator-url", gone.base_url]
            printed = await asyncio.to_thread(covey, *command, *chain, *key, "--json")
            contributor = walk.network.participants.get_address(participant.contributor)
            units = sum(row.units for row in rows if row.contributor == contributor)
            claimed = walk.network.contracts.ledger.claimed_of(POOL, contributor)
            assert claimed == compute_reward(units, PRICE) > 0, [json.loads(line) for line in printed.splitlines()]
