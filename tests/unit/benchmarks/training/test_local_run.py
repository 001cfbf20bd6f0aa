"""The comparison of `covey train` with TRL: settings, and measurements from clocks and curves."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.measurement import find_misses
from benchmarks.training import local_run, local_run_peer
from benchmarks.training.local_run import OURS, TRL
from benchmarks.training.spelling_task import SpellingConfig, SpellingRun
from covey.standalone.config import TrainConfig

pytestmark = pytest.mark.unit
CONFIG = SpellingConfig(rows=512, steps=20, every=4, timed=4)


def make_run(cpu: float, rewards: list[float], peak: int = 100) -> SpellingRun:
    """Make a run with steps of `cpu` CPU seconds and twice as many wall seconds, and evaluations every 10 s."""
    stamps = [(2 * cpu * step, cpu * step) for step in range(1, 5)]
    evaluations = [(4 * i, reward, 10.0 * i, 5.0 * i) for i, reward in enumerate(rewards)]
    return SpellingRun(stamps=stamps, evaluations=evaluations, peak=peak * 1_000_000)


def test_build_measurements__medians_of_three__are_ratios_by_trl() -> None:
    ours = [make_run(cpu, [0.3, 0.6, 0.8]) for cpu in (0.5, 0.25, 0.125)]
    peer = [make_run(1.0, [0.3, 0.5, 0.7, 0.75], peak=200)] * 3
    values = {each.name: each for each in local_run.build_measurements(CONFIG, {OURS: ours, TRL: peer})}
    assert values["samples_per_cpu_s.ours"].value == 128 / 0.25
    assert values["samples_per_cpu_s_ratio"].value == 4.0
    assert values["samples_per_s.ours"].value == 128 / 0.5
    assert values["samples_per_cpu_s_ratio"].peer == "trl 128.0 samples/s"
    assert values["peak_memory_ratio"].value == 0.5
    assert (values["steps_to_reward.ours"].value, values["steps_to_reward_ratio"].value) == (8, 8 / 12)
    assert values["cpu_s_to_reward_ratio"].value == pytest.approx(10 / 15)
    assert {each.n for each in values.values()} == {3}
    assert find_misses(list(values.values())) == []


def test_build_measurements__a_side_that_does_not_learn__has_no_ratio_or_an_infinite_one() -> None:
    slow, quick = [make_run(1.0, [0.3, 0.4])], [make_run(1.0, [0.3, 0.9])]
    values = {each.name: each.value for each in local_run.build_measurements(CONFIG, {OURS: slow, TRL: quick})}
    assert values["s_to_reward_ratio"] == math.inf
    values = {each.name: each.value for each in local_run.build_measurements(CONFIG, {OURS: quick, TRL: slow})}
    assert math.isnan(values["s_to_reward_ratio"])


def test_build_values__settings__are_those_of_trl() -> None:
    config = TrainConfig.load(None, local_run.build_values(CONFIG, seed=3, home="h", is_timed=False), {})
    peer = local_run_peer.build_settings(CONFIG, seed=3, folder="f", is_timed=False)
    assert config.sampling.group_size == peer["num_generations"]
    assert config.sampling.group_size * config.sampling.groups_per_step == peer["per_device_train_batch_size"]
    assert config.sampling.max_completion_tokens == peer["max_completion_length"]
    assert config.optim.betas == (peer["adam_beta1"], peer["adam_beta2"])
    assert (config.optim.learning_rate, config.optim.weight_decay) == (peer["learning_rate"], peer["weight_decay"])
    assert (config.optim.max_grad_norm, config.steps) == (peer["max_grad_norm"], peer["max_steps"])
    assert (config.eval.every, config.eval.prompts, config.eval.samples) == (peer["eval_steps"], 64, 1)
    assert config.threads == 1


@pytest.mark.full
@pytest.mark.parametrize("side", [OURS, TRL])
def test_measure__small_config__runs_and_evaluates(side: str, tmp_path: Path) -> None:
    config = replace(CONFIG, rows=64, steps=1, every=1, timed=3, groups=2, siblings=2)
    run = local_run.measure(side, config, 0, tmp_path / "rows.jsonl")
    assert len(run.stamps) == 3
    assert [step for step, *_ in run.evaluations] == [0, 1]
    assert all(0 <= reward <= 1 for _, reward, *_ in run.evaluations)
    assert local_run.compute_rate(config, run, 1) > 0
    assert run.peak > 100e6
