"""Learning on one machine: ours as one process against TRL's `GRPOTrainer`, in one run.

`make bench NAME=trainer`; ARGS="--rounds 5 --case small".  A side is a fresh process with one thread; the sides take
turns, each round has a seed of its own for weights, prompts and samples.  Model, task, group, batch, loss and optimizer
are the same.  Ours is the Hugging Face engine with seeded sampling and no proofs on the learner's own model.
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
from benchmarks.harness import Measurement, find_misses, finish
from benchmarks.training import copy_task
from benchmarks.training.copy_task import LARGE, LENGTH, SMALL, CopyTaskConfig, Prompt, RunRecorder, TrainingRun
from covey.engines.base import Engine, GenerationRequest
from covey.engines.hf.engine import HuggingFaceEngine, prepare_process
from covey.protocol.ids import GroupId, Step, TaskId
from covey.protocol.submission_file.rows import Rollout
from trainer.algorithm.batches import build_batch, build_samples, split_updates
from trainer.algorithm.forward import Shape
from trainer.algorithm.grpo import Objective
from trainer.algorithm.learner import Learner, Optimiser
from trainer.data.samples import Batch, Work

OURS, TRL = "ours", "trl"
SIDES = {OURS: "benchmarks.training.throughput:learn", TRL: "benchmarks.training.trl_peer:learn"}
TARGET = 0.9
WARM_UP = 5
"""Steps at the start whose time does not count as speed."""
ENDS = 10
"""First and last steps whose mean rewards tell whether a run learns."""
LEAST = {"samples_per_s_ratio_by_cpu.small": 1.8, "samples_per_s_ratio_by_cpu.large": 2.0, "reward_gain": 0.02}
"""Lowest values that pass.  Rates count CPU seconds, which a busy machine changes less than seconds of the clock.  A
policy that learns nothing gains 0.00 with a deviation of 0.01, and the large case gains 0.06 in its 30 steps."""
MOST = {"peak_memory_ratio": 1.0}
"""No more memory than the peer's; 0.85 to 0.98 was measured."""
APART = {"reward_difference.small": 0.1, "reward_difference.large": 0.02}
"""Largest distance between the two sides' mean rewards of all steps: more than three standard errors of five rounds."""

Runs = dict[str, list[TrainingRun]]


def build_learner(case: CopyTaskConfig, seed: int, objective: Objective) -> Learner:
    """The trainer around fresh weights; a row holds a whole group, however little its samples have in common."""
    optimiser = Optimiser(
        learning_rate=case.learning_rate,
        betas=copy_task.BETAS,
        epsilon=copy_task.ADAM_EPSILON,
        weight_decay=0.0,
        warm_up=0,
        clip=copy_task.CLIP,
    )
    shape = Shape(
        row_tokens=LENGTH + case.siblings * (LENGTH - 1), micro_batch_rows=case.batch, compute_dtype="float32"
    )
    model = copy_task.build_model(case, seed).train(False)
    return Learner(model, optimiser=optimiser, objective=objective, shape=shape)


