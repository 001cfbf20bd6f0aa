"""What engines do differently when their device is a CPU.

Two more differences are with the code that they concern: `engines.vllm.cache_size` computes the default KV cache, and
`trainer.algorithm.lm_head` uses smaller tiles.

torch is imported late, because roles call `keep_memory` before they start a thread.
"""

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

REPLAY_TOKENS = 8192
"""Largest number of tokens of a replay pass on a CPU. With a hidden size of 4096 a layer's states then take 128 MiB."""
BLOCK = 256
"""Tokens that a CPU puts through a feed-forward network together, so that intermediate results stay in its cache."""
MASKED_TOKENS = 1024
"""Longest sequence for which a CPU uses a mask, of at most 4 MiB. This is faster than computing the prompt's queries
again."""
VLLM_LOGITS = 1 << 23
"""Largest number of logits of a replay that vLLM computes at a time on a CPU, where new pages are expensive."""
VLLM_ENVIRONMENT = {
    # Make glibc keep freed memory. Each step allocates logits of tens of MiB, and new pages would cost more than the
    # logits themselves (decision 016).
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
    "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16",  # turns AMX tiles off; see `disable_amx_tiles`
}
"""Environment of a vLLM subprocess that computes on a CPU."""
_MMAP_THRESHOLD, _TRIM_THRESHOLD, _ARENA_MAX = -3, -1, -8
"""Parameters of mallopt(3): mmap threshold, trim threshold and number of arenas.

An allocation above the mmap threshold gets its own mapping. Free memory up to the trim threshold stays at the heap's
end. All threads share one arena, because per-thread arenas have small heaps whose ends return to the kernel at once.
"""


def keep_memory() -> None:
    """Make this process keep up to a gibibyte of freed memory, which the next step's tensors use again.

    Otherwise the kernel takes the memory back after each step and clears every page before its next use. Call this
    before the process starts threads, because their arenas would stay. It has no effect if the C library is not glibc.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, 32 << 20)
        mallopt(_TRIM_THRESHOLD, 1 << 30)
        mallopt(_ARENA_MAX, 1)


def disable_amx_tiles() -> None:
    """Make vLLM multiply without AMX tiles. Call this before vLLM builds a worker.

    With AMX tiles a bfloat16 row depends on the other rows of its batch, so a replay would not equal its original to
    the bit (decision 016).
    """
    import torch

    torch.cpu._is_amx_tile_supported = lambda: False


@contextmanager
def feed_in_blocks(model: "PreTrainedModel") -> Iterator[None]:
    """Make the feed-forward networks take `BLOCK` tokens at a time on a CPU, and undo this afterwards.

    The intermediate results of a block stay in a core's cache.
    """
    is_cpu = model.device.type == "cpu"
    networks = [each for name, each in model.named_modules() if is_cpu and name.endswith(".mlp") and _is_dense(each)]
    for network in networks:
        setattr(network, "forward", partial(_feed_blocks, network.forward))  # noqa: B010
    try:
        yield
    finally:
        for network in networks:
            del network.forward


def _is_dense(network: "torch.nn.Module") -> bool:
    """Return whether all parameters are in plain linear layers, as in Llama and Qwen.

    Such a network maps one tensor to one tensor, token by token.
    """
    import torch

    return all(isinstance(each, torch.nn.Linear) for each in network.modules() if [*each.parameters(recurse=False)])


def _feed_blocks(forward: "Callable[[torch.Tensor], torch.Tensor]", hidden: "torch.Tensor") -> "torch.Tensor":
    import torch

    return torch.cat([forward(block) for block in torch.split(hidden, BLOCK, dim=1)], dim=1)
