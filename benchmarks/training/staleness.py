"""Reward after learning from older policies, with the two-sided clipped objective and the decoupled one.

The copying task from random weights.  The rollouts of step t come from the policy of step t - staleness, with its
log-probabilities.  "naive" clips the ratio to the policy that sampled.  "decoupled" clips the ratio to the policy that
the step starts from, and corrects the loss for the policy that sampled (AReaL, arXiv 2505.24298, section 5.2).

The task is made hard on purpose: four updates per step, and a learning rate at which the steps just suffice, make
policies differ between steps.  With one update per step, or with more steps, staleness hardly shows.  The last bits of
an implementation or a machine move single numbers: one seed of five may end in a dip from which it recovers.
"""

import argparse
import random
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import mean, stdev

from torch import Tensor

from benchmarks.harness import finish
from benchmarks.measurement import Bar, Measurement, find_misses, set_bars
from benchmarks.training import copy_task
from benchmarks.training.copy_task import SMALL, CopyTaskConfig
from benchmarks.training.throughput import build_learner, prepare, roll_out
from covey.engines.hf.engine import HuggingFaceEngine, prepare_process
from trainer.algorithm.loss_settings import ImportanceMode, LossSettings

KINDS: Mapping[str, ImportanceMode] = {"naive": "none", "decoupled": "token_truncate"}
"""Objectives by the name that measurements have."""
SYNCHRONOUS = "synchronous"
"""Name of staleness 0, at which both objectives are the same."""
STALENESS = (1, 2, 4, 8)
UPDATES = 4
"""Updates per step."""
CONFIG = replace(SMALL, learning_rate=7e-4, steps=100, groups=SMALL.groups * UPDATES)
CAP = 5.0
"""Largest importance weight of the decoupled objective."""
BARS = {"decoupled_loss_at_4": Bar(most=2.0)}
EVALUATED = 256
"""Fresh prompts on which the last policy is evaluated, with two samples each."""

Rewards = Mapping[tuple[str, int], Sequence[float]]
"""Last rewards of all seeds by objective and staleness."""


class PastPolicies:
    """Weights of the newest policies, from the one that samples to the current one."""

    def __init__(self, staleness: int) -> None:
        self._kept: deque[tuple[int, dict[str, Tensor]]] = deque(maxlen=staleness + 1)

    def add(self, version: int, weights: Mapping[str, Tensor]) -> None:
        """Keep a copy of the policy that step `version` starts from."""
        self._kept.append((version, {name: tensor.detach().clone() for name, tensor in weights.items()}))

    def get_oldest(self) -> tuple[int, dict[str, Tensor]]:
        """Return version and weights of the policy that samples: `staleness` steps old, or that of step 0 before."""
        return self._kept[0]


def learn(config: CopyTaskConfig, mode: ImportanceMode, staleness: int, seed: int) -> float:
    """Train with stale rollouts; return the mean reward of the last policy on fresh prompts."""
    objective = LossSettings(
        importance_sampling_mode=mode,
        importance_sampling_clip_max=CAP,
        epsilon=copy_task.EPSILON,
        delta=copy_task.DELTA,
    )
    learner, sampler = build_learner(config, seed, objective), copy_task.build_model(config, seed)
    engine = HuggingFaceEngine.from_model(sampler, copy_task.build_tokenizer(), max_batch=config.batch)
    prompts, rng = copy_task.draw_prompts(seed, config.groups * config.steps), random.Random(seed)
    past = PastPolicies(staleness)
    for step in range(config.steps):
        past.add(step, learner.model.state_dict())
        version, weights = past.get_oldest()
        sampler.load_state_dict(weights)
        rollouts = roll_out(engine, prompts[step * config.groups :][: config.groups], config.siblings, rng)
        learner.learn(prepare(rollouts, config.siblings, version, updates=UPDATES))
    sampler.load_state_dict(learner.model.state_dict())
    fresh = copy_task.draw_prompts(seed + 2**32, EVALUATED)
    return mean(rollout.reward for rollout in roll_out(engine, fresh, 2, random.Random(seed)))


def measure(config: CopyTaskConfig, seeds: int) -> Rewards:
    """Train with every objective at every staleness, seed by seed."""
    rewards: dict[tuple[str, int], list[float]] = {}
    plan = [(SYNCHRONOUS, 0), *((name, staleness) for staleness in STALENESS for name in KINDS)]
    for seed in range(seeds):
        for name, staleness in plan:
            reward = learn(config, KINDS.get(name, "token_truncate"), staleness, seed)
            rewards.setdefault((name, staleness), []).append(reward)
            print(f"seed {seed}, staleness {staleness}, {name}: {reward:.3f}", flush=True)
    return rewards


def compute_loss(rewards: Rewards, name: str, staleness: int) -> float:
    """Compute the percentage of the synchronous reward that is missing, from the means of all seeds."""
    return 100 * (1 - mean(rewards[name, staleness]) / mean(rewards[SYNCHRONOUS, 0]))


def build_measurements(rewards: Rewards) -> list[Measurement]:
    """Build the mean rewards with their deviations over seeds, then the losses."""
    measurements = []
    for (name, staleness), by_seed in rewards.items():
        peer, n = f"deviation {stdev(by_seed):.3f}" if len(by_seed) > 1 else "", len(by_seed)
        full_name = f"reward.{name}_at_{staleness}"
        measurements.append(Measurement(name=full_name, value=mean(by_seed), unit="reward", n=n, peer=peer))
    for name, staleness in rewards:
        if name != SYNCHRONOUS:
            loss, n = compute_loss(rewards, name, staleness), len(rewards[name, staleness])
            full_name, peer = f"{name}_loss_at_{staleness}", "staleness 0 in this run"
            measurements.append(Measurement(name=full_name, value=loss, unit="%", n=n, peer=peer))
    return set_bars(measurements, BARS)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser("make bench NAME=staleness", description=__doc__)
    parser.add_argument("--seeds", type=int, default=5, help="runs of each objective and staleness; default: 5")
    parser.add_argument("--steps", type=int, default=CONFIG.steps, help=f"steps of a run; default: {CONFIG.steps}")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the steps; below 1 no bar is judged")
    options = parser.parse_args(arguments)
    prepare_process(threads=1)
    config = replace(CONFIG, steps=max(1, round(options.steps * options.scale)))
    measurements = build_measurements(measure(config, options.seeds))
    return finish("staleness", measurements, find_misses(measurements) if options.scale >= 1 else [], arguments)
