"""What engines do differently when their device is a CPU.

Two more differences are with the code that they concern: `engines.vllm.cache_size` computes the default KV cache, and
`trainer.algorithm.lm_head` uses smaller tiles. torch is imported late, because roles call `keep_memory` before they
start a thread.
"""

import ctypes
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

REPLAY_TOKENS = 8192
"""Maximum number of tokens in a replay pass on a CPU.

With a hidden size of 4096 the states of a layer then take 128 MiB.
"""
BLOCK = 256
"""Number of tokens that pass a feed-forward network together on a CPU. Intermediate results then stay in the cache."""
MASKED_TOKENS = 1024
"""Maximum sequence length for which a CPU uses an attention mask, which takes at most 4 MiB.

For such sequences a mask is faster than computing the prompt's queries again.
"""
VLLM_LOGITS = 1 << 23
"""Maximum number of replay logits that vLLM computes at once on a CPU, where new memory pages are expensive."""
VLLM_ENVIRONMENT = {
    # Make glibc keep freed memory. Each step allocates logits of tens of MiB, and new pages would cost more than the
    # logits themselves (decision 016).
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
    "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16",  # turns AMX tiles off; see `disable_amx_tiles`
}
"""Environment variables of a vLLM subprocess on a CPU."""
_MMAP_THRESHOLD, _TRIM_THRESHOLD, _ARENA_MAX = -3, -1, -8
"""Parameters of mallopt(3): mmap threshold, trim threshold and number of arenas.

An allocation above the mmap threshold gets its own mapping. Free memory up to the trim threshold stays at the end of
the heap. All threads share one arena, because the small heaps of per-thread arenas return memory to the kernel at once.
"""


@contextmanager
def keep_torch_settings() -> Iterator[None]:
    """Restore torch's number of threads and its choice of deterministic algorithms after the context.

    A script or a notebook goes on with the settings that it had.
    """
    import torch

    threads, is_set = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(is_set, warn_only=warn_only)


def keep_memory() -> None:
    """Make this process keep up to 1 GiB of freed memory, which the tensors of the next step reuse.

    Otherwise the kernel takes the memory back after each step and clears every page before its next use. Call this
    before the process starts threads, because their arenas would stay. It has no effect with a C library other than
    glibc.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, 32 << 20)
        mallopt(_TRIM_THRESHOLD, 1 << 30)
        mallopt(_ARENA_MAX, 1)


def make_products_repeatable() -> None:
    """Make MKL compute equal products for equal matrices, wherever these lie in memory and for any number of threads.

    Otherwise two runs of the same training may differ in their last bits on Intel's processors. It costs no time that
    was measurable. Call this before the process computes its first product, because MKL reads the variable then. What
    the user has set stays.
    """
    os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")


def disable_amx_tiles() -> None:
    """Make vLLM multiply without AMX tiles. Call this before vLLM builds a worker.

    With AMX tiles a bfloat16 row depends on the other rows of its batch, so a replay would not equal its original to
    the bit (decision 016).
    """
    import torch

    torch.cpu._is_amx_tile_supported = lambda: False


@contextmanager
def feed_in_blocks(model: "PreTrainedModel") -> Iterator[None]:
    """On a CPU, make the feed-forward networks process `BLOCK` tokens at a time. Undo this on exit.

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
    """Return whether all parameters of a network belong to plain linear layers, as in Llama and Qwen.

    Such a network maps each token on its own, so its input can be split into blocks.
    """
    import torch

    return all(isinstance(each, torch.nn.Linear) for each in network.modules() if [*each.parameters(recurse=False)])


def _feed_blocks(forward: "Callable[[torch.Tensor], torch.Tensor]", hidden: "torch.Tensor") -> "torch.Tensor":
    import torch

    return torch.cat([forward(block) for block in torch.split(hidden, BLOCK, dim=1)], dim=1)
