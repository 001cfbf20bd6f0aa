"""A batch of a pool with the online filter: more groups than a step needs, some of them dead."""

from dataclasses import replace

import pytest

from covey.protocol.ids import GroupId, Step, TaskId
from covey.protocol.params import EnvironmentParams, PoolParams
from covey.protocol.submission_file.rows import Rollout
from trainer.algorithm.batches import build_batch, build_samples, keep_live, split_updates
from trainer.algorithm.loss_settings import LossSettings
from trainer.data.samples import AcceptedWork

pytestmark = pytest.mark.unit
PARAMS = PoolParams(
    name="test", environment=EnvironmentParams(kind="reasoning_gym"), online_filter=True, max_sampling=3.0,
    group_size=2, groups_per_step=4, groups_per_task=2, max_staleness=1,
)  # fmt: skip


def build_work(task: int, *groups: tuple[float, float]) -> AcceptedWork:
    row = Rollout(
        group=GroupId(0), sibling=0, seed=1, prompt=(2, 7), tokens=(5, 1), logprobs=(-0.5, -0.25), proofs=(),
        finished=True, reward=0.0,
    )  # fmt: skip
    rows = [
        replace(row, group=GroupId(group), sibling=sibling, reward=reward)
        for group, rewards in enumerate(groups)
        for sibling, reward in enumerate(rewards)
    ]
    return AcceptedWork(task=TaskId(task), policy_version=Step(3), replayed=True, rollouts=tuple(rows))


def test_keep_live__live_and_dead_groups__only_live_ones_are_dealt_out_and_count() -> None:
    """Of the eight groups of four tasks 1/0, 3/0, 3/1 and 4/0 are live. They are dealt in turn to two updates."""
    works = [
        build_work(1, (1, 0), (1, 1)), build_work(2, (0, 0), (1, 1)), build_work(3, (0, 1), (1, 0)),
        build_work(4, (1, 0), (0, 0)),
    ]  # fmt: skip
    samples = build_samples(works, group_size=2, loss=LossSettings(scale_rewards="none"))
    assert len(samples) == 16
    parts = split_updates(keep_live(samples, group_size=2), group_size=2, updates=2)
    batches = [build_batch(part, normaliser="tokens", constant=8, keep_all=False) for part in parts]
    trained = [sorted({str(sample.id)[:3] for sample in batch.samples}) for batch in batches]
    assert trained == [["1/0", "3/1"], ["3/0", "4/0"]]
    assert [batch.tokens for batch in batches] == [8, 8]
    assert {weight for batch in batches for weight in batch.weights} == {1 / 8}


def test_keep_live__sample_at_the_mean_of_a_live_group__stays() -> None:
    rewards = [0.0, 0.5, 1.0, 0.5, 0.5, 0.5]
    rows = [
        replace(row, reward=r)
        for row, r in zip([*build_work(1, (0, 0), (0, 0), (0, 0)).rollouts], rewards, strict=True)
    ]
    rows = [replace(row, group=GroupId(i // 3), sibling=i % 3) for i, row in enumerate(rows)]
    samples = build_samples(
        [replace(build_work(1, (0, 0)), rollouts=tuple(rows))], group_size=3, loss=LossSettings(scale_rewards="none")
    )
    assert [sample.advantage for sample in keep_live(samples, group_size=3)] == [-0.5, 0.0, 0.5]


def test_build_batch__no_live_group__has_tokens_and_nothing_to_train_on() -> None:
    samples = build_samples([build_work(1, (0, 0), (1, 1))], group_size=2, loss=LossSettings())
    batch = build_batch(samples, normaliser="tokens", constant=8, keep_all=False)
    assert (batch.samples, batch.tokens) == ((), 8)
