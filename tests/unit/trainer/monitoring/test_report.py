from dataclasses import replace
from typing import cast

import pytest

from covey.environments import registry
from covey.environments.base import EnvironmentSpec
from covey.environments.environment import LENGTH_REQUEST
from covey.environments.length_costs import LengthCosts
from covey.environments.registry import DEMO
from covey.model.policy_files import load_tokenizer
from covey.model.prompts import RAW, encode_prompt
from covey.model.text import Tokenizer
from covey.model.tiny import tiny_folder
from covey.protocol.ids import GroupId, RolloutId, Step, TaskId
from trainer.algorithm.learner import UpdateMetrics
from trainer.data.samples import AcceptedWork, Sample
from trainer.monitoring.report import build_report, split_rewards

pytestmark = pytest.mark.unit


def build_sample(version: int, reward: float, advantage: float, tokens: int) -> Sample:
    return Sample(
        id=RolloutId(task=TaskId(0), group=GroupId(0), sibling=0), policy_version=Step(version), prompt=(2, tokens),
        tokens=(5,) * tokens, reward=reward, advantage=advantage, old=None,
    )  # fmt: skip


def build_work(**counts: int) -> AcceptedWork:
    return AcceptedWork(task=TaskId(0), policy_version=Step(5), replayed=True, rollouts=(), **counts)


SAMPLES = [
    build_sample(5, 1.0, 1.0, 2),
    build_sample(3, 0.0, -1.0, 4),
    build_sample(4, 0.0, 0.0, 3),
    build_sample(5, 0.0, 0.0, 7),
]


def test_build_report__two_updates__means_and_the_largest_norm() -> None:
    first = UpdateMetrics(
        loss=0.5, gradient_norm=2.0, clip_ratio=0.1, masked=0.25, ratio_mean=1.0, outside_clip=0.5,
        mismatch_kl=0.25, mismatch_kl_max=7.0, entropy=3.0, kl=0.0, learning_rate=0.1, tokens=10, trained_tokens=8,
        claims_replaced=0.5,
    )  # fmt: skip
    second = replace(
        first, masked=0.75, loss=1.5, gradient_norm=1.0, clip_ratio=0.3, outside_clip=0.75, mismatch_kl=0.5,
        mismatch_kl_max=4.0, learning_rate=0.2, tokens=6,
    )  # fmt: skip
    works = [build_work(regraded=3, looked_up=3, unanswered=2), None, build_work(looked_up=1, unanswered=1)]
    report = build_report(SAMPLES, [first, second], step=Step(5), works=works)
    expected = {
        "reward/mean": 0.25, "policy/loss": 1.0, "policy/entropy": 3.0, "policy/kl": 0.0, "policy/clip_ratio": 0.2,
        "policy/masked": 0.5, "policy/claims_replaced": 0.5,
        "policy/ratio": 1.0, "policy/outside_clip": 0.625, "policy/mismatch_kl": 0.375, "policy/mismatch_kl_max": 7.0,
        "optim/grad_norm": 2.0, "optim/learning_rate": 0.2, "staleness_mean": 0.75,
        "staleness_max": 2, "batch/tokens": 16, "batch/samples": 4, "batch/live_share": 0.5,
        "batch/truncated_share": 0.0, "batch/unanswered_share": 0.75,
        "batch/completion_tokens": 4.0, "batch/left_out": 1, "batch/regraded": 3,
    }  # fmt: skip
    assert report == pytest.approx(expected)


def test_build_report__update_without_samples__is_in_no_mean() -> None:
    live = UpdateMetrics(
        loss=0.5, gradient_norm=2.0, clip_ratio=0.1, masked=0.25, ratio_mean=1.0, outside_clip=0.5,
        mismatch_kl=0.25, mismatch_kl_max=7.0, entropy=3.0, kl=0.0, learning_rate=0.1, tokens=10, trained_tokens=8,
        claims_replaced=0.5,
    )  # fmt: skip
    dead = replace(live, loss=0.0, gradient_norm=0.0, entropy=0.0, ratio_mean=0.0, trained_tokens=0, tokens=6)
    report = build_report(SAMPLES, [live, dead], step=Step(5), works=[])
    assert (report["policy/entropy"], report["policy/loss"], report["batch/tokens"]) == (3.0, 0.5, 16)


