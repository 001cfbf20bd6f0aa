"""Attention by families, against sums written out token by token."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from covey.errors import OperatorError
from trainer.attention import attend, build_mask

pytestmark = pytest.mark.unit

BRANCHES = [torch.tensor([[0, 0, 1, 2, 2], [0, 1, 1, 1, 2]]), torch.tensor([[0]]), torch.tensor([[0, 1, 1]])]
"""Two families of five tokens, one of one, one of three."""
LAYER: Any = SimpleNamespace(is_causal=True)


def draw(heads: int, *, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(1, heads, 14, 4, generator=generator, dtype=torch.float64)


def find_seen() -> list[list[int]]:
    """The tokens that each of the fourteen sees, by the families' definition."""
    seen, start = [], 0
    for family in (row for each in BRANCHES for row in each.tolist()):
        for i, branch in enumerate(family):
            seen.append([start + j for j in range(i + 1) if family[j] in (0, branch)])
        start += len(family)
    return seen


def compute_slowly(query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
    rows = []
    for token, seen in enumerate(find_seen()):
        heads = []
        for head in range(query.shape[1]):
            source = head // (query.shape[1] // key.shape[1])
            weights = torch.softmax(key[0, source, seen] @ query[0, head, token] * scaling, dim=0)
            heads.append(weights @ value[0, source, seen])
        rows.append(torch.stack(heads))
    return torch.stack(rows)[None]


def test_build_mask__siblings__see_their_prompt_and_not_each_other() -> None:
    assert build_mask(BRANCHES[0])[0].int().tolist() == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [1, 1, 1, 0, 0],
        [1, 1, 0, 1, 0],
        [1, 1, 0, 1, 1],
    ]


@pytest.mark.parametrize("sources", [4, 2, 1])
def test_attend__families__is_the_sum_over_what_each_token_sees(sources: int) -> None:
    given = [draw(heads, seed=i).requires_grad_() for i, heads in enumerate((4, sources, sources))]
    slopes = draw(4, seed=9).transpose(1, 2)
    families = [build_mask(each) for each in BRANCHES]
    layer: Any = SimpleNamespace(is_causal=True, num_key_value_groups=4 // sources)
    found, weights = attend(layer, given[0], given[1], given[2], None, families=families, scaling=0.3)
    wanted = compute_slowly(given[0], given[1], given[2], 0.3)
    assert weights is None
    torch.testing.assert_close(found, wanted)
    for ours, theirs in zip(
        torch.autograd.grad(found, given, slopes), torch.autograd.grad(wanted, given, slopes), strict=True
    ):
        torch.testing.assert_close(ours, theirs)


def test_attend__no_families__is_transformers_own() -> None:
    query, key, value = (draw(2, seed=i) for i in range(3))
    found, _ = attend(LAYER, query, key, value, None, scaling=0.3)
    causal = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True, scale=0.3)
    torch.testing.assert_close(found, causal.transpose(1, 2))


@pytest.mark.parametrize("asked", ["softcap", "position_bias", "s_aux", "sliding_window"])
def test_attend__layer_that_asks_for_more__is_refused(asked: str) -> None:
    states, families = draw(2, seed=0), [build_mask(each) for each in BRANCHES]
    more: dict[str, Any] = {asked: 3}
    with pytest.raises(OperatorError, match="unsupported_model"):
        attend(LAYER, states, states, states, None, families=families, scaling=0.3, **more)
