"""Training speed, memory and learning of Covey as one process, against TRL's `GRPOTrainer` on the copying task.

Each side is a fresh process with one thread, and the sides take turns.  Each round has its own seed for weights,
prompts and samples.  Model, group, batch, loss and optimizer are equal.  Covey's side is the Hugging Face engine with
seeded sampling and no proofs on the learner's own model.  The whole step counts.  What a side does before its first
step does not.

Siblings that share their prompt's prefill and its gradient halve the update, and operations alone give a ratio of about
2.  Where siblings agree for longer, as in this task with its eight symbols, they are also computed once.  Long answers
over a large vocabulary part at once.

Bars are on ratios of CPU seconds, which a busy machine changes less than wall seconds.  Measurements that vary between
runs as much as their distance from any bar have none: rates by wall time, and times to the reward, because the steps
to the target differ by a factor of two between seeds.
"""

import argparse
import math
import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from statistics import mean, median, stdev
from typing import Any

from benchmarks import isolated_process
from benchmarks.harness import finish
from benchmarks.measurement import Bar, Measurement, find_misses, set_bars
from benchmarks.training import copy_task
from benchmarks.training.copy_task import LARGE, LENGTH, SMALL, CopyTaskConfig, Prompt, RunRecorder, TrainingRun
from covey.engines.base import Engine, GenerationRequest
from covey.engines.hf.engine import HuggingFaceEngine, prepare_process
from covey.protocol.ids import GroupId, Step, TaskId
from covey.protocol.submission_file.rows import Rollout
from trainer.algorithm.batches import build_batch, build_samples, split_updates
from trainer.algorithm.forward import PackingConfig
from trainer.algorithm.learner import Learner, Optimiser
from trainer.algorithm.loss_settings import LossSettings
from trainer.data.samples import AcceptedWork, Batch

OURS, TRL = "ours", "trl"
SIDES = {OURS: "benchmarks.training.throughput:learn", TRL: "benchmarks.training.trl_peer:learn"}
"""Functions that run a side in a fresh process."""
TARGET = 0.9
"""Mean reward of ten steps that counts as learned."""
WARM_UP = 5
"""First steps whose time does not count as speed."""
ENDS = 10
"""First and last steps whose mean rewards show whether a run learns."""
BARS = {
    "samples_per_s_ratio_by_cpu.small": Bar(least=1.8),
    "samples_per_s_ratio_by_cpu.large": Bar(least=2.0),
    "peak_memory_ratio": Bar(most=1.0),
    "reward_gain": Bar(least=0.02),
    "reward_difference.small": Bar(least=-0.1, most=0.1),
    "reward_difference.large": Bar(least=-0.02, most=0.02),
}
"""Bars by name.

A policy that learns nothing has a gain of 0.00 with a deviation of 0.01.  The bars of the difference between the two
sides' mean rewards are more than three standard errors of five rounds.
"""

RunsBySide = dict[str, list[TrainingRun]]


def build_learner(config: CopyTaskConfig, seed: int, objective: LossSettings) -> Learner:
    """Build the learner around fresh weights.  A row holds a whole group, even if its samples share nothing."""
    optimiser = Optimiser(
        learning_rate=config.learning_rate,
        betas=copy_task.BETAS,
        epsilon=copy_task.ADAM_EPSILON,
        weight_decay=0.0,
        warm_up=0,
        clip=copy_task.CLIP,
    )
    shape = PackingConfig(
        seq_len=LENGTH + config.siblings * (LENGTH - 1), micro_batch_size=config.batch, compute_dtype="float32"
    )
    model = copy_task.build_model(config, seed).train(False)
    return Learner(model, optimiser=optimiser, objective=objective, shape=shape)


