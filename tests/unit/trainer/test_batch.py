"""From rollouts to rows: order, weights, first fit, equal shares of the ranks."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from covey.errors import ProtocolError
from covey.protocol.ids import GroupId, RolloutId, Step, TaskId
from covey.protocol.rollout import Rollout
from trainer.batch import (
    Batch,
    Sample,
    Work,
    build_batch,
    build_rows,
    build_samples,
    fill_old,
    pack,
    share,
    split_updates,
)

pytestmark = pytest.mark.unit


def build_rollout(group: int, sibling: int, reward: float, **changes: Any) -> Rollout:
    row = Rollout(
        group=GroupId(group), sibling=sibling, seed=1, prompt=(2, 7), tokens=(5, 1), logprobs=(-0.5, -0.25),
        proofs=(), finished=True, reward=reward,
    )  # fmt: skip
    return replace(row, **changes)


def build_work(task: int, rewards: list[list[float]], *, version: int = 0, replayed: bool = True) -> Work:
    rows = [build_rollout(g, s, reward) for g, group in enumerate(rewards) for s, reward in enumerate(group)]
    return Work(task=TaskId(task), policy_version=Step(version), replayed=replayed, rollouts=tuple(rows[::-1]))


def build_sample(prompt: list[int], tokens: list[int], advantage: float = 1.0, **changes: Any) -> Sample:
    sample = Sample(
        id=RolloutId(task=TaskId(0), group=GroupId(0), sibling=0), policy_version=Step(0), prompt=tuple(prompt),
        tokens=tuple(tokens), reward=1.0, advantage=advantage, old=tuple(-0.1 * (i + 1) for i in range(len(tokens))),
    )  # fmt: skip
    return replace(sample, **changes)


def test_build_samples__tasks_and_rows_in_disorder__come_out_by_task_group_sibling() -> None:
    works = [build_work(9, [[0, 1], [1, 1]]), build_work(3, [[1, 0]])]
    samples = build_samples(works, group_size=2, advantage="dr_grpo")
    assert [str(sample.id) for sample in samples] == ["3/0/0", "3/0/1", "9/0/0", "9/0/1", "9/1/0", "9/1/1"]
    assert [sample.advantage for sample in samples] == [0.5, -0.5, -0.5, 0.5, 0, 0]
    assert [sample.reward for sample in samples] == [1, 0, 0, 1, 1, 1]


def test_build_samples__unreplayed__claims_are_dropped() -> None:
    works = [build_work(1, [[0, 1]], replayed=False), build_work(2, [[0, 1]])]
    samples = build_samples(works, group_size=2, advantage="grpo")
    assert [sample.old for sample in samples] == [None, None, (-0.5, -0.25), (-0.5, -0.25)]


@pytest.mark.parametrize("reward", [float("nan"), float("inf")])
def test_build_samples__reward_that_is_no_number__is_refused(reward: float) -> None:
    with pytest.raises(ProtocolError, match="no number"):
        build_samples([build_work(1, [[0, reward]])], group_size=2, advantage="grpo")


def test_build_samples__nothing_accepted__is_nothing() -> None:
    assert build_samples([], group_size=2, advantage="grpo") == []
    assert split_updates([], group_size=2, updates=4) == []


def test_build_samples__one_group_alone__has_its_advantages() -> None:
    (first, second) = build_samples([build_work(1, [[0, 1]])], group_size=2, advantage="grpo")
    assert (first.advantage, second.advantage) == pytest.approx((-1, 1), rel=1e-5)


@pytest.mark.parametrize("rewards", [[[0.0, 1.0, 1.0]], [[0.0, 1.0], [1.0]], []])
def test_build_samples__groups_not_whole__are_refused(rewards: list[list[float]]) -> None:
    with pytest.raises(ProtocolError, match="bad_batch"):
        build_samples([build_work(1, rewards)], group_size=2, advantage="grpo")


def test_build_samples__same_task_twice__is_refused() -> None:
    with pytest.raises(ProtocolError, match="twice"):
        build_samples([build_work(1, [[0, 1]]), build_work(1, [[1, 0]])], group_size=2, advantage="grpo")


def test_split_updates__five_groups_for_two__are_dealt_out_whole() -> None:
    samples = build_samples([build_work(0, [[0, 1]] * 5)], group_size=2, advantage="grpo")
    parts = split_updates(samples, group_size=2, updates=2)
    assert [[s.id.group for s in part] for part in parts] == [[0, 0, 2, 2, 4, 4], [1, 1, 3, 3]]
    assert len(split_updates(samples[:2], group_size=2, updates=4)) == 1


def test_build_batch__dead_samples__leave_but_their_tokens_count() -> None:
    samples = [build_sample([2], [5, 6, 1]), build_sample([2], [1], advantage=0.0), build_sample([2], [5] * 4)]
    batch = build_batch(samples, normaliser="tokens", constant=8, keep_all=False)
    assert batch == Batch(samples=(samples[0], samples[2]), weights=(1 / 8, 1 / 8), tokens=8)
    assert len(build_batch(samples, normaliser="tokens", constant=8, keep_all=True).samples) == 3
    assert build_batch(samples, normaliser="sequence", constant=8, keep_all=False).weights == pytest.approx(
        (1 / 9, 1 / 12)
    )


def test_fill_old__two_versions__each_asked_once_and_claims_kept() -> None:
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


def test_pack__by_hand__is_first_fit_decreasing() -> None:
    # 6 opens row 0, 5 opens row 1, 4 goes to row 0, 3 and 2 to row 1
    assert pack([3, 6, 4, 2, 5], 10) == [[1, 2], [4, 0, 3]]
    assert pack([], 10) == []
    with pytest.raises(ValueError, match="does not fit"):
        pack([11], 10)


@given(st.lists(st.integers(1, 50), max_size=60))
def test_pack__any_lengths__no_sample_lost_cut_or_doubled(lengths: list[int]) -> None:
    rows = pack(lengths, 50)
    assert sorted(i for row in rows for i in row) == list(range(len(lengths)))
    totals = [sum(lengths[i] for i in row) for row in rows]
    assert all(total <= 50 for total in totals)
    # first fit: of two rows, the later one's longest sample did not fit into the earlier when it came
    assert sum(total <= 25 for total in totals) <= 1


def test_build_rows__two_samples_in_a_row__by_hand() -> None:
    first = build_sample([2, 7, 8], [5, 1], advantage=2.0)
    second = build_sample([2], [6, 4, 1], advantage=-1.0, reference=(-1.0, -2.0, -3.0))
    third = build_sample([2], [1])
    rows = build_rows([first, second, third], [0.5, 0.25, 0.125], [[0, 1], [2]])
    assert rows.tokens.tolist() == [[2, 7, 8, 5, 2, 6, 4], [2, 0, 0, 0, 0, 0, 0]]
    assert rows.positions.tolist() == [[0, 1, 2, 3, 0, 1, 2], [0] * 7]
    assert rows.mask.int().tolist() == [[0, 0, 1, 1, 1, 1, 1], [1, 0, 0, 0, 0, 0, 0]]
    assert rows.targets[rows.mask].tolist() == [5, 1, 6, 4, 1, 1]
    assert rows.advantages[rows.mask].tolist() == [2, 2, -1, -1, -1, 1]
    assert rows.weights[rows.mask].tolist() == [0.5, 0.5, 0.25, 0.25, 0.25, 0.125]
    torch.testing.assert_close(rows.old[rows.mask], torch.tensor([-0.1, -0.2, -0.1, -0.2, -0.3, -0.1]))
    assert rows.reference[rows.mask].tolist() == [0, 0, -1, -2, -3, 0]


def test_build_rows__row_without_samples__is_one_token_without_loss() -> None:
    rows = build_rows([], [], [[]])
    assert rows.tokens.shape == (1, 1)
    assert not rows.mask.any()


def test_build_rows__proximal__is_there_where_every_sample_has_it() -> None:
    plain, other = build_sample([2], [5, 1]), build_sample([2, 3], [1], proximal=(-4.0,))
    assert build_rows([plain, other], [1, 1], [[0, 1]]).proximal is None
    rows = build_rows([plain, other], [1, 1], [[1]])
    assert rows.proximal is not None
    assert rows.proximal[rows.mask].tolist() == [-4]


def test_share__by_hand__balances_cost_and_not_tokens() -> None:
    # with crossover 4 the costs are 24, 15, 8, 8, 3: 8 + 5 tokens cost as much as the other 8 + 8
    lengths = [8, 4, 6, 4, 2]
    shares = share(lengths, ranks=2, row_tokens=10, micro_batch_rows=1, crossover=4)
    assert shares == [[[[0, 4]], [[]]], [[[2, 1]], [[3]]]]


def test_share__fewer_samples_than_ranks__others_get_rows_without_samples() -> None:
    shares = share([3], ranks=3, row_tokens=8, micro_batch_rows=4, crossover=100)
    assert shares == [[[[0]]], [[[]]], [[[]]]]
    assert share([], ranks=2, row_tokens=8, micro_batch_rows=4, crossover=100) == [[], []]


def test_share__sample_longer_than_a_row__makes_rows_as_long_as_itself() -> None:
    assert share([9, 5, 4], ranks=1, row_tokens=6, micro_batch_rows=2, crossover=100) == [[[[0], [1, 2]]]]


@given(st.lists(st.integers(1, 50), max_size=60), st.integers(1, 5), st.integers(1, 4))
def test_share__any_samples__none_lost_and_work_is_even(lengths: list[int], ranks: int, rows: int) -> None:
    shares = share(lengths, ranks=ranks, row_tokens=50, micro_batch_rows=rows, crossover=30)
    taken = [[i for part in each for row in part for i in row] for each in shares]
    assert sorted(i for each in taken for i in each) == list(range(len(lengths)))
    assert len({len(each) for each in shares}) == 1
    assert all(0 < len(part) <= rows for each in shares for part in each)
    work = [sum(lengths[i] + lengths[i] ** 2 / 30 for i in each) for each in taken]
    most = max((length + length**2 / 30 for length in lengths), default=0)
    # the fullest rank was the emptiest when its last sample came
    assert max(work) - min(work) <= most + 1e-9
