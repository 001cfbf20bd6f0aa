"""Whole runs of the trainer against an in-memory network: what is published, resumed and never trusted."""

import asyncio
import json
import statistics
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from pathlib import Path
from threading import Event as Flag
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from structlog.testing import capture_logs

from covey.chain.sqlite_outbox import SqliteOutbox
from covey.errors import OperatorError, ProtocolError, TransientError
from covey.protocol.ids import Hash, Step
from covey.protocol.learning_signs import LearningSign
from covey.protocol.policy_record import WEIGHTS_FILE
from covey.protocol.submission_file.codec import decode
from covey.protocol.submission_file.rows import Rollout
from covey.runtime.cycle import CycleResult
from trainer import loop
from trainer.monitoring.alarms import Alarm
from trainer.monitoring.evaluation import EvaluationScore, Evaluator
from trainer.monitoring.metric_names import METRICS

pytestmark = pytest.mark.unit
Build = Callable[..., Any]


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Hash]]:
    """Return hashes of uninterrupted runs by name. The first test that needs one fills it in."""
    return {}


def get_straight(straight: dict[str, list[Hash]], build_harness: Build, name: str, **coordinator: Any) -> list[Hash]:
    if name not in straight:
        harness = build_harness()
        for key, value in coordinator.items():
            setattr(harness.coordinator, key, value)
        harness.run()
        straight[name] = list(harness.chain.hashes)
    return straight[name]


def test_cycle__two_steps__publishes_three_policies_and_ends(build_harness: Build) -> None:
    harness = build_harness()
    harness.run()
    assert len(set(harness.chain.hashes)) == 3
    assert harness.coordinator.claims == [0, 1]
    lines = harness.read_metrics()
    expected = [*(("evaluation", step) for step in range(3)), *(("policy", step) for step in range(3))]
    assert sorted((line["event"], line["step"]) for line in lines) == [*expected, ("update", 0), ("update", 1)]
    assert [line["record_hash"] for line in lines if line["event"] == "policy"] == harness.chain.hashes
    assert all(line["n"] == 4 for line in lines if line["event"] == "evaluation")


def test_cycle__update_event__describes_the_batch(build_harness: Build) -> None:
    harness = build_harness(steps=1, log={"peak_flops": 1e12})
    harness.run()
    (update,) = [line for line in harness.read_metrics() if line["event"] == "update"]
    rows = [row for file in harness.coordinator.files.values() for row in decode(file, harness.params.build_budget())]
    assert update["step"] == 0
    assert update["batch/samples"] == len(rows) == 32
    assert update["batch/tokens"] == sum(len(row.tokens) for row in rows)
    assert update["reward/mean"] == pytest.approx(sum(row.reward for row in rows) / 32)
    assert update["staleness_mean"] == 0
    assert update["policy/clip_ratio"] == 0  # first update on the policy that sampled, up to bfloat16
    assert update["policy/outside_clip"] < 0.02
    assert update["policy/mismatch_kl"] < 1e-4
    assert 0 < update["policy/entropy"] < 5.6
    parts = [update[f"time/{what}"] for what in ("wait_for_batch", "update", "save")]
    assert min(parts) > 0
    assert update["time/step"] == pytest.approx(sum(parts))
    assert update["trainer/idle_ratio"] == pytest.approx(parts[0] / sum(parts))
    assert update["reward/task"] == update["reward/mean"]
    assert update["reward/length_penalty"] == 0
    assert update["reward/task_std"] == pytest.approx(statistics.pstdev(row.reward for row in rows))
    assert update["batch/unanswered_share"] == 0
    assert update["perf/mfu"] == pytest.approx(update["perf/flops"] / (parts[1] * 1e12))
    assert 0 < update["perf/mfu"] < 1


def test_cycle__work_of_the_previous_policy__shows_in_the_mismatch_but_not_in_the_clip_ratio(
    build_harness: Build,
) -> None:
    harness = build_harness()
    harness.coordinator.staleness = 1
    harness.run()
    _, update = [line for line in harness.read_metrics() if line["event"] == "update"]
    assert (update["staleness_mean"], update["policy/clip_ratio"]) == (1, 0)
    assert update["policy/outside_clip"] > 0.02
    assert 1e-3 < update["policy/mismatch_kl"] < update["policy/mismatch_kl_max"] < 1


