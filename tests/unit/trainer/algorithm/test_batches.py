"""From rollouts to batches: order, advantages, weights, old log-probabilities."""

import statistics
from dataclasses import replace
from typing import Any

import pytest
from torch import Tensor

from covey.errors import OperatorError, ProtocolError
from covey.protocol.ids import GroupId, RolloutId, Step, TaskId
from covey.protocol.submission_file.rows import Rollout
from trainer.algorithm.batches import build_batch, build_samples, fill_old, split_updates
from trainer.algorithm.loss_settings import LossSettings
from trainer.data.samples import AcceptedWork, Batch, Sample

pytestmark = pytest.mark.unit


def build_rollout(group: int, sibling: int, reward: float, **changes: Any) -> Rollout:
    row = Rollout(
        group=GroupId(group), sibling=sibling, seed=1, prompt=(2, 7), tokens=(5, 1), logprobs=(-0.5, -0.25),
        proofs=(), finished=True, reward=reward,
    )  # fmt: skip
    return replace(row, **changes)


def build_work(task: int, rewards: list[list[float]], *, version: int = 0, replayed: bool = True) -> AcceptedWork:
    rows = [build_rollout(g, s, reward) for g, group in enumerate(rewards) for s, reward in enumerate(group)]
    return AcceptedWork(task=TaskId(task), policy_version=Step(version), replayed=replayed, rollouts=tuple(rows[::-1]))


def build_sample(prompt: list[int], tokens: list[int], advantage: float = 1.0, **changes: Any) -> Sample:
    sample = Sample(
        id=RolloutId(task=TaskId(0), group=GroupId(0), sibling=0), policy_version=Step(0), prompt=tuple(prompt),
        tokens=tuple(tokens), reward=1.0, advantage=advantage, old=tuple(-0.1 * (i + 1) for i in range(len(tokens))),
    )  # fmt: skip
    return replace(sample, **changes)


def test_build_samples__tasks_and_rows_in_disorder__come_out_by_task_group_sibling() -> None:
    works = [build_work(9, [[0, 1], [1, 1]]), build_work(3, [[1, 0]])]
    samples = build_samples(works, group_size=2, loss=LossSettings(scale_rewards="none"))
    assert [str(sample.id) for sample in samples] == ["3/0/0", "3/0/1", "9/0/0", "9/0/1", "9/1/0", "9/1/1"]
    assert [sample.advantage for sample in samples] == [0.5, -0.5, -0.5, 0.5, 0, 0]
    assert [sample.reward for sample in samples] == [1, 0, 0, 1, 1, 1]


def test_build_samples__unreplayed__claims_are_dropped() -> None:
    works = [build_work(1, [[0, 1]], replayed=False), build_work(2, [[0, 1]])]
    samples = build_samples(works, group_size=2, loss=LossSettings())
    assert [sample.old for sample in samples] == [None, None, (-0.5, -0.25), (-0.5, -0.25)]


@pytest.mark.parametrize("reward", [float("nan"), float("inf")])
def test_build_samples__nan_or_inf_reward__is_refused(reward: float) -> None:
    with pytest.raises(ProtocolError, match="NaN or Inf"):
        build_samples([build_work(1, [[0, reward]])], group_size=2, loss=LossSettings())


def test_build_samples__nothing_accepted__is_nothing() -> None:
    assert build_samples([], group_size=2, loss=LossSettings()) == []
    assert split_updates([], group_size=2, updates=4) == []


def test_build_samples__one_group_alone__has_its_advantages() -> None:
    (first, second) = build_samples([build_work(1, [[0, 1]])], group_size=2, loss=LossSettings())
    assert (first.advantage, second.advantage) == pytest.approx((-1, 1), rel=1e-5)


@pytest.mark.parametrize("rewards", [[[0.0, 1.0, 1.0]], [[0.0, 1.0], [1.0]], []])
def test_build_samples__groups_not_whole__are_refused(rewards: list[list[float]]) -> None:
    with pytest.raises(ProtocolError, match="bad_batch"):
        build_samples([build_work(1, rewards)], group_size=2, loss=LossSettings())


def test_build_samples__same_task_twice__is_refused() -> None:
    with pytest.raises(ProtocolError, match="have the same task"):
        build_samples([build_work(1, [[0, 1]]), build_work(1, [[1, 0]])], group_size=2, loss=LossSettings())


def test_build_samples__claimed_old_policy__keeps_all_claims_and_marks_the_replayed() -> None:
    works = [build_work(1, [[0, 1]], replayed=False), build_work(2, [[0, 1]])]
    samples = build_samples(works, group_size=2, loss=LossSettings(old_policy="claimed"))
    assert [sample.old for sample in samples] == [(-0.5, -0.25)] * 4
    assert [sample.audited for sample in samples] == [False, False, True, True]


