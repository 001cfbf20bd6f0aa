"""What the sections on vLLM share: a policy on disk, options for two engines on one card, and the card's memory."""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch

from benchmarks.gpu.random_models import SMALL, build_peaked
from benchmarks.gpu.section_run import SectionRun
from covey.engines.vllm.vllm_options import VllmOptions
from covey.model.policy_files import save_policy
from covey.model.tiny import build_tokenizer

CACHE = int(9.5 * 2**30)
"""Bytes of the KV cache of an engine: 256 sequences of 256 tokens of 0.6B take 7.5 GB."""
START_SECONDS, CALL_SECONDS = 240.0, 120.0
MAX_MODEL_LEN = 1024


@contextmanager
def save_peaked(run: SectionRun) -> Iterator[Path]:
    """Yield the folder of a policy of 0.6B with peaked logits, which is removed on exit."""
    with tempfile.TemporaryDirectory(prefix="covey-gpu-") as folder:
        save_policy(build_peaked(run, SMALL), build_tokenizer(), Path(folder), "bfloat16")
        run.clear_memory()
        yield Path(folder)


def build_exact_options(run: SectionRun, lengths: Sequence[int]) -> list[VllmOptions]:
    """Build the options of the exact lane in the order in which a role tries them.

    The proof at the start has the longest of some lengths. The cache is so small that a batch of 256 preempts.
    """
    options = build_options(run).model_copy(
        update={
            "kv_cache_memory_bytes": run.pick(3 << 30, 1 << 17),
            "max_model_len": max(lengths) + 1,
            "proof_length": max(lengths),
        }
    )
    return options.list_exact(run.device, "bfloat16")


def build_options(run: SectionRun, *, is_eager: bool | None = None) -> VllmOptions:
    """Build the options of an engine that shares the card.

    With a given size of the cache, vLLM compares `gpu_memory_utilization` only with the free memory at its start.
    """
    return VllmOptions(
        kv_cache_memory_bytes=run.pick(CACHE, 1 << 26),
        gpu_memory_utilization=0.02,
        max_model_len=MAX_MODEL_LEN,
        enforce_eager=is_eager,
        start_seconds=START_SECONDS,
        call_seconds=CALL_SECONDS,
    )


def read_card_gb(run: SectionRun) -> float | None:
    """Return the memory of the card that all processes use in units of 10^9 bytes.  None on a CPU."""
    if run.device == "cpu":
        return None
    free, total = torch.cuda.mem_get_info()
    return (total - free) / 1e9