def test_cycle__lines_of_all_events__have_the_metrics_that_the_page_lists(build_harness: Build) -> None:
    harness = build_harness(steps=2, log={"peak_flops": 1e12}, stop_when_dead=1, alarms={"steps": 1})
    harness.coordinator.forge = earn_nothing
    harness.run()
    emitted = {line["event"]: set(line) - {"event", "step"} for line in harness.read_metrics()}
    assert emitted["alarm"] > {field.name for field in fields(Alarm)}
    emitted["evaluation"].add("lenient_reward")  # only of a run on one machine
    (kind,) = {name.split("/")[1] for name in emitted["update"] if name.startswith("task_type/")}
    emitted["update"] = {name.replace(kind, "{}") for name in emitted["update"]}
    assert emitted == {event: set(meanings) for event, meanings in METRICS.items()}


def earn_nothing(row: Rollout) -> Rollout:
    return replace(row, reward=0.0)


def test_cycle__dead_steps__are_reported_with_their_signs_and_ask_once_for_a_pause(build_harness: Build) -> None:
    """Two steps of three are enough for the signs and for the pause. The last step is reported, too."""
    harness = build_harness(steps=3, stop_when_dead=2, alarms={"steps": 2})
    harness.coordinator.forge = earn_nothing
    with capture_logs() as logs:
        harness.run()
    signs = (LearningSign.CONSTANT_REWARD, LearningSign.NO_LIVE_GROUP, LearningSign.ZERO_GRADIENT)
    assert harness.coordinator.reports == [(0, (), False), (1, (), False), (2, signs, True), (3, signs, False)]
    none, *points = harness.coordinator.points
    updates = [line for line in harness.read_metrics() if line["event"] == "update"]
    assert none is None, "no step is trained"
    assert [(p.reward_mean, p.step_seconds) for p in points if p] == [
        (line["reward/mean"], line["time/step"]) for line in updates
    ]
    pauses = [line for line in harness.read_metrics() if line["event"] == "pause"]
    assert pauses == [{"event": "pause", "step": 1, "dead_steps": 2}]
    (paused,) = [log for log in logs if log["event"].startswith("new tasks are paused")]
    assert paused["resume"] == "covey pool resume FOLDER"
    assert paused["advice"] == [sign.advice for sign in signs]


def test_cycle__coordinator_refuses_the_report__learning_continues_and_no_pause_is_recorded(
    build_harness: Build,
) -> None:
    harness = build_harness(steps=2, stop_when_dead=1)
    harness.coordinator.forge = earn_nothing

    async def refuse(_: Any) -> None:
        raise ProtocolError("not_found", "no such route", status=404)

    harness.coordinator.report_learning = refuse
    harness.run()
    events = [line["event"] for line in harness.read_metrics()]
    assert (events.count("update"), events.count("pause")) == (2, 0)


def test_cycle__sinks__receive_the_lines_of_the_file(build_harness: Build) -> None:
    harness, received = build_harness(steps=1), []
    harness.sinks = [lambda event, step, values: received.append({"event": event, "step": step, **values})]
    harness.run()
    assert received == harness.read_metrics()


def test_cycle__same_disk_again__publishes_nothing_more(build_harness: Build) -> None:
    harness = build_harness(steps=1)
    harness.run()
    before = list(harness.chain.hashes), harness.read_metrics()
    harness.run()
    assert (harness.chain.hashes, harness.read_metrics()) == before
    assert harness.coordinator.claims == [0]


def test_cycle__two_equal_harnesses__publish_equal_hashes(
    build_harness: Build, straight: dict[str, list[Hash]]
) -> None:
    harness = build_harness()
    harness.run()
    assert harness.chain.hashes == get_straight(straight, build_harness, "fresh")


@pytest.mark.parametrize("n", [1, 6, 9, 14, 22, 25, 28, 31, 34, 37, 45, 52])
def test_cycle__killed_at_any_durable_action__ends_in_the_same_policies(
    n: int, build_harness: Build, kill_at: Build, straight: dict[str, list[Hash]]
) -> None:
    expected = get_straight(straight, build_harness, "fresh")
    harness = build_harness()
    kill_at(n)
    with pytest.raises(harness.killed):
        harness.run()
    kill_at(None)
    harness.run()
    assert harness.chain.hashes == expected
    events = [(line["event"], line["step"]) for line in harness.read_metrics()]
    assert len(events) == len(set(events)) == 8