def test_build_samples__batch_scale__divides_by_the_deviation_of_all_rewards() -> None:
    works = [build_work(1, [[0, 1]]), build_work(2, [[1, 1], [3, 1]])]
    samples = build_samples(works, group_size=2, loss=LossSettings(scale_rewards="batch", scale_rewards_epsilon=1e-9))
    deviation = statistics.pstdev([0, 1, 1, 1, 3, 1])
    assert [s.advantage * deviation for s in samples] == pytest.approx([-0.5, 0.5, 0, 0, 1, -1])


def rank_by_length(rewards: Tensor, lengths: Tensor) -> Tensor:
    return rewards - lengths / 10


def fail(rewards: Tensor, lengths: Tensor) -> Tensor:
    return rewards / 0


def test_build_samples__custom_advantages__are_called_with_the_whole_step() -> None:
    works = [build_work(1, [[0, 1]]), build_work(2, [[1, 1], [3, 1]])]
    samples = build_samples(works, group_size=2, loss=LossSettings(custom_advantage=f"{__name__}:rank_by_length"))
    assert [sample.advantage for sample in samples] == pytest.approx([-0.2, 0.8, 0.8, 0.8, 2.8, 0.8])


def test_build_samples__custom_advantages_that_are_not_finite__are_refused() -> None:
    with pytest.raises(OperatorError, match="did not return one finite value per reward"):
        build_samples([build_work(1, [[0, 1]])], group_size=2, loss=LossSettings(custom_advantage=f"{__name__}:fail"))


def test_split_updates__five_groups_for_two__are_dealt_out_whole() -> None:
    samples = build_samples([build_work(0, [[0, 1]] * 5)], group_size=2, loss=LossSettings())
    parts = split_updates(samples, group_size=2, updates=2)
    assert [[s.id.group for s in part] for part in parts] == [[0, 0, 2, 2, 4, 4], [1, 1, 3, 3]]
    assert len(split_updates(samples[:2], group_size=2, updates=4)) == 1


def test_build_batch__dead_samples__are_left_out_but_their_tokens_count() -> None:
    samples = [build_sample([2], [5, 6, 1]), build_sample([2], [1], advantage=0.0), build_sample([2], [5] * 4)]
    batch = build_batch(samples, normaliser="tokens", constant=8, keep_all=False)
    assert batch == Batch(samples=(samples[0], samples[2]), weights=(1 / 8, 1 / 8), tokens=8)
    assert len(build_batch(samples, normaliser="tokens", constant=8, keep_all=True).samples) == 3
    assert build_batch(samples, normaliser="sequence", constant=8, keep_all=False).weights == pytest.approx(
        (1 / 9, 1 / 12)
    )


def test_build_batch__truncated_completions__bear_no_loss_if_masked() -> None:
    cut = build_sample([2], [5] * 8, finished=False)
    samples = [build_sample([2], [5, 6, 1]), cut, build_sample([2], [1], advantage=0.0)]
    masked = build_batch(samples, normaliser="tokens", constant=8, keep_all=False, mask_truncated=True)
    assert masked == Batch(samples=(samples[0],), weights=(1 / 4,), tokens=4)
    assert build_batch(samples, normaliser="tokens", constant=8, keep_all=False).tokens == 12
    for normaliser in ("tokens", "sequence", "constant"):
        none = build_batch([cut], normaliser=normaliser, constant=8, keep_all=True, mask_truncated=True)
        assert none == Batch(samples=(), weights=(), tokens=0)


def test_build_samples__truncated_completion__counts_in_the_advantages_of_its_group() -> None:
    work = build_work(1, [[0, 1]])
    work = replace(work, rollouts=(work.rollouts[0], replace(work.rollouts[1], finished=False)))
    first, second = build_samples([work], group_size=2, loss=LossSettings())
    assert (first.finished, second.finished) == (False, True)
    assert (first.advantage, second.advantage) == pytest.approx((-1, 1), rel=1e-5)


def test_fill_old__two_versions__each_recomputed_once_and_claims_kept() -> None:
    samples = [
        build_sample([2], [1], old=None, policy_version=Step(4)),
        build_sample([2], [1], old=(-3.0,)),
        build_sample([3], [1], old=None, policy_version=Step(3)),
        build_sample([4], [1], old=None, policy_version=Step(4)),
    ]
    asked: list[tuple[int, list[int]]] = []

    def recompute(version: Step, missing: Any) -> list[tuple[float, ...]]:
        asked.append((version, [s.prompt[0] for s in missing]))
        return [(-float(version * 10 + s.prompt[0]),) for s in missing]

    assert [s.old for s in fill_old(samples, recompute)] == [(-42.0,), (-3.0,), (-33.0,), (-44.0,)]
    assert asked == [(3, [3]), (4, [2, 4])]