def roll_out(engine: Engine, prompts: Sequence[Prompt], siblings: int, rng: random.Random) -> list[Rollout]:
    """Completions of a step with their rewards; sampling seeds come from `rng`."""
    requests = [
        GenerationRequest(prompt=prompt, seed=rng.getrandbits(63), max_tokens=LENGTH)
        for prompt in prompts
        for _ in range(siblings)
    ]
    return [
        Rollout(
            group=GroupId(i // siblings),
            sibling=i % siblings,
            seed=request.seed,
            prompt=request.prompt,
            tokens=found.tokens,
            logprobs=found.logprobs,
            proofs=(),
            finished=found.finished,
            reward=copy_task.compute_reward(request.prompt, found.tokens),
        )
        for i, (request, found) in enumerate(zip(requests, engine.generate(requests, temperature=1.0), strict=True))
    ]


def prepare(rollouts: Sequence[Rollout], siblings: int, version: int, *, updates: int = 1) -> list[Batch]:
    """The batches of a step, of rollouts of one policy: advantages without a deviation, one sum over tokens."""
    work = Work(task=TaskId(0), policy_version=Step(version), replayed=True, rollouts=tuple(rollouts))
    samples = build_samples([work], group_size=siblings, advantage="dr_grpo")
    parts = split_updates(samples, group_size=siblings, updates=updates)
    return [build_batch(part, normaliser="tokens", constant=LENGTH, keep_all=False) for part in parts]


def learn(sizes: dict[str, Any], seed: int) -> TrainingRun:
    """All steps of ours on a `CopyTaskConfig`."""
    prepare_process(threads=1)
    case = CopyTaskConfig(**sizes)
    objective = Objective(
        kind="two_sided", epsilon=copy_task.EPSILON, delta=copy_task.DELTA, cap=1.0, kl=0.0, entropy=0.0
    )
    learner = build_learner(case, seed, objective)
    engine = HuggingFaceEngine.from_model(learner.model, copy_task.build_tokenizer(), max_batch=case.batch)
    prompts, rng = copy_task.draw_prompts(seed, case.groups * case.steps), random.Random(seed)
    recorder = RunRecorder()
    for step in range(case.steps):
        rollouts = roll_out(engine, prompts[step * case.groups :][: case.groups], case.siblings, rng)
        learner.learn(prepare(rollouts, case.siblings, step))
        recorder.add([rollout.reward for rollout in rollouts])
        recorder.stamp()
    return recorder.build_run()


def measure(side: str, case: CopyTaskConfig, seed: int) -> TrainingRun:
    """One side in a fresh process."""
    return TrainingRun(**isolated_process.call(SIDES[side], case, seed))


def compute_rate(case: CopyTaskConfig, run: TrainingRun, clock: str) -> float:
    """Samples a second by "wall" or "cpu", the first steps aside."""
    seconds: list[float] = getattr(run, clock)[WARM_UP : case.timed]
    return case.batch * len(seconds) / sum(seconds)


def find_seconds(run: TrainingRun, clock: str) -> float:
    """From the first step to the target; infinite for a run that has not reached it."""
    step = copy_task.find_step(run.rewards, TARGET)
    return math.inf if step is None else list(accumulate(getattr(run, clock)))[step - 1]


def compute_gain(run: TrainingRun) -> float:
    """Mean reward of the last steps less that of the first ones."""
    return mean(run.rewards[-ENDS:]) - mean(run.rewards[:ENDS])


def build_claims(case: CopyTaskConfig, runs: Runs) -> list[Measurement]:
    """The ratios, then what they are made of, and what the worst run learns.

    Rates are of the fastest run by the clock, of the median one by CPU time.
    """
    n, name = len(runs[OURS]), case.name
    claims = []

    def add(what: str, value: float, unit: str, peer: str = "") -> None:
        claims.append(Measurement(name=f"{what}.{name}", value=value, unit=unit, n=n, peer=peer))

    for clock, end, choose in (("wall", "", max), ("cpu", "_by_cpu", median)):
        rates = {side: choose([compute_rate(case, run, clock) for run in found]) for side, found in runs.items()}
        add(f"samples_per_s_ratio{end}", rates[OURS] / rates[TRL], "ratio", f"trl {rates[TRL]:,.0f} samples/s")
        add(f"samples_per_s{end}.ours", rates[OURS], "1/s")
    peak = {OURS: max(run.peak for run in runs[OURS]), TRL: min(run.peak for run in runs[TRL])}
    add("peak_memory_ratio", peak[OURS] / peak[TRL], "ratio", f"trl {peak[TRL] / 1e6:,.0f} MB")
    for side, found in runs.items():
        add(f"peak_mb.{side}", peak[side] / 1e6, "MB")
        add(f"baseline_mb.{side}", median(run.baseline for run in found) / 1e6, "MB")
    gain = {side: min(compute_gain(run) for run in found) for side, found in runs.items()}
    add("reward_gain", gain[OURS], "reward", f"trl {gain[TRL]:.3f}")
    return claims


def build_learning_claims(case: CopyTaskConfig, runs: Runs) -> list[Measurement]:
    """Return the times to the target as medians over the rounds.

    They have no bar: the steps to the target differ by a factor of two between seeds.  The ratio is NaN where the peer
    has not reached the target.
    """
    n, name = len(runs[OURS]), case.name
    claims = []
    for clock, end in (("wall", ""), ("cpu", "_by_cpu")):
        seconds = {side: median(find_seconds(run, clock) for run in found) for side, found in runs.items()}
        is_comparable = seconds[TRL] < math.inf
        ratio = seconds[OURS] / seconds[TRL] if is_comparable else math.nan
        told = f"trl {seconds[TRL]:.1f} s to reward {TARGET}" if is_comparable else f"trl never reached {TARGET}"
        claims.append(Measurement(name=f"time_to_reward_ratio{end}.{name}", value=ratio, unit="ratio", n=n, peer=told))
    for side, found in runs.items():
        steps = median(copy_task.find_step(run.rewards, TARGET) or math.inf for run in found)
        claims.append(Measurement(name=f"steps_to_reward.{side}.{name}", value=steps, unit="steps", n=n))
    return claims


def build_agreement(case: CopyTaskConfig, runs: Runs) -> list[Measurement]:
    """Whether the curves agree at equal samples: the mean reward of all steps, ours less the peer's."""
    n, name = len(runs[OURS]), case.name
    differences = [mean(a.rewards) - mean(b.rewards) for a, b in zip(runs[OURS], runs[TRL], strict=True)]
    error = stdev(differences) / n**0.5 if n > 1 else math.inf
    told = f"standard error {error:.3f}"
    difference = Measurement(name=f"reward_difference.{name}", value=mean(differences), unit="reward", n=n, peer=told)
    agreement = Measurement(
        name=f"reward_difference_in_errors.{name}", value=difference.value / error, unit="errors", n=n
    )
    return [difference, agreement]


def find_failures(claims: Sequence[Measurement]) -> list[str]:
    """Return a line for each claim beyond its bar and for each pair of curves that differ."""
    return find_misses(claims, least=LEAST, most=MOST) + [
        f"{claim.name} is {claim.value:.3f}: the curves differ"
        for claim in claims
        if claim.name in APART and not abs(claim.value) <= APART[claim.name]
    ]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="runs of each side, each of a seed of its own")
    parser.add_argument("--case", choices=(SMALL.name, LARGE.name), help="measure this one alone")
    options = parser.parse_args(arguments)
    claims = []
    for case in (case for case in (SMALL, LARGE) if options.case in {None, case.name}):
        runs: Runs = {OURS: [], TRL: []}
        for side in SIDES:  # what a fresh installation compiles once and reads from its disk, not counted
            measure(side, replace(case, steps=WARM_UP), seed=0)
        for seed in range(options.rounds):
            for side in (OURS, TRL) if seed % 2 else (TRL, OURS):  # neither is always the first
                run = measure(side, case, seed)
                runs[side].append(run)
                rate, steps = compute_rate(case, run, "wall"), copy_task.find_step(run.rewards, TARGET)
                told = f"{steps} steps to reward {TARGET}, " if steps else ""
                print(f"{case.name}, seed {seed}, {side}: {told}{rate:,.0f} samples/s", flush=True)
        claims += build_claims(case, runs) + build_agreement(case, runs)
        claims += build_learning_claims(case, runs) if case is SMALL else []
    return finish("trainer", claims, find_failures(claims))
