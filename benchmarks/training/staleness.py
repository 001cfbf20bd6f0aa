"""Learning from what older policies sampled: reward by staleness, with the clipped objective and the decoupled one.

`make bench NAME=staleness`; ARGS="--seeds 5 --steps 100 --scale 0.1".  The copying task of `copying` from random
weights; the rollouts of step t are those of the policy of step t - staleness, with its log-probabilities.  naive: what
is clipped is the ratio to the policy that sampled; decoupled: it is the ratio to the policy that the step starts from,
and the loss is corrected for the one that sampled (AReaL, arXiv 2505.24298, section 5.2).

Four updates a step and a learning rate at which the task is just learned in the steps given make policies differ from
step to step: with one update a step, or more steps than are needed, staleness hardly shows.
"""

import argparse
import random
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import mean, stdev
from typing import Literal

from torch import Tensor

from benchmarks.harness import Measurement, finish
from benchmarks.training import copy_task
from benchmarks.training.copy_task import SMALL, CopyTaskConfig
from benchmarks.training.throughput import build_learner, prepare, roll_out
from covey.engines.hf.engine import HuggingFaceEngine, prepare_process
from trainer.algorithm.grpo import Objective

Kind = Literal["two_sided", "decoupled"]
KINDS: Mapping[str, Kind] = {"naive": "two_sided", "decoupled": "decoupled"}
SYNCHRONOUS = "synchronous"
"""At staleness 0, where the policy that samples is the one that the step starts from, both objectives are the same."""
STALENESS = (1, 2, 4, 8)
UPDATES = 4
CASE = replace(SMALL, learning_rate=7e-4, steps=100, groups=SMALL.groups * UPDATES)
CAP = 5.0
JUDGED, BAR = 4, 2.0
"""The staleness at which the decoupled objective may lose so many percent at most."""
EVALUATED = 256
"""Fresh prompts that judge the last policy, two samples each."""

Rewards = Mapping[tuple[str, int], Sequence[float]]
"""Last rewards of all seeds by objective and staleness."""


class PastPolicies:
    """The weights of the newest policies, from the one that samples to the current one."""

    def __init__(self, staleness: int) -> None:
        self._kept: deque[tuple[int, dict[str, Tensor]]] = deque(maxlen=staleness + 1)

    def add(self, version: int, weights: Mapping[str, Tensor]) -> None:
        """A copy of the policy that step `version` starts from."""
        self._kept.append((version, {name: tensor.detach().clone() for name, tensor in weights.items()}))

    def get_oldest(self) -> tuple[int, dict[str, Tensor]]:
        """Version and weights of the one that samples: `staleness` steps old, or that of step 0 until there is one."""
        return self._kept[0]


def learn(case: CopyTaskConfig, kind: Kind, staleness: int, seed: int) -> float:
    """Mean reward of the last policy, on prompts of its own."""
    objective = Objective(kind=kind, epsilon=copy_task.EPSILON, delta=copy_task.DELTA, cap=CAP, kl=0.0, entropy=0.0)
    learner, sampler = build_learner(case, seed, objective), copy_task.build_model(case, seed)
    engine = HuggingFaceEngine.from_model(sampler, copy_task.build_tokenizer(), max_batch=case.batch)
    prompts, rng = copy_task.draw_prompts(seed, case.groups * case.steps), random.Random(seed)
    past = PastPolicies(staleness)
    for step in range(case.steps):
        past.add(step, learner.model.state_dict())
        version, weights = past.get_oldest()
        sampler.load_state_dict(weights)
        rollouts = roll_out(engine, prompts[step * case.groups :][: case.groups], case.siblings, rng)
        learner.learn(prepare(rollouts, case.siblings, version, updates=UPDATES))
    sampler.load_state_dict(learner.model.state_dict())
    judged = copy_task.draw_prompts(seed + 2**32, EVALUATED)
    return mean(rollout.reward for rollout in roll_out(engine, judged, 2, random.Random(seed)))


def measure(case: CopyTaskConfig, seeds: int) -> Rewards:
    """Every objective at every staleness, seed by seed."""
    rewards: dict[tuple[str, int], list[float]] = {}
    plan = [(SYNCHRONOUS, 0), *((name, staleness) for staleness in STALENESS for name in KINDS)]
    for seed in range(seeds):
        for name, staleness in plan:
            reward = learn(case, KINDS.get(name, "decoupled"), staleness, seed)
            rewards.setdefault((name, staleness), []).append(reward)
            print(f"seed {seed}, staleness {staleness}, {name}: {reward:.3f}", flush=True)
    return rewards


def compute_loss(rewards: Rewards, name: str, staleness: int) -> float:
    """Percent of the synchronous reward that is missing, by the means of all seeds."""
    return 100 * (1 - mean(rewards[name, staleness]) / mean(rewards[SYNCHRONOUS, 0]))


def build_claims(rewards: Rewards) -> list[Measurement]:
    """Reward with its deviation over seeds, then what is lost: the rows of a table."""
    claims = []
    for (name, staleness), found in rewards.items():
        told = f"deviation {stdev(found):.3f}" if len(found) > 1 else ""
        reward = Measurement(
            name=f"reward.{name}_at_{staleness}", value=mean(found), unit="reward", n=len(found), peer=told
        )
        claims.append(reward)
    for name, staleness in rewards:
        if name != SYNCHRONOUS:
            loss, n = compute_loss(rewards, name, staleness), len(rewards[name, staleness])
            claims.append(
                Measurement(
                    name=f"{name}_loss_at_{staleness}", value=loss, unit="%", n=n, peer="staleness 0 in this run"
                )
            )
    return claims


def find_failures(claims: Sequence[Measurement]) -> list[str]:
    """The decoupled objective where it loses too much."""
    judged = f"decoupled_loss_at_{JUDGED}"
    return [
        f"{claim.name} is {claim.value:.2f} %, not below {BAR}"
        for claim in claims
        if claim.name == judged and not claim.value < BAR
    ]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=CASE.steps)
    parser.add_argument("--scale", type=float, default=1.0, help="share of the steps; below 1 nothing is judged")
    options = parser.parse_args(arguments)
    prepare_process(threads=1)
    case = replace(CASE, steps=max(1, round(options.steps * options.scale)))
    claims = build_claims(measure(case, options.seeds))
    return finish("staleness", claims, find_failures(claims) if options.scale >= 1 else [])
