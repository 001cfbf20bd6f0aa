"""The cache holds what transformers' own cache holds, and a token or the end of a sequence copies little."""

import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import DynamicCache, LlamaConfig, Qwen2Config
from transformers.cache_utils import DynamicSlidingWindowLayer

from covey.engines.hf import kv_cache
from covey.engines.hf.kv_cache import BLOCK, BlockCache, BlockLayer, keep_rows

pytestmark = pytest.mark.unit

CONFIG = LlamaConfig(hidden_size=24, num_hidden_layers=2, num_attention_heads=3, num_key_value_heads=3)
CPU = torch.device("cpu")


def draw(rows: int, tokens: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw keys and values. Their widths differ, as in some models."""
    return torch.rand(rows, 3, tokens, 8, generator=generator), torch.rand(rows, 3, tokens, 5, generator=generator)


@pytest.mark.parametrize("seed", range(6))
def test_cache__tokens_and_rows_in_any_order__equals_that_of_transformers(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv_cache, "BLOCK", 4)
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    rows = rng.randint(1, 3)
    ours, theirs = BlockCache(CONFIG, most_rows=8), DynamicCache(config=CONFIG)
    for step in range(30):
        for layer in range(2):
            added = draw(rows, 5 if step == 0 else 1, generator)
            for mine, other in zip(ours.update(*added, layer), theirs.update(*added, layer), strict=True):
                assert torch.equal(mine, other)
        assert ours.get_seq_length() == theirs.get_seq_length() == 5 + step
        assert ours.get_mask_sizes(1, 0) == theirs.get_mask_sizes(1, 0)
        if rng.random() < 0.5:
            sources = sorted(rng.choices(range(rows), k=rng.randint(1, 8)))
            kept = [source for _, source in sorted(zip(keep_rows(sources), sources, strict=True))]
            assert ours.rearrange(kept, CPU).tolist() == kept
            theirs.reorder_cache(torch.tensor(kept))
            rows = len(kept)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=12))
def test_keep_rows__any_sources__moves_no_row_that_is_a_source(sources: list[int]) -> None:
    rows = keep_rows(sources)
    assert sorted(rows) == [*range(len(sources))]
    moved = [(source, row) for source, row in zip(sources, rows, strict=True) if source != row]
    assert not {row for _, row in moved} & set(sources)
    assert len(moved) == len(sources) - len({source for source in sources if source < len(sources)})


def test_keep_rows__a_row_that_two_sequences_leave__is_kept_by_the_first() -> None:
    assert keep_rows([1, 1, 3]) == [1, 0, 2]


def test_update__tokens_of_a_block__stay_in_place() -> None:
    layer, generator = BlockLayer(4), torch.Generator().manual_seed(0)
    layer.update(*draw(4, BLOCK - 9, generator))
    places = set()
    for _ in range(9):
        keys, _ = layer.update(*draw(4, 1, generator))
        places.add(keys.data_ptr())
    assert len(places) == 1
    keys, _ = layer.update(*draw(4, 1, generator))
    assert keys.shape[2] == BLOCK + 1
    assert keys.data_ptr() not in places


def test_move__a_sequence_has_ended__copies_only_the_last_one() -> None:
    layer, generator = BlockLayer(4), torch.Generator().manual_seed(0)
    keys, values = draw(4, 3, generator)
    before, _ = layer.update(keys, values)
    layer.move(torch.tensor([3]), torch.tensor([1]), rows=3)
    assert layer.keys is not None
    assert layer.values is not None
    assert layer.keys.data_ptr() == before.data_ptr()
    assert torch.equal(layer.keys, keys[[0, 3, 2]])
    assert torch.equal(layer.values, values[[0, 3, 2]])


def test_move__siblings_separate_one_by_one__rows_are_reserved_by_doubling() -> None:
    layer, generator = BlockLayer(16), torch.Generator().manual_seed(0)
    keys, _ = layer.update(*draw(1, 3, generator))
    held = [keys]  # holding them keeps their memory from being used again
    for rows in range(2, 17):
        layer.move(torch.tensor([0]), torch.tensor([rows - 1]), rows=rows)
        assert layer.keys is not None
        assert torch.equal(layer.keys, keys.expand(rows, -1, -1, -1))
        held.append(layer.keys)
    assert len({each.data_ptr() for each in held}) == 5


def test_move__layer_without_keys__is_left_alone() -> None:
    layer = BlockLayer(4)
    layer.move(torch.tensor([1]), torch.tensor([0]), rows=1)
    assert layer.get_seq_length() == 0


def test_cache__layers_with_a_window__are_those_of_transformers() -> None:
    types = ["full_attention", "sliding_attention"]
    config = Qwen2Config(num_hidden_layers=2, use_sliding_window=True, sliding_window=4, layer_types=types)
    generator = torch.Generator().manual_seed(0)
    ours, theirs = BlockCache(config, most_rows=3), DynamicCache(config=config)
    assert [type(each) for each in ours.layers] == [BlockLayer, DynamicSlidingWindowLayer]
    for step in range(8):
        for layer in range(2):
            added = draw(3 if step < 4 else 2, 1, generator)
            for mine, other in zip(ours.update(*added, layer), theirs.update(*added, layer), strict=True):
                assert torch.equal(mine, other)
        if step == 3:
            ours.rearrange([0, 2], CPU)
            theirs.reorder_cache(torch.tensor([0, 2]))
