"""Computes the default size of the KV cache on a CPU from the pool's sequence lengths."""

from collections.abc import Mapping
from typing import Any

from transformers import AutoConfig

from covey.engines.installation import measure_memory
from covey.engines.vllm.vllm_options import BLOCK
from covey.model.policy_files import DTYPES


def compute_cache_bytes(values: Mapping[str, Any]) -> int:
    """Return the size in bytes of the KV cache of a full batch of the longest sequences, per device.

    The result is at most the device's share of half of the memory. `values` are the values of the request "start".
    """
    config = AutoConfig.from_pretrained(values["folder"])
    longest = values["max_model_len"] or config.max_position_embeddings
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    size = DTYPES[values["dtype"]].itemsize
    token = 2 * config.num_hidden_layers * -(-heads // values["tensor_parallel_size"]) * width * size
    block = values["block_size"] or BLOCK
    blocks = values["batch"] * (-(-longest // block) + 1) + 1  # vLLM reserves one block for itself
    return int(min(blocks * block * token, measure_memory("cpu") // 2 // values["tensor_parallel_size"]))