@pytest.mark.parametrize("point", ["sign", "effect", "record"])
def test_cycle__killed_while_it_publishes__publishes_each_step_once(
    point: str, build_harness: Build, straight: dict[str, list[Hash]]
) -> None:
    expected = get_straight(straight, build_harness, "fresh")
    harness = build_harness()
    harness.chain.die_before = point
    with pytest.raises(harness.killed):
        harness.run()
    assert len(harness.chain.hashes) == (2 if point == "record" else 1)
    harness.run()
    assert harness.chain.hashes == expected
    assert harness.coordinator.claims == [0, 1]  # the update that was checkpointed is not repeated
    assert [line["step"] for line in harness.read_metrics() if line["event"] == "policy"] == [0, 1, 2]


def test_cycle__update_checkpointed_but_not_reported__is_reported_after_the_restart(build_harness: Build) -> None:
    harness = build_harness(steps=1)
    harness.run()
    lines = harness.read_metrics()
    (update,) = [line for line in lines if line["event"] == "update"]
    path = harness.config.home / "metrics.jsonl"
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines if line["event"] != "update"))
    harness.run()
    (again,) = [line for line in harness.read_metrics() if line["event"] == "update"]
    assert again["time/save"] == 0
    clocked = {"time/save", "time/step", "trainer/idle_ratio", *(name for name in update if name.startswith("perf/"))}
    assert {name: again[name] for name in again if name not in clocked} == {
        name: update[name] for name in update if name not in clocked
    }


def test_learn__forged_logprobs_in_unreplayed_work__have_no_effect(build_harness: Build) -> None:
    def forge(row: Rollout) -> Rollout:
        return replace(row, logprobs=tuple(-9.0 + i for i, _ in enumerate(row.tokens)))

    def train(**coordinator: Any) -> tuple[list[Hash], dict[str, Any]]:
        harness = build_harness()
        for key, value in coordinator.items():
            setattr(harness.coordinator, key, value)
        harness.run()
        tensors: dict[str, Any] = load_file(harness.config.home / "checkpoints" / "2" / "masters.safetensors")
        return harness.chain.hashes, tensors

    honest, weights = train(replayed=False, staleness=1)
    forged, same = train(replayed=False, staleness=1, forge=forge)
    assert forged == honest
    assert all(torch.equal(weights[name], same[name]) for name in weights)
    assert train(replayed=True, staleness=1, forge=forge)[0] != honest  # they would have an effect if they were trusted


def test_learn__unreplayed_stale_work__learns_what_honest_claims_teach(build_harness: Build) -> None:
    """The retained policy gives the log-probabilities that the worker claimed, so the policies nearly agree.

    Prompts depend on a policy's hash, so only work of the first policy is the same in both.
    """

    def train(replayed: bool) -> dict[str, Any]:
        harness = build_harness(steps=2)
        harness.coordinator.staleness, harness.coordinator.replayed = 1, replayed
        harness.run()
        assert [line["staleness_mean"] for line in harness.read_metrics() if line["event"] == "update"] == [0, 1]
        tensors: dict[str, Any] = load_file(harness.config.home / "checkpoints" / "2" / "masters.safetensors")
        return tensors

    claimed, recomputed = train(True), train(False)
    for name, weights in claimed.items():
        torch.testing.assert_close(weights, recomputed[name], rtol=0, atol=2e-4)


def test_cycle__tokens_outside_the_vocabulary__are_left_out_and_learning_continues(build_harness: Build) -> None:
    def forge(row: Rollout) -> Rollout:
        return replace(row, tokens=(*row.tokens[:-1], 259)) if row.seed % 16 == 0 else row

    harness = build_harness()
    harness.coordinator.forge, harness.coordinator.replayed = forge, False
    harness.run()
    assert len(harness.chain.hashes) == 3
    left_out = [line["batch/left_out"] for line in harness.read_metrics() if line["event"] == "update"]
    assert sum(left_out) > 0


