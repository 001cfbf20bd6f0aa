"""Attention by families against sums written out token by token."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from covey.errors import OperatorError
from tests.fakes.device_waits import DeviceWaits
from trainer.algorithm import tree_attention
from trainer.algorithm.tree_attention import attend, build_families, build_mask

pytestmark = pytest.mark.unit

CPU = torch.device("cpu")
ENDS = torch.tensor([1, 6, 6, 4, 6, 6, 9, 9, 9, 14, 12, 12, 14, 14])
"""Ends of four families: a single token, a prompt of two with answers of one and two, three in a row, and a tree that
branches at its root."""
SEEN = [
    [0],
    [1], [1, 2], [1, 2, 3], [1, 2, 4], [1, 2, 4, 5],
    [6], [6, 7], [6, 7, 8],
    [9], [9, 10], [9, 10, 11], [9, 12], [9, 12, 13],
]  # fmt: skip
"""Indices of the tokens to which each of the fourteen attends."""
LAYER: Any = SimpleNamespace(is_causal=True)


def draw(heads: int, *, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(1, heads, 14, 4, generator=generator, dtype=torch.float64)


def compute_slowly(query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
    rows = []
    for token, seen in enumerate(SEEN):
        heads = []
        for head in range(query.shape[1]):
            source = head // (query.shape[1] // key.shape[1])
            weights = torch.softmax(key[0, source, seen] @ query[0, head, token] * scaling, dim=0)
            heads.append(weights @ value[0, source, seen])
        rows.append(torch.stack(heads))
    return torch.stack(rows)[None]


def test_build_mask__siblings__attend_to_their_prompt_and_not_to_each_other() -> None:
    assert build_mask(torch.tensor([[5, 5, 3, 5, 5]]))[0].int().tolist() == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [1, 1, 1, 0, 0],
        [1, 1, 0, 1, 0],
        [1, 1, 0, 1, 1],
    ]


def test_build_families__two_lengths__pads_the_shorter_with_unattended_tokens() -> None:
    families = build_families(torch.tensor([2, 2, 5, 4, 5]), device=CPU)
    (stack,) = families.stacks
    assert stack.mask is not None
    assert stack.mask.int().tolist() == [
        [[1, 0, 0], [1, 1, 0], [1, 0, 1]],
        [[1, 0, 0], [1, 1, 0], [0, 0, 1]],
    ]
    assert families.slots is not None
    assert families.places is not None
    assert families.slots.tolist() == [2, 3, 4, 0, 1, 1]
    assert families.places.tolist() == [3, 4, 0, 1, 2]


def test_build_families__families_of_one_length_without_branches__need_no_mask() -> None:
    families = build_families(torch.tensor([2, 2, 4, 4]), device=CPU)
    assert [(stack.count, stack.length, stack.mask) for stack in families.stacks] == [(2, 2, None)]


def test_build_families__lines__are_not_padded_and_stay_in_place_if_nothing_branches() -> None:
    families = build_families(torch.tensor([2, 2, 5, 5, 5]), device=CPU, has_lines=True)
    assert (families.stacks, families.slots, families.places) == ((), None, None)
    assert families.lines is not None
    assert (families.lines.borders.tolist(), families.lines.longest) == ([0, 2, 5], 3)
    mixed = build_families(ENDS, device=CPU, has_lines=True)
    assert mixed.lines is not None
    assert (mixed.lines.borders.tolist(), mixed.lines.longest) == ([0, 1, 4], 3)
    assert [stack.count for stack in mixed.stacks] == [2]
    assert mixed.slots is not None
    assert mixed.slots.tolist() == [0, 6, 7, 8, 1, 2, 3, 4, 5, 9, 10, 11, 12, 13]


@pytest.mark.parametrize(("padded", "stacks"), [(0, [2, 1, 1]), (15, [2, 1, 1]), (16, [3, 1]), (1024, [3, 1])])
def test_build_families__more_padding_than_allowed__gives_separate_stacks(
    monkeypatch: pytest.MonkeyPatch, padded: int, stacks: list[int]
) -> None:
    monkeypatch.setattr(tree_attention, "PADDED", padded)  # squares: 25, 25, 9, and 1, which is too short
    families = build_families(ENDS, device=CPU)
    assert [stack.count for stack in families.stacks] == stacks
    assert families.slots is not None
    assert families.slots[families.places].tolist() == list(range(14))


@pytest.mark.parametrize("has_lines", [False, True])
@pytest.mark.parametrize("sources", [4, 2, 1])
@pytest.mark.parametrize("padded", [0, 16, 1024])
def test_attend__families__is_the_sum_over_attended_tokens(
    monkeypatch: pytest.MonkeyPatch, sources: int, padded: int, has_lines: bool
) -> None:
    monkeypatch.setattr(tree_attention, "PADDED", padded)
    states = [draw(heads, seed=i).requires_grad_() for i, heads in enumerate((4, sources, sources))]
    slopes = draw(4, seed=9).transpose(1, 2)
    layer: Any = SimpleNamespace(is_causal=True, num_key_value_groups=4 // sources)
    families = build_families(ENDS, device=CPU, has_lines=has_lines)
    output, weights = attend(layer, states[0], states[1], states[2], None, families=families, scaling=0.3)
    expected = compute_slowly(states[0], states[1], states[2], 0.3)
    assert weights is None
    torch.testing.assert_close(output, expected)
    for ours, theirs in zip(
        torch.autograd.grad(output, states, slopes), torch.autograd.grad(expected, states, slopes), strict=True
    ):
        torch.testing.assert_close(ours, theirs)


def test_attend__lines_alone__is_the_sum_over_attended_tokens() -> None:
    states = [draw(2, seed=i)[:, :, :5].requires_grad_() for i in range(3)]
    families = build_families(torch.tensor([3, 3, 3, 5, 5]), device=CPU, has_lines=True)
    output, _ = attend(LAYER, states[0], states[1], states[2], None, families=families, scaling=0.3)
    causal = [
        torch.nn.functional.scaled_dot_product_attention(
            *(each[:, :, a:b] for each in states), is_causal=True, scale=0.3
        )
        for a, b in ((0, 3), (3, 5))
    ]
    torch.testing.assert_close(output, torch.cat(causal, dim=2).transpose(1, 2))


def test_attend__no_families__is_transformers_own() -> None:
    query, key, value = (draw(2, seed=i) for i in range(3))
    output, _ = attend(LAYER, query, key, value, None, scaling=0.3)
    causal = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True, scale=0.3)
    torch.testing.assert_close(output, causal.transpose(1, 2))


@pytest.mark.parametrize("asked", ["softcap", "position_bias", "s_aux", "sliding_window"])
def test_attend__layer_that_asks_for_more__is_refused(asked: str) -> None:
    states, families = draw(2, seed=0), build_families(ENDS, device=CPU)
    more: dict[str, Any] = {asked: 3}
    with pytest.raises(OperatorError, match="unsupported_model"):
        attend(LAYER, states, states, states, None, families=families, scaling=0.3, **more)


def test_build_families__packed_samples__wait_for_no_device() -> None:
    with DeviceWaits() as waits:
        build_families(ENDS, device=CPU)
        build_families(ENDS, device=CPU, has_lines=True)
    assert waits.total == 0
