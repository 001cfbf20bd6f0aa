"""The default size of the KV cache on a CPU equals the one worked out by hand."""

import os
from pathlib import Path

import pytest
from transformers import Qwen2Config

from covey.engines.installation import measure_memory
from covey.engines.vllm.cache_size import compute_cache_bytes

pytestmark = pytest.mark.unit
VALUES = {"max_model_len": 100, "batch": 8, "dtype": "bfloat16", "tensor_parallel_size": 1, "block_size": None}


@pytest.fixture
def folder(tmp_path: Path) -> str:
    """Folder with the config of a model that has three layers with two key-value heads of width 16."""
    shape = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 3}
    Qwen2Config(**shape, max_position_embeddings=640).save_pretrained(tmp_path)
    return str(tmp_path)


@pytest.mark.parametrize(
    ("changes", "blocks", "token"),
    [
        ({}, 8 * 5 + 1, 2 * 3 * 2 * 16 * 2),  # 100 tokens take 4 blocks of 32, and one more is reserved per sequence
        ({"dtype": "float32"}, 8 * 5 + 1, 2 * 3 * 2 * 16 * 4),
        ({"max_model_len": None}, 8 * 21 + 1, 2 * 3 * 2 * 16 * 2),
        ({"tensor_parallel_size": 2}, 8 * 5 + 1, 2 * 3 * 1 * 16 * 2),
    ],
)
def test_compute_cache_bytes__by_hand(folder: str, changes: dict[str, object], blocks: int, token: int) -> None:
    assert compute_cache_bytes(VALUES | {"folder": folder} | changes) == blocks * 32 * token


def test_compute_cache_bytes__batch_larger_than_memory__is_half_of_the_memory(folder: str) -> None:
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 0 < measure_memory("cpu") <= memory
    assert compute_cache_bytes(VALUES | {"folder": folder, "batch": 1 << 30}) == measure_memory("cpu") // 2
    shared = {"folder": folder, "batch": 1 << 30, "tensor_parallel_size": 2}
    assert compute_cache_bytes(VALUES | shared) == measure_memory("cpu") // 4