def test_build_report__two_types_of_tasks__have_their_shares_and_mean_rewards() -> None:
    ids = [RolloutId(task=TaskId(7), group=GroupId(i // 2), sibling=i % 2) for i in range(4)]
    samples = [replace(sample, id=each) for sample, each in zip(SAMPLES, ids, strict=True)]
    work = replace(build_work(), task=TaskId(7), task_types=("gcd", "math"))
    report = build_report(samples, [], step=Step(5), works=[work])
    found = {name: value for name, value in report.items() if name.startswith("task_type/")}
    assert found == {
        "task_type/gcd/share": 0.5, "task_type/gcd/reward": 0.5,
        "task_type/math/share": 0.5, "task_type/math/reward": 0.0,
    }  # fmt: skip


def test_build_report__nothing_left_to_train_on__is_zeros() -> None:
    report = build_report([], [], step=Step(5), works=[None] * 4)
    assert report["batch/left_out"] == 4
    assert sum(report.values()) == 4


COSTS = LengthCosts(EnvironmentSpec(kind="math", options={"targets": [2, 4, 8, 10], "alpha": 0.1}))


class Requests:
    """A prompt asks for twice as many tokens as its second token says."""

    def decode(self, tokens: list[int], *, skip_special_tokens: bool) -> str:
        return LENGTH_REQUEST.format(target=2 * tokens[1])


def test_split_rewards__task_and_length__add_up_to_the_reward() -> None:
    """Prompts ask for twice their completion's length: 2, 4, 3 and 7 tokens cost 0.2, 0.4, nothing and nothing.

    The answers earn 1.2, 0.4, 0 and 0, whose mean is 0.4 and whose variance is (0.64 + 0 + 0.16 + 0.16) / 4 = 0.24.
    """
    found = split_rewards(SAMPLES, COSTS, cast(Tokenizer, Requests()), format=RAW)
    expected = {"reward/task": 0.4, "reward/task_std": 0.24**0.5, "reward/length_penalty": 0.6 / 4}
    assert found == pytest.approx(expected)
    assert found["reward/task"] - found["reward/length_penalty"] == pytest.approx(0.25)


def test_split_rewards__nothing_to_train_on__is_zeros() -> None:
    found = split_rewards([], COSTS, cast(Tokenizer, Requests()), format=RAW)
    assert found == {"reward/task": 0.0, "reward/task_std": 0.0, "reward/length_penalty": 0.0}


def test_split_rewards__answers_earn_the_same_and_lengths_differ__deviation_is_exactly_zero() -> None:
    """0.3 - 0.7 + 0.7 is not 0.3 in floating point, and a deviation of rewards alone would be large."""
    costs = {1: 0.1, 4: 0.7, 5: 0.9}
    samples = [replace(build_sample(5, 0.3 - cost, 0.0, 1), prompt=(2, half)) for half, cost in costs.items()]
    found = split_rewards(samples, COSTS, cast(Tokenizer, Requests()), format=RAW)
    assert found["reward/task_std"] == 0
    assert found["reward/length_penalty"] == pytest.approx(1.7 / 3)


def test_split_rewards__shipped_environment_and_tokenizer__find_the_target_in_the_tokens() -> None:
    spec = EnvironmentSpec(kind=DEMO.kind, options={**DEMO.options, "targets": [10], "alpha": 0.01})
    tokenizer = load_tokenizer(tiny_folder())
    prompt = tuple(encode_prompt(tokenizer, registry.load(spec).prompt(7).text, format=RAW))
    sample = replace(build_sample(5, 0.96, 1.0, 6), prompt=prompt)
    found = split_rewards([sample], LengthCosts(spec), tokenizer, format=RAW)
    assert found == pytest.approx({"reward/task": 1.0, "reward/task_std": 0.0, "reward/length_penalty": 0.04})
