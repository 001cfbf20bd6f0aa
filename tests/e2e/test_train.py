"""A run on one machine: it learns, and a run that is killed ends with the policies of one that is not."""

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from functools import partial
from itertools import product
from pathlib import Path

import pytest

import covey
import trainer.loop
from covey.demo.participants import DemoOptions
from covey.errors import OperatorError
from covey.protocol.ids import Step
from covey.protocol.status import StepState, SubmissionState
from covey.standalone.config import TrainConfig
from covey.standalone.pool_exchange import follow_pool
from covey.standalone.preparation import prepare
from covey.standalone.run import run
from tests.e2e.submitting import ShortParticipants, hand_in, judge_all, list_submissions
from tests.e2e.walk import open_walk

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
IS_FULL = os.environ.get("COVEY_FULL") == "1"
KILLS = 10 if IS_FULL else 1
STEPS = 12 if IS_FULL else 4
HANG_S = 600.0
QUICK = {"optim.learning_rate": 5e-4, "optim.warmup_steps": 0, "device": "cpu"}


def read_lines(file: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def keep_repeatable(lines: list[dict[str, object]]) -> list[dict[str, object]]:
    """Return the metrics without times, in the order of steps."""
    timed = ("time/", "perf/", "trainer/idle_ratio")
    kept = [{name: value for name, value in line.items() if not name.startswith(timed)} for line in lines]
    return sorted(kept, key=lambda line: (line["step"], line["event"]))


def train(folder: Path, **values: object) -> None:
    run(prepare(TrainConfig.load(None, {"home": str(folder), **QUICK, **values}, {})))


def test_train__tiny_model__held_out_reward_rises(tmp_path: Path):
    begun = time.monotonic()
    train(tmp_path / "run", **{"steps": 16, "eval.every": 16})
    rewards = {line["step"]: line["reward"] for line in read_lines(tmp_path / "run" / "metrics.jsonl") if "n" in line}
    assert rewards[0] < 0.35
    assert rewards[16] > 0.7
    print(f"{rewards} in {time.monotonic() - begun:.0f} s")


@pytest.mark.parametrize(("staleness", "every"), [*product((0, 1), (3, 1))] if IS_FULL else [(1, 3)])
def test_train__killed_at_random_instants__ends_with_the_same_policies(tmp_path: Path, staleness: int, every: int):
    """The undisturbed run has a checkpoint of each step, and the other one of each third step or of each."""
    values = {"steps": STEPS, "sampling.max_staleness": staleness, "eval.every": 2, "eval.prompts": 16}
    train(tmp_path / "whole", **values)
    draws, kills, folder = random.Random(20261127 + staleness), 0, tmp_path / "killed"
    command = [sys.executable, "-m", "covey", "train", "--out", str(folder)]
    for name, value in (QUICK | values | {"ckpt.every": every}).items():
        command += ["--set", f"{name}={value}"]
    metrics = folder / "metrics.jsonl"
    deadline = time.monotonic() + HANG_S
    while True:
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
            size = metrics.stat().st_size if metrics.exists() else 0
            while process.poll() is None and kills < KILLS and (not metrics.exists() or metrics.stat().st_size == size):
                assert time.monotonic() < deadline
                time.sleep(0.01)
            if kills < KILLS and process.poll() is None:
                time.sleep(draws.uniform(0, 1.0))
                process.send_signal(signal.SIGKILL)
                kills += 1
            error = process.communicate(timeout=HANG_S)[1]
        if process.returncode == 0:
            break
        assert process.returncode == -signal.SIGKILL, error
    assert kills == KILLS
    assert (folder / "beacons.jsonl").read_text() == (tmp_path / "whole" / "beacons.jsonl").read_text()
    assert keep_repeatable(read_lines(metrics)) == keep_repeatable(read_lines(tmp_path / "whole" / "metrics.jsonl"))
    for step in range(STEPS):
        names = [tmp_path / each / "rollouts" / f"{step}.jsonl" for each in ("whole", "killed")]
        assert names[0].read_text() == names[1].read_text()


async def test_train__from_a_pool__makes_the_same_first_update(tmp_path: Path):
    """The policies of step 1 have the same record hash: a pool's on chain, and that of a run with its node's draws."""
    options = DemoOptions(workers=1, cheats=0, steps=1, max_staleness=0, seed=5)
    async with open_walk(tmp_path / "net", options, participants=ShortParticipants) as walk:
        await walk.publish()
        await walk.follow()
        while walk.get_status().steps[0].state == StepState.OPEN:
            await hand_in(walk, "worker-1")
            await judge_all(walk)
        await trainer.loop.cycle(walk.trainer)
        await walk.publish()
        network = walk.trainer.network
        node = walk.workers["worker-1"].network.wallet.address
        values = {"home": str(tmp_path / "run"), "steps": 1, "sampling.node": node, "eval.every": 0, **QUICK}
        settings = TrainConfig.load(None, values, {})
        rpc_url = walk.network.contracts.deployment.rpc_url
        config, questions = await asyncio.to_thread(
            partial(follow_pool, settings, walk.network.url, step=0, rpc_url=rpc_url)
        )
        await asyncio.to_thread(run, prepare(config, questions=questions))
        hashes = [line["record_hash"] for line in read_lines(tmp_path / "run" / "beacons.jsonl")]
        assert hashes == [network.contracts.policies.policy_of(network.pool, Step(step)) for step in (0, 1)]

        settled = {SubmissionState.SETTLED}
        await walk.until(
            lambda: {row.state for row in list_submissions(walk)} == settled,
            walk.run_jobs,
            walk.sign_epochs,
            walk.follow,
        )
        await asyncio.to_thread(check_start, settings, walk.network.url, tmp_path)
        await asyncio.to_thread(check_pool, covey.Pool(walk.network.url), tmp_path)


def check_start(settings: TrainConfig, url: str, tmp_path: Path) -> None:
    """Check that a new run starts from the pool's newest policy, and a resumed one from that of its start."""
    resumed, _ = follow_pool(settings, url)
    assert resumed.model.path == str(next((tmp_path / "run" / "policies").glob("0-*")))
    with pytest.raises(OperatorError, match="begun with policy 0 of the pool, not with policy 1"):
        follow_pool(settings, url, step=1)
    fresh, _ = follow_pool(settings.model_copy(update={"home": tmp_path / "fresh"}), url)
    trained = tmp_path / "net" / "trainer" / "exports" / "1" / "model.safetensors"
    assert fresh.model.path is not None
    assert (Path(fresh.model.path) / "model.safetensors").read_bytes() == trained.read_bytes()


def check_pool(pool: covey.Pool, tmp_path: Path) -> None:
    """Check that the Python surface shows the rollouts from which the pool's trainer has learned."""
    described, status = pool.describe(), pool.status()
    assert described["params"]["group_size"] == 8
    assert (status["pool"], status["step"]) == (described["pool"], 1)
    views = pool.submissions(state="settled")
    rows = list(pool.rollouts())
    assert len(rows) == len(views) * 4 * 8
    assert {row["task"] for row in rows} == {view["task"] for view in views}
    trained = {line.task: line for line in covey.LocalRun(tmp_path / "net" / "trainer").rollouts(0)}
    tokens = {(row["task"], row["group"], row["sibling"]): row for row in rows}
    for line in trained.values():
        row = tokens[line.task, line.group, line.sibling]
        assert (line.reward, line.tokens, line.finished) == (row["reward"], len(row["tokens"]), row["finished"])
    policy = pool.policy(0, folder=tmp_path / "policies")
    assert policy.name == f"0-{pool.policies()[0]}"
    texts = {(row["task"], row["group"], row["sibling"]): row for row in pool.texts(policy)}
    for line in trained.values():
        row = texts[line.task, line.group, line.sibling]
        assert (row["question"], row["completion"], row["reward"]) == (line.question, line.completion, line.reward)
    folder = pool.save_rollouts(tmp_path / "rows", limit=1)
    assert len(read_lines(folder / "rollouts.jsonl")) == 4 * 8


@pytest.mark.full
def test_train__two_ranks__learn_as_one(tmp_path: Path):
    values = {"steps": 2, "eval.every": 0}
    train(tmp_path / "one", **values)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "covey"]
    command += ["train", "--out", str(tmp_path / "two")]
    for name, value in (QUICK | values).items():
        command += ["--set", f"{name}={value}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert done.returncode == 0, done.stderr
    one, two = (covey.LocalRun(tmp_path / name).metrics for name in ("one", "two"))
    assert len(two) == 2
    for name in ("reward/mean", "policy/entropy", "optim/grad_norm"):
        assert two[0][name] == pytest.approx(one[0][name], rel=1e-3)  # last bits differ, and later draws with them