def test_cycle__home_of_another_pool__is_refused(build_harness: Build) -> None:
    harness = build_harness(steps=1)
    harness.run()
    harness.chain.hashes.clear()
    with pytest.raises(OperatorError, match="wrong_checkpoint"):
        harness.run()


def test_cycle__empty_home_for_a_pool_that_has_begun__is_refused(build_harness: Build) -> None:
    first, second = build_harness(steps=1), build_harness(steps=1)
    first.run()
    second.chain.hashes.extend(first.chain.hashes)
    with pytest.raises(OperatorError, match="wrong_checkpoint"):
        second.run()


def test_cycle__another_policy_on_chain__is_refused(build_harness: Build) -> None:
    harness = build_harness(steps=0)
    harness.chain.hashes.append(Hash("0x" + "33" * 32))
    with pytest.raises(OperatorError, match="another_policy"):
        harness.run()


def test_cycle__evaluation_fails__the_process_ends_with_its_error(
    build_harness: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = build_harness(steps=None)

    def fail(*_: object) -> float:
        raise OperatorError("bad_environment", "no grader", fix="Install one")

    monkeypatch.setattr("trainer.monitoring.evaluation.Evaluator.evaluate", fail)
    with pytest.raises(OperatorError, match="no grader"):
        harness.run()


def test_cycle__policy_lost_before_its_evaluation__is_not_evaluated_and_learning_continues(
    build_harness: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = build_harness()
    evaluate = Evaluator.evaluate

    def lose(self: Evaluator, folder: Path, step: Step) -> float:
        if step == 1:
            while len(harness.chain.hashes) < 2:  # the concurrent publication comes first
                Flag().wait(0.01)
            (folder / WEIGHTS_FILE).unlink(missing_ok=True)
        return evaluate(self, folder, step)

    monkeypatch.setattr(Evaluator, "evaluate", lose)
    for _ in range(2):
        harness.run()
        assert len(set(harness.chain.hashes)) == 3
        assert [line["step"] for line in harness.read_metrics() if line["event"] == "evaluation"] == [0, 2]


def test_cycle__evaluations_late__neither_stop_the_updates_nor_lose_their_policies(
    build_harness: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = build_harness(steps=4)
    seen: list[tuple[int, int]] = []
    pause = Flag()

    def wait(_: object, folder: Path, step: int) -> EvaluationScore:
        assert harness.context is not None
        progress = harness.context.progress
        while step == 0 and progress.step < 4:
            pause.wait(0.01)  # step 0 is being evaluated while all others are trained
        seen.append((step, len(json.loads((folder / "config.json").read_text()))))
        return EvaluationScore(reward=0.5, standard_error=0.1)

    monkeypatch.setattr("trainer.monitoring.evaluation.Evaluator.evaluate", wait)
    harness.run()
    assert [step for step, _ in seen] == [0, 1, 2, 3, 4]
    assert harness.context is not None
    assert harness.context.exports.list_steps()[-2:] == [3, 4]


def test_publish__unreachable_chain__counts_as_waiting_and_the_origin_is_filled_once(build_harness: Build) -> None:
    """Each reading of the clock advances it by a second, and a failed attempt by an hour."""
    harness, now = build_harness(), 0.0
    mine, attempts = harness.chain.mine, iter([False, False, True])

    def look() -> float:
        nonlocal now
        now += 1
        return now

    def fail(outbox: SqliteOutbox) -> int:
        nonlocal now
        if next(attempts, True):
            done: int = mine(outbox)
            return done
        now += 3600
        raise TransientError("chain_unreachable", "gone")

    harness.chain.mine = fail

    async def publish() -> dict[str, Any]:
        with ThreadPoolExecutor(max_workers=1) as chain_thread:
            ctx = replace(harness.build(chain_thread, asyncio.Event()), timer=look)
            for _ in range(2):
                with pytest.raises(TransientError):
                    await loop.publish(ctx)
            assert await loop.publish(ctx) is CycleResult.DONE
            assert await loop.publish(ctx) is CycleResult.IDLE
        (policy,) = harness.read_metrics()
        return dict(policy)

    policy = asyncio.run(publish())
    assert (policy["event"], policy["time/publish"], policy["time/wait_for_chain"]) == ("policy", 1, 7201)


def test_publish__not_mined_and_a_stop_signal__leaves_at_once(build_harness: Build) -> None:
    harness = build_harness()
    harness.chain.mine = lambda _: 1

    async def try_it() -> tuple[CycleResult, int]:
        stop = asyncio.Event()
        with ThreadPoolExecutor(max_workers=1) as chain_thread:
            ctx = harness.build(chain_thread, stop)
            asyncio.get_running_loop().call_later(0.12, stop.set)
            return await loop.publish(ctx), ctx.progress.unpublished

    assert asyncio.run(try_it()) == (CycleResult.IDLE, 0)


def test_cycle__recomputed_old_policy__is_the_one_that_learns_whatever_was_claimed(build_harness: Build) -> None:
    harnesses = [build_harness(steps=3, loss={"old_policy": "recompute"}) for _ in range(2)]
    harnesses[1].coordinator.forge = lambda row: replace(row, logprobs=tuple(-9.0 for _ in row.tokens))
    for harness in harnesses:
        harness.coordinator.staleness = 1
        harness.run()
        ratios = [line["policy/ratio"] for line in harness.read_metrics() if line["event"] == "update"]
        assert ratios == [1, 1, 1]  # to the bit: under the published policy, in bfloat16, they differ
    assert harnesses[0].chain.hashes == harnesses[1].chain.hashes


def test_cycle__claimed_old_policy__learns_from_claims_that_replayed_work_explains(build_harness: Build) -> None:
    """Nothing is replayed, so no claim may differ from the trainer's value. Lies are replaced by it."""
    harnesses = [build_harness(steps=2, loss={"old_policy": "claimed"}) for _ in range(3)]
    harnesses[1].coordinator.forge = lambda row: replace(row, logprobs=tuple(-9.0 for _ in row.tokens))
    for harness in harnesses[:2]:
        harness.coordinator.replayed = False
    for harness in harnesses:
        harness.run()
    updates = [[line for line in each.read_metrics() if line["event"] == "update"] for each in harnesses]
    assert [line["policy/ratio"] for line in updates[1]] == [1, 1]
    assert [line["policy/claims_replaced"] for line in updates[1]] == [1, 1]
    assert [line["policy/claims_replaced"] for line in updates[2]] == [0, 0]
    assert harnesses[0].chain.hashes == harnesses[1].chain.hashes
    assert harnesses[2].chain.hashes[2] != harnesses[1].chain.hashes[2]


@pytest.mark.parametrize(
    "settings",
    [
        {"loss": {"old_policy": "recompute"}},
        {"loss": {"beta": 0.1}},
        {"loss": {"entropy_coef": 0.01}},
        {"optim": {"updates_per_step": 2}},
        {"loss": {"preset": "dr-grpo@1"}},
        {"loss": {"loss_type": "grpo"}},
    ],
)
def test_cycle__other_objectives__publish_other_policies(
    settings: dict[str, Any], build_harness: Build, straight: dict[str, list[Hash]]
) -> None:
    harness = build_harness(eval={"every": 10}, **settings)
    harness.run()
    default = get_straight(straight, build_harness, "fresh")
    assert harness.chain.hashes[0] == default[0]
    assert harness.chain.hashes[2] != default[2]
    assert [line["step"] for line in harness.read_metrics() if line["event"] == "evaluation"] == [0, 2]
    kl = [line["policy/kl"] for line in harness.read_metrics() if line["event"] == "update"]
    assert (kl[1] > 0) == ("beta" in settings.get("loss", {}))


def test_cycle__policies_to_keep__stay(build_harness: Build) -> None:
    harness = build_harness(steps=5, eval={"every": 0}, ckpt={"keep_policies_every": 2})
    harness.run()
    kept = set(harness.context.exports.list_steps())
    assert {0, 2, 4, 5} <= kept
    assert 1 not in kept


def test_cycle__kl_to_step_0__keeps_the_reference_policy(build_harness: Build) -> None:
    harness = build_harness(steps=3, loss={"beta": 0.1})
    harness.run()
    assert {0, 2, 3} <= set(harness.context.exports.list_steps())
    plain = build_harness(steps=3, eval={"every": 0})  # a policy that waits for an evaluation is kept
    plain.run()
    assert set(plain.context.exports.list_steps()) in ({2, 3}, {1, 2, 3})  # depends on how fast the chain was
