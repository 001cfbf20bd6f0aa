"""From samples to rows: families, first fit, equal shares of the ranks, and attended tokens."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from covey.protocol.ids import GroupId, RolloutId, Step, TaskId
from tests.fakes.samples import nest
from trainer.data.packing import PrefixTree, build_rows, group, pack, share
from trainer.data.samples import Sample

pytestmark = pytest.mark.unit


def build_sample(prompt: list[int], tokens: list[int], advantage: float = 1.0, **changes: Any) -> Sample:
    sample = Sample(
        id=RolloutId(task=TaskId(0), group=GroupId(0), sibling=0), policy_version=Step(0), prompt=tuple(prompt),
        tokens=tuple(tokens), reward=1.0, advantage=advantage, old=tuple(-0.1 * (i + 1) for i in range(len(tokens))),
    )  # fmt: skip
    return replace(sample, **changes)


def build_families(lengths: Sequence[int], crossover: int) -> list[PrefixTree]:
    """Build families of one sample each."""
    return [PrefixTree(samples=(i,), tokens=n, seen=n**2, cost=n + n**2 / crossover) for i, n in enumerate(lengths)]


def test_group__equal_prompts__share_a_copy_up_to_the_length_of_a_row() -> None:
    samples = [build_sample([2, 7], [6, 8, 1]), build_sample([3], [4, 4, 1]), *[build_sample([2, 7], [5, 6, 1])] * 2]
    samples.append(build_sample([2, 7], [6, 9, 1]))
    families = group(samples, seq_len=6, crossover=100, is_shared=True)
    # In order 5 6, 5 6, 6 8, 6 9: the first feeds 2 + 2 tokens, the second none, the third 2 more. The last would add
    # the 9 alone, as a seventh token.
    # Seen: 2 x 2 for the prompt, then 4 x 4 minus 2 x 2 for each of two branches. Compared: all six with each other.
    assert families == [
        PrefixTree(samples=(2, 3, 0), tokens=6, seen=28, cost=6 + 2 * 36 / 100),
        PrefixTree(samples=(4,), tokens=4, seen=16, cost=4 + 16 / 100),
        PrefixTree(samples=(1,), tokens=3, seen=9, cost=3 + 9 / 100),
    ]
    (whole,) = group([samples[i] for i in (0, 2, 3, 4)], seq_len=7, crossover=100, is_shared=True)
    # the 9 attends to 4 tokens, which adds 4 x 4 minus 3 x 3
    assert whole == PrefixTree(samples=(1, 2, 0, 3), tokens=7, seen=35, cost=7 + 2 * 49 / 100)
    alone = group(samples, seq_len=6, crossover=4, is_shared=False)
    assert [each.samples for each in alone] == [(0,), (1,), (2,), (3,), (4,)]
    assert [each.tokens for each in alone] == [sample.fed for sample in samples]


def test_group__sharing_that_costs_more_than_it_saves__is_left() -> None:
    # A token costs 1, and 4 comparisons cost 1. Two samples alone cost 2 x (9 + 81 / 4) = 58.5.
    # With a prompt of 2 the tree has 16 tokens and costs 16 + 2 x 256 / 4 = 144. With one of 8 it costs 10 + 200 / 4
    # = 60, and at 5 comparisons 10 + 200 / 5 = 50, less than 2 x (9 + 81 / 5) = 50.4.
    for prompt, crossover, is_one in ((2, 4, False), (8, 4, False), (8, 5, True)):
        samples = [build_sample([2] * prompt, [token, *[1] * (9 - prompt)]) for token in (5, 6)]
        families = group(samples, seq_len=64, crossover=crossover, is_shared=True)
        assert [each.samples for each in families] == ([(0, 1)] if is_one else [(0,), (1,)])
        assert sum(each.cost for each in families) == (50 if is_one else 58.5)


def test_group__sample_longer_than_a_row__is_alone() -> None:
    samples = [build_sample([2] * 9, [5, 1]), build_sample([2] * 9, [6, 1])]
    assert [each.samples for each in group(samples, seq_len=6, crossover=4, is_shared=True)] == [(0,), (1,)]


def test_pack__by_hand__is_first_fit_decreasing() -> None:
    # 6 opens row 0, 5 opens row 1, 4 goes to row 0, 3 and 2 to row 1
    assert pack([3, 6, 4, 2, 5], 10) == [[1, 2], [4, 0, 3]]
    assert pack([], 10) == []
    with pytest.raises(ValueError, match="does not fit"):
        pack([11], 10)


@given(st.lists(st.integers(1, 50), max_size=60))
def test_pack__any_lengths__none_lost_cut_or_doubled(lengths: list[int]) -> None:
    rows = pack(lengths, 50)
    assert sorted(i for row in rows for i in row) == list(range(len(lengths)))
    totals = [sum(lengths[i] for i in row) for row in rows]
    assert all(total <= 50 for total in totals)
    # First fit: of two rows, the longest of the later one did not fit into the earlier one.
    assert sum(total <= 25 for total in totals) <= 1


def test_build_rows__two_samples_in_a_row__by_hand() -> None:
    first = build_sample([2, 7, 8], [5, 1], advantage=2.0, reference=(-0.5, -0.25))
    second = build_sample([2], [6, 4, 1], advantage=-1.0, reference=(-1.0, -2.0, -3.0))
    third = build_sample([2], [1], reference=(-4.0,))
    rows = build_rows(
        [first, second, third], [0.5, 0.25, 0.125], nest([first, second, third], [[0, 1], [2]], is_shared=False)
    )
    assert rows.tokens.tolist() == [2, 7, 8, 5, 2, 6, 4, 2]
    assert rows.positions.tolist() == [0, 1, 2, 3, 0, 1, 2, 0]
    assert rows.ends.tolist() == [4, 4, 4, 4, 7, 7, 7, 8]
    assert rows.places.tolist() == [2, 3, 4, 5, 6, 7]
    assert rows.targets.tolist() == [5, 1, 6, 4, 1, 1]
    assert rows.advantages.tolist() == [2, 2, -1, -1, -1, 1]
    assert rows.weights.tolist() == [0.5, 0.5, 0.25, 0.25, 0.25, 0.125]
    torch.testing.assert_close(rows.old, torch.tensor([-0.1, -0.2, -0.1, -0.2, -0.3, -0.1]))
    assert rows.reference is not None
    assert rows.reference.tolist() == [-0.5, -0.25, -1, -2, -3, -4]


def test_build_rows__siblings__follow_one_prompt_and_do_not_attend_to_each_other() -> None:
    samples = [build_sample([2, 7], [5, 1]), build_sample([2, 7], [6, 4, 1]), build_sample([2], [9])]
    rows = build_rows(samples, [1.0] * 3, nest(samples, [[0, 1, 2]], is_shared=True))
    assert rows.tokens.tolist() == [2, 7, 5, 6, 4, 2]
    assert rows.positions.tolist() == [0, 1, 2, 2, 3, 0]
    assert rows.places.tolist() == [1, 2, 1, 3, 4, 5]
    assert rows.targets.tolist() == [5, 1, 6, 4, 1, 9]
    assert rows.ends.tolist() == [5, 5, 3, 5, 5, 6]
    alone = build_rows(samples, [1.0] * 3, nest(samples, [[0, 1, 2]], is_shared=False))
    assert alone.tokens.tolist() == [2, 7, 5, 2, 7, 6, 4, 2]
    assert alone.ends.tolist() == [3, 3, 3, 7, 7, 7, 7, 8]


def test_build_rows__siblings_that_begin_alike__branch_where_they_differ() -> None:
    samples = [build_sample([2], tokens) for tokens in ([5, 6, 7, 1], [5, 6, 8, 1], [5, 6, 8, 1], [5, 9])]
    rows = build_rows(samples, [1.0] * 4, nest(samples, [[0, 1, 2, 3]], is_shared=True))
    assert rows.tokens.tolist() == [2, 5, 6, 7, 8]  # the last token of a sample predicts nothing
    assert rows.positions.tolist() == [0, 1, 2, 3, 3]
    assert rows.ends.tolist() == [5, 5, 5, 4, 5]
    assert rows.places.tolist() == [0, 1, 2, 3, 0, 1, 2, 4, 0, 1, 2, 4, 0, 1]
    assert rows.targets.tolist() == [5, 6, 7, 1, 5, 6, 8, 1, 5, 6, 8, 1, 5, 9]


@given(st.lists(st.tuples(st.integers(0, 1), st.lists(st.integers(0, 1), min_size=1, max_size=5)), max_size=9))
def test_build_rows__any_families__each_token_attends_to_its_own_past_once(drawn: list[tuple[int, list[int]]]) -> None:
    samples = [build_sample([prompt] * 2, tokens) for prompt, tokens in drawn]
    families = group(samples, seq_len=100, crossover=1000, is_shared=True)
    order = [i for family in families for i in family.samples]
    rows = build_rows(samples, [1.0] * len(samples), nest(samples, [order], is_shared=True))
    tokens, ends = rows.tokens.tolist(), rows.ends.tolist()
    pasts = [tuple(tokens[j] for j in range(i + 1) if i < ends[j]) for i in range(len(tokens))]
    expected = [(*samples[i].prompt, *samples[i].tokens[:k]) for i in order for k in range(len(samples[i].tokens))]
    assert [pasts[place] for place in rows.places.tolist()] == expected
    assert rows.positions.tolist() == [len(past) - 1 for past in pasts]
    if samples:
        assert len(set(pasts)) == len(pasts) == sum(family.tokens for family in families)
        assert sum(2 * len(past) - 1 for past in pasts) == sum(family.seen for family in families)


@pytest.mark.parametrize("is_shared", [True, False])
def test_build_rows__row_without_samples__is_one_token_without_loss(is_shared: bool) -> None:
    rows = build_rows([], [], nest([], [[]], is_shared=is_shared))
    assert (rows.tokens.tolist(), rows.positions.tolist(), rows.ends.tolist()) == ([0], [0], [1])
    assert (rows.places.tolist(), rows.weights.tolist()) == ([], [])
    for optional in (rows.old, rows.proximal, rows.reference):  # all of no samples have them
        assert optional is not None
        assert optional.tolist() == []


@pytest.mark.parametrize("name", ["old", "proximal", "reference"])
def test_build_rows__optional_column__is_of_all_samples_or_of_none(name: str) -> None:
    none = {"old": None, "proximal": None, "reference": None}
    plain, other = build_sample([2], [5, 1], **none), build_sample([2, 3], [1], **(none | {name: (-4.0,)}))
    assert getattr(build_rows([plain, other], [1, 1], nest([plain, other], [[0]], is_shared=True)), name) is None
    assert getattr(build_rows([plain, other], [1, 1], nest([plain, other], [[1]], is_shared=True)), name).tolist() == [
        -4
    ]
    with pytest.raises(ValueError, match=f"1 of 2 samples have {name}"):
        build_rows([plain, other], [1, 1], nest([plain, other], [[0, 1]], is_shared=True))


def test_share__by_hand__balances_cost_and_not_tokens() -> None:
    # With crossover 4 the costs are 24, 8, 15, 8 and 3, so 8 + 2 tokens cost about as much as the other 6 + 4 + 4.
    shares = share(build_families([8, 4, 6, 4, 2], 4), ranks=2, room=10)
    assert shares == [[[(0,), (4,)], []], [[(2,), (1,)], [(3,)]]]


def test_share__family__stays_together() -> None:
    families = [
        PrefixTree(samples=(0, 3), tokens=6, seen=0, cost=6),
        PrefixTree(samples=(1, 2), tokens=5, seen=0, cost=5),
    ]
    assert share(families, ranks=1, room=11) == [[[(0, 3), (1, 2)]]]
    assert share(families, ranks=2, room=11) == [[[(0, 3)]], [[(1, 2)]]]


def test_share__fewer_families_than_ranks__others_get_micro_batches_without_families() -> None:
    assert share(build_families([3], 100), ranks=3, room=8) == [[[(0,)]], [[]], [[]]]
    assert share([], ranks=2, room=8) == [[], []]


def test_share__family_longer_than_a_micro_batch__makes_all_as_long_as_itself() -> None:
    assert share(build_families([9, 5, 4], 100), ranks=1, room=6) == [[[(0,)], [(1,), (2,)]]]


@given(st.lists(st.integers(1, 50), max_size=60), st.integers(1, 5), st.integers(50, 200))
def test_share__any_families__none_lost_and_work_is_even(lengths: list[int], ranks: int, room: int) -> None:
    shares = share(build_families(lengths, 30), ranks=ranks, room=room)
    taken = [[i for batch in batches for family in batch for i in family] for batches in shares]
    assert sorted(i for indices in taken for i in indices) == list(range(len(lengths)))
    assert len({len(batches) for batches in shares}) == 1
    assert all(sum(lengths[i] for (i,) in batch) <= room for batches in shares for batch in batches)
    work = [sum(lengths[i] + lengths[i] ** 2 / 30 for i in indices) for indices in taken]
    largest = max((length + length**2 / 30 for length in lengths), default=0)
    # The rank with most work had least when it got its last family.
    assert max(work) - min(work) <= largest + 1e-9
