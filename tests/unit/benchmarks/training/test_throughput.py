"""The benchmark of training: batches, and measurements from times, bytes and curves."""

import math
import random
from dataclasses import replace

import pytest

from benchmarks import isolated_process
from benchmarks.measurement import Measurement, find_misses, set_bars
from benchmarks.training.copy_task import (
    EPSILON,
    LENGTH,
    SMALL,
    CopyTaskConfig,
    TrainingRun,
    build_tokenizer,
    draw_prompts,
)
from benchmarks.training.throughput import (
    BARS,
    WARM_UP,
    build_agreement_measurements,
    build_learner,
    build_learning_measurements,
    build_speed_measurements,
    compute_gain,
    compute_rate,
    compute_seconds,
    measure,
    prepare,
    roll_out,
)
from covey.engines.hf.engine import HuggingFaceEngine
from covey.protocol.ids import GroupId
from covey.protocol.submission_file.rows import Rollout
from trainer.algorithm.loss_settings import LossSettings

pytestmark = pytest.mark.unit

CONFIG = replace(SMALL, steps=20, timed=15, groups=2, siblings=3)
OBJECTIVE = LossSettings(importance_sampling_mode="none", epsilon=EPSILON)


def make_run(step: float, *, reached: int | None, peak: int = 100) -> TrainingRun:
    """Make a run of steps of `step` seconds, half of them CPU time, with reward 1 from step `reached` on."""
    rewards = [float(reached is not None and i >= reached) for i in range(20)]
    return TrainingRun(rewards=rewards, wall=[step] * 20, cpu=[step / 2] * 20, baseline=peak // 2, peak=peak)


def make_rollout(group: int, sibling: int, reward: float) -> Rollout:
    return Rollout(
        group=GroupId(group), sibling=sibling, seed=0, prompt=(2, 3), tokens=(4, 5), logprobs=(-1.0, -2.0), proofs=(),
        finished=False, reward=reward,
    )  # fmt: skip


def test_roll_out__two_prompts__are_groups_of_siblings_with_own_seeds_and_rewards() -> None:
    learner = build_learner(CONFIG, 0, OBJECTIVE)
    engine = HuggingFaceEngine.from_model(learner.model, build_tokenizer(), max_batch=CONFIG.batch)
    prompts = draw_prompts(0, 2)
    rollouts = roll_out(engine, prompts, 3, random.Random(0))
    assert [(each.group, each.sibling) for each in rollouts] == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
    assert [each.prompt for each in rollouts] == [prompts[0]] * 3 + [prompts[1]] * 3
    assert len({each.seed for each in rollouts}) == 6
    for each in rollouts:
        hits = [a == b for a, b in zip(each.prompt, each.tokens, strict=False)]
        assert each.reward == sum(hits) / LENGTH
        assert len(each.tokens) == len(each.logprobs) <= LENGTH


def test_prepare__groups__have_rewards_less_their_mean_and_one_weight_per_token() -> None:
    rewards = [1.0, 0.0, 0.5, 0.5, 0.0, 0.0, 0.0, 0.0, 0.75]
    rollouts = [make_rollout(*divmod(i, 3), reward) for i, reward in enumerate(rewards)]
    (batch,) = prepare(rollouts, 3, 7)
    # By group: 1 - 0.5 and 0 - 0.5, as an advantage of 0 is dropped; 0.5 - 1/6 and -1/6 twice; -0.25 twice and 0.5.
    assert [s.advantage for s in batch.samples] == pytest.approx([0.5, -0.5, 1 / 3, -1 / 6, -1 / 6, -0.25, -0.25, 0.5])
    assert batch.weights == pytest.approx([1 / 18] * 8)
    assert (batch.tokens, {s.policy_version for s in batch.samples}) == (18, {7})
    assert all(s.old == (-1.0, -2.0) for s in batch.samples)


def test_prepare__two_updates__divide_the_groups() -> None:
    rollouts = [make_rollout(group, sibling, float(sibling)) for group in range(4) for sibling in range(2)]
    first, second = prepare(rollouts, 2, 0, updates=2)
    assert [sorted({s.id.group for s in batch.samples}) for batch in (first, second)] == [[0, 2], [1, 3]]


def test_compute_rate__first_steps_and_steps_after_learning__do_not_count() -> None:
    run = replace(make_run(0.5, reached=None), wall=[9.0] * WARM_UP + [0.5] * 10 + [9.0] * 5)
    assert compute_rate(CONFIG, run, "wall") == 6 / 0.5
    assert compute_rate(CONFIG, run, "cpu") == 6 / 0.25


def test_compute_seconds__a_run__lasts_until_ten_steps_are_good() -> None:
    run = make_run(0.5, reached=4)
    assert compute_seconds(run, "wall") == 0.5 * 13  # nine of the steps 3 to 12 are good
    assert compute_seconds(run, "cpu") == 0.25 * 13
    assert compute_seconds(make_run(0.5, reached=None), "wall") == math.inf


def test_compute_gain__a_run__is_the_last_ten_steps_less_the_first() -> None:
    assert compute_gain(make_run(0.5, reached=4)) == pytest.approx(1.0 - 0.6)
    assert compute_gain(make_run(0.5, reached=None)) == 0
    run = make_run(0.5, reached=None)
    assert compute_gain(replace(run, rewards=[0.5] * 10 + [0.9] * 10 + [0.25] * 10)) == pytest.approx(-0.25)


def test_build_speed_measurements__one_of_two_rounds_learns_little__its_gain_counts() -> None:
    runs = {
        "ours": [make_run(0.5, reached=10), make_run(0.5, reached=18)],
        "trl": [make_run(0.5, reached=10), make_run(0.5, reached=15)],
    }
    (gain,) = [each for each in build_speed_measurements(CONFIG, runs) if each.name == "reward_gain.small"]
    assert gain.value == pytest.approx(0.2)
    assert gain.peer == "trl 0.500"


def test_build_speed_measurements__two_rounds__are_the_ratios_by_hand() -> None:
    runs = {
        "ours": [make_run(0.25, reached=4, peak=90), make_run(0.5, reached=4, peak=100)],
        "trl": [make_run(0.5, reached=4, peak=120), make_run(1.0, reached=4, peak=200)],
    }
    measurements = {each.name: each for each in build_speed_measurements(CONFIG, runs)}
    assert measurements["samples_per_s_ratio.small"].value == 2.0  # 24 over 12, the fastest of each
    assert measurements["samples_per_s_ratio_by_cpu.small"].value == 2.0  # (48 + 24) over (24 + 12), halved
    assert measurements["samples_per_s.ours.small"].value == 24.0
    assert measurements["peak_memory_ratio.small"].value == pytest.approx(
        100 / 120
    )  # the worst of ours, the best of TRL's
    assert measurements["baseline_mb.trl.small"].value == pytest.approx(80e-6)
    assert {each.n for each in measurements.values()} == {2}


def test_build_learning_measurements__two_rounds__are_medians() -> None:
    runs = {
        "ours": [make_run(0.5, reached=2), make_run(0.5, reached=6)],
        "trl": [make_run(1.0, reached=4), make_run(1.0, reached=6)],
    }
    measurements = {each.name: each for each in build_learning_measurements(CONFIG, runs)}
    assert measurements["time_to_reward_ratio.small"].value == pytest.approx(0.5 * 13 / 14)
    assert measurements["steps_to_reward.ours.small"].value == 13


@pytest.mark.parametrize(
    ("ours", "trl", "ratio"), [(4, 4, 0.5), (None, 4, math.inf), (4, None, math.nan), (None, None, math.nan)]
)
def test_build_learning_measurements__side_that_never_reaches_the_target__has_no_finite_ratio(
    ours: int | None, trl: int | None, ratio: float
) -> None:
    runs = {"ours": [make_run(0.5, reached=ours)] * 3, "trl": [make_run(1.0, reached=trl)] * 3}
    measurements = build_learning_measurements(CONFIG, runs)
    ratios = [each.value for each in measurements if each.name.startswith("time_to_reward_ratio")]
    assert ratios == pytest.approx([ratio, ratio], nan_ok=True)
    peers = {each.peer for each in measurements if each.name.startswith("time_to_reward_ratio")}
    assert peers == ({"trl 13.0 s to reward 0.9", "trl 6.5 s to reward 0.9"} if trl else {"trl never reached 0.9"})


def test_build_agreement_measurements__two_rounds__pairs_the_rounds() -> None:
    runs = {
        "ours": [make_run(0.5, reached=2), make_run(0.5, reached=6)],
        "trl": [make_run(1.0, reached=4), make_run(1.0, reached=6)],
    }
    measurements = {each.name: each for each in build_agreement_measurements(CONFIG, runs)}
    # Mean rewards are 18/20 and 14/20 against 16/20 and 14/20: 0.1 and 0, whose standard error is 0.05.
    assert measurements["reward_difference.small"].value == pytest.approx(0.05)
    assert measurements["reward_difference_in_errors.small"].value == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("name", "value", "count"),
    [
        ("samples_per_s_ratio_by_cpu.small", 1.8, 0),
        ("samples_per_s_ratio_by_cpu.small", 1.79, 1),
        ("samples_per_s_ratio_by_cpu.large", 2.0, 0),
        ("samples_per_s_ratio_by_cpu.large", 1.99, 1),
        ("samples_per_s_ratio_by_cpu.large", math.nan, 1),
        ("samples_per_s_ratio.small", 1.0, 0),
        ("time_to_reward_ratio.small", math.inf, 0),
        ("peak_memory_ratio.large", 1.0, 0),
        ("peak_memory_ratio.small", 1.01, 1),
        ("reward_difference_in_errors.small", -9.0, 0),
        ("reward_difference.small", -0.11, 1),
        ("reward_difference.small", 0.09, 0),
        ("reward_difference.large", 0.03, 1),
        ("reward_difference.large", math.nan, 1),
        ("reward_gain.large", 0.02, 0),
        ("reward_gain.large", 0.01, 1),
        ("reward_gain.large", math.nan, 1),
    ],
)
def test_bars__value_at_or_beyond__passes_or_misses(name: str, value: float, count: int) -> None:
    measurements = set_bars([Measurement(name=name, value=value, unit="", n=5)], BARS)
    assert len(find_misses(measurements)) == count


@pytest.mark.full
@pytest.mark.slow
def test_measure__both_sides__run_all_steps_and_start_with_rewards_of_chance(
    tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(isolated_process, "LOGS", tmp_path)
    config: CopyTaskConfig = replace(SMALL, steps=6, timed=6)
    runs = [measure(side, config, 0) for side in ("ours", "trl")]
    for run in runs:
        assert len(run.rewards) == len(run.wall) == len(run.cpu) == 6
        assert 0.05 < sum(run.rewards) / 6 < 0.2  # chance gives 0.125
        assert all(seconds > 0 for seconds in run.wall)
        assert run.baseline <= run.peak
