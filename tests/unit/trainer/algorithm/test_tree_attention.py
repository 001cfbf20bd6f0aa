"""Attention by families against sums written out token by token."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from covey.errors import OperatorError
from trainer.algorithm import tree_attention
from trainer.algorithm.tree_attention import attend, build_families, build_mask

pytestmark = pytest.mark.unit

ENDS = torch.tensor([1, 6, 6, 4, 6, 6, 9, 9, 9, 14, 12, 12, 14, 14])
"""Ends of four families: a single token, a prompt of two with answers of one and two, three in a row, and a tree that
branches at its root."""
POSITIONS = torch.tensor([0, 0, 1, 2, 2, 3, 0, 1, 2, 0, 1, 2, 1, 2])
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
    families = build_families(torch.tensor([0, 1, 0, 1, 1]), torch.tensor([2, 2, 5, 4, 5]))
    (mask,) = families.masks
    assert mask.int().tolist() == [
        [[1, 0, 0], [1, 1, 0], [1, 0, 1]],
        [[1, 0, 0], [1, 1, 0], [0, 0, 1]],
    ]
    assert families.stacked.tolist() == [2, 3, 4, 0, 1, 1]
    assert families.places.tolist() == [3, 4, 0, 1, 2]


@pytest.mark.parametrize(("padded", "stacks"), [(0, [2, 1, 1]), (15, [2, 1, 1]), (16, [3, 1]), (1024, [3, 1])])
def test_build_families__more_padding_than_allowed__gives_separate_stacks(
    monkeypatch: pytest.MonkeyPatch, padded: int, stacks: list[int]
) -> None:
    monkeypatch.setattr(tree_attention, "PADDED", padded)  # squares: 25, 25, 9, and 1, which is too short
    families = build_families(POSITIONS, ENDS)
    assert [len(mask) for mask in families.masks] == stacks
    assert families.stacked[families.places].tolist() == list(range(14))


@pytest.mark.parametrize("sources", [4, 2, 1])
@pytest.mark.parametrize("padded", [0, 16, 1024])
def test_attend__families__is_the_sum_over_attended_tokens(
    monkeypatch: pytest.MonkeyPatch, sources: int, padded: int
) -> None:
    monkeypatch.setattr(tree_attention, "PADDED", padded)
    states = [draw(heads, seed=i).requires_grad_() for i, heads in enumerate((4, sources, sources))]
    slopes = draw(4, seed=9).transpose(1, 2)
    layer: Any = SimpleNamespace(is_causal=True, num_key_value_groups=4 // sources)
    families = build_families(POSITIONS, ENDS)
    output, weights = attend(layer, states[0], states[1], states[2], None, families=families, scaling=0.3)
    expected = compute_slowly(states[0], states[1], states[2], 0.3)
    assert weights is None
    torch.testing.assert_close(output, expected)
    for ours, theirs in zip(
        torch.autograd.grad(output, states, slopes), torch.autograd.grad(expected, states, slopes), strict=True
    ):
        torch.testing.assert_close(ours, theirs)


def test_attend__no_families__is_transformers_own() -> None:
    query, key, value = (draw(2, seed=i) for i in range(3))
    output, _ = attend(LAYER, query, key, value, None, scaling=0.3)
    causal = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True, scale=0.3)
    torch.testing.assert_close(output, causal.transpose(1, 2))


@pytest.mark.parametrize("asked", ["softcap", "position_bias", "s_aux", "sliding_window"])
def test_attend__layer_that_asks_for_more__is_refused(asked: str) -> None:
    states, families = draw(2, seed=0), build_families(POSITIONS, ENDS)
    more: dict[str, Any] = {asked: 3}
    with pytest.raises(OperatorError, match="unsupported_model"):
        attend(LAYER, states, states, states, None, families=families, scaling=0.3, **more)
