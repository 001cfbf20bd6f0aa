"""How large the key-value cache of a CPU is, where nobody says: what the pool's lengths ask for."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import AutoConfig

from covey.model.policy_files import DTYPES

BLOCK = 32
"""Tokens of a block of the cache on a CPU, which serves multiples of 32."""


def compute_cache_bytes(values: Mapping[str, Any]) -> int:
    """Keys and values of a whole batch of the longest sequences on one device, at most its part of half of the
    memory.

    `values`: of the question "start".
    """
    config = AutoConfig.from_pretrained(values["folder"])
    longest = values["max_model_len"] or config.max_position_embeddings
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    size = DTYPES[values["dtype"]].itemsize
    token = 2 * config.num_hidden_layers * -(-heads // values["tensor_parallel_size"]) * width * size
    block = values["block_size"] or BLOCK
    blocks = values["batch"] * (-(-longest // block) + 1) + 1  # vLLM keeps one for itself
    return int(min(blocks * block * token, get_memory() // 2 // values["tensor_parallel_size"]))


def get_memory() -> int:
    """Bytes of the machine, or of the container that this process runs in."""
    whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = Path("/sys/fs/cgroup/memory.max")
    given = limit.read_text().strip() if limit.exists() else "max"
    return min(whole, int(given)) if given.isdecimal() else whole