def roll_out(engine: Engine, prompts: Sequence[Prompt], siblings: int, rng: random.Random) -> list[Rollout]:
    """Generate the completions of a step with their rewards.  Sampling seeds come from `rng`."""
    requests = [
        GenerationRequest(prompt=prompt, seed=rng.getrandbits(63), max_tokens=LENGTH)
        for prompt in prompts
        for _ in range(siblings)
    ]
    completions = engine.generate(requests, temperature=1.0)
    return [
        Rollout(
            group=GroupId(i // siblings),
            sibling=i % siblings,
            seed=request.seed,
            prompt=request.prompt,
            tokens=completion.tokens,
            logprobs=completion.logprobs,
            proofs=(),
            finished=completion.finished,
            reward=copy_task.compute_reward(request.prompt, completion.tokens),
        )
        for i, (request, completion) in enumerate(zip(requests, completions, strict=True))
    ]


def prepare(rollouts: Sequence[Rollout], siblings: int, version: int, *, updates: int = 1) -> list[Batch]:
    """Build the batches of a step from rollouts of one policy.

    Advantages are not divided by their deviation, and the loss is one sum over tokens.
    """
    work = AcceptedWork(task=TaskId(0), policy_version=Step(version), replayed=True, rollouts=tuple(rollouts))
    samples = build_samples([work], group_size=siblings, loss=LossSettings(scale_rewards="none"))
    parts = split_updates(samples, group_size=siblings, updates=updates)
    return [build_batch(part, normaliser="tokens", constant=LENGTH, keep_all=False) for part in parts]


def learn(fields: dict[str, Any], seed: int) -> TrainingRun:
    """Run all steps of Covey's side on a `CopyTaskConfig`, which is given by its fields."""
    prepare_process(threads=1)
    config = CopyTaskConfig(**fields)
    objective = LossSettings(importance_sampling_mode="none", epsilon=copy_task.EPSILON, delta=copy_task.DELTA)
    learner = build_learner(config, seed, objective)
    engine = HuggingFaceEngine.from_model(learner.model, copy_task.build_tokenizer(), max_batch=config.batch)
    prompts, rng = copy_task.draw_prompts(seed, config.groups * config.steps), random.Random(seed)
    recorder = RunRecorder()
    for step in range(config.steps):
        rollouts = roll_out(engine, prompts[step * config.groups :][: config.groups], config.siblings, rng)
        learner.learn(prepare(rollouts, config.siblings, step))
        recorder.add([rollout.reward for rollout in rollouts])
        recorder.stamp()
    return recorder.build_run()


def measure(side: str, config: CopyTaskConfig, seed: int) -> TrainingRun:
    """Run one side in a fresh process."""
    return TrainingRun(**isolated_process.call(SIDES[side], config, seed))


def compute_rate(config: CopyTaskConfig, run: TrainingRun, clock: str) -> float:
    """Compute the samples per second by "wall" or "cpu", without the first steps and those after learning."""
    seconds: list[float] = getattr(run, clock)[WARM_UP : config.timed]
    return config.batch * len(seconds) / sum(seconds)


def compute_seconds(run: TrainingRun, clock: str) -> float:
    """Compute the seconds from the first step to the target.  Infinity if the run has not reached it."""
    step = copy_task.find_step(run.rewards, TARGET)
    return math.inf if step is None else list(accumulate(getattr(run, clock)))[step - 1]


def compute_gain(run: TrainingRun) -> float:
    """Compute the mean reward of the last steps less that of the first ones."""
    return mean(run.rewards[-ENDS:]) - mean(run.rewards[:ENDS])


def build_speed_measurements(config: CopyTaskConfig, runs: RunsBySide) -> list[Measurement]:
    """Build the ratios of speed and memory, the numbers that they divide, and what the worst run learns.

    Rates by wall time are those of the fastest run, rates by CPU time those of the median run.  Memory is the worst of
    Covey's runs and the best of TRL's.
    """
    n, name = len(runs[OURS]), config.name
    measurements = []

    def add(what: str, value: float, unit: str, peer: str = "") -> None:
        measurements.append(Measurement(name=f"{what}.{name}", value=value, unit=unit, n=n, peer=peer))

    for clock, suffix, choose in (("wall", "", max), ("cpu", "_by_cpu", median)):
        rates = {side: choose([compute_rate(config, run, clock) for run in of_side]) for side, of_side in runs.items()}
        add(f"samples_per_s_ratio{suffix}", rates[OURS] / rates[TRL], "ratio", f"trl {rates[TRL]:,.0f} samples/s")
        add(f"samples_per_s{suffix}.ours", rates[OURS], "samples/s")
    peak = {OURS: max(run.peak for run in runs[OURS]), TRL: min(run.peak for run in runs[TRL])}
    add("peak_memory_ratio", peak[OURS] / peak[TRL], "ratio", f"trl {peak[TRL] / 1e6:,.0f} MB")
    for side, of_side in runs.items():
        add(f"peak_mb.{side}", peak[side] / 1e6, "MB")
        add(f"baseline_mb.{side}", median(run.baseline for run in of_side) / 1e6, "MB")
    gain = {side: min(compute_gain(run) for run in of_side) for side, of_side in runs.items()}
    add("reward_gain", gain[OURS], "reward", f"trl {gain[TRL]:.3f}")
    return set_bars(measurements, BARS)


def build_learning_measurements(config: CopyTaskConfig, runs: RunsBySide) -> list[Measurement]:
    """Build the times and steps to the target, medians over the rounds.

    The ratio is infinite if Covey's side has not reached the target, and NaN if TRL's has not.
    """
    n, name = len(runs[OURS]), config.name
    measurements = []
    for clock, suffix in (("wall", ""), ("cpu", "_by_cpu")):
        seconds = {side: median(compute_seconds(run, clock) for run in of_side) for side, of_side in runs.items()}
        is_comparable = seconds[TRL] < math.inf
        ratio = seconds[OURS] / seconds[TRL] if is_comparable else math.nan
        peer = f"trl {seconds[TRL]:.1f} s to reward {TARGET}" if is_comparable else f"trl never reached {TARGET}"
        full_name = f"time_to_reward_ratio{suffix}.{name}"
        measurements.append(Measurement(name=full_name, value=ratio, unit="ratio", n=n, peer=peer))
    for side, of_side in runs.items():
        steps = median(copy_task.find_step(run.rewards, TARGET) or math.inf for run in of_side)
        measurements.append(Measurement(name=f"steps_to_reward.{side}.{name}", value=steps, unit="steps", n=n))
    return measurements


def build_agreement_measurements(config: CopyTaskConfig, runs: RunsBySide) -> list[Measurement]:
    """Build the difference of the mean rewards of all steps, Covey's less TRL's, at equal samples."""
    n, name = len(runs[OURS]), config.name
    differences = [mean(a.rewards) - mean(b.rewards) for a, b in zip(runs[OURS], runs[TRL], strict=True)]
    error = stdev(differences) / n**0.5 if n > 1 else math.inf
    value, peer = mean(differences), f"standard error {error:.3f}"
    measurements = [
        Measurement(name=f"reward_difference.{name}", value=value, unit="reward", n=n, peer=peer),
        Measurement(name=f"reward_difference_in_errors.{name}", value=value / error, unit="errors", n=n),
    ]
    return set_bars(measurements, BARS)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser("make bench NAME=trainer", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="runs of each side, one seed per round; default: 5")
    parser.add_argument("--case", choices=(SMALL.name, LARGE.name), help="the one size to measure; default: both")
    options = parser.parse_args(arguments)
    measurements = []
    for config in (config for config in (SMALL, LARGE) if options.case in {None, config.name}):
        runs: RunsBySide = {OURS: [], TRL: []}
        for side in SIDES:  # a fresh installation compiles and reads files once; this run takes that and is not counted
            measure(side, replace(config, steps=WARM_UP), seed=0)
        for seed in range(options.rounds):
            for side in (OURS, TRL) if seed % 2 else (TRL, OURS):  # no side is always the first
                run = measure(side, config, seed)
                runs[side].append(run)
                rate, steps = compute_rate(config, run, "wall"), copy_task.find_step(run.rewards, TARGET)
                reached = f"{steps} steps to reward {TARGET}, " if steps else ""
                print(f"{config.name}, seed {seed}, {side}: {reached}{rate:,.0f} samples/s", flush=True)
        measurements += build_speed_measurements(config, runs) + build_agreement_measurements(config, runs)
        measurements += build_learning_measurements(config, runs) if config is SMALL else []
    return finish("trainer", measurements, find_misses(measurements), arguments)
