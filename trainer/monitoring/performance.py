"""How fast a step was and what it took: throughput, idle time, floating-point operations, memory.

Called by `learning`; functions of values but for `get_peak_memory`.
"""

import resource
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from transformers import PreTrainedModel

from covey.model.policy_files import get_head
from trainer.config import TrainerConfig
from trainer.data.packing import PrefixTree


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelSize:
    """What a token costs.

    Example: ModelSize(token=187_000_000_000, prediction=5_000_000_000, layers=64, width=5120).
    """

    token: int
    """Operations of one that goes through the layers, attention apart."""
    prediction: int
    """Operations of the head, which is computed where a token of a completion is predicted only."""
    layers: int
    width: int
    """Heads x size of a head."""


def measure_model(model: PreTrainedModel) -> ModelSize:
    """The size of a decoder whose layers all have the same attention."""
    config, head = model.config, get_head(model)
    embedding = cast(torch.nn.Embedding, model.get_input_embeddings()).weight
    layers = [each for each in model.parameters() if each is not head.weight and each is not embedding]
    size_of_head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return ModelSize(
        token=_count_operations(layers),
        prediction=_count_operations([head.weight]),
        layers=config.num_hidden_layers,
        width=config.num_attention_heads * size_of_head,
    )


def _count_operations(parameters: Sequence[torch.Tensor]) -> int:
    """Two forward, two for the gradient of the input and two for their own, which frozen ones have not."""
    return sum((6 if each.requires_grad else 4) * each.numel() for each in parameters)


def compute_flops(families: Sequence[PrefixTree], size: ModelSize, *, predictions: int) -> float:
    """Floating-point operations of forward and backward pass over samples, of which some share a prefix.

    6 x parameters a token (PaLM, arXiv 2204.02311, appendix B), the head's for `predictions` alone, and 6 x layers x
    width x length^2 a sequence: causal attention, half of PaLM's 12.  What is computed again to save memory does not
    count.
    """
    linear = size.token * sum(each.tokens for each in families) + size.prediction * predictions
    return float(linear + 6 * size.layers * size.width * sum(each.seen for each in families))


def get_peak_memory(device: str) -> int:
    """Most bytes held so far: allocated by torch on a GPU, resident of the whole process on a CPU."""
    if device.startswith("cuda"):
        return torch.cuda.max_memory_allocated(device)
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def complete_report(
    report: Mapping[str, float], config: TrainerConfig, *, saved: float, devices: int
) -> dict[str, float]:
    """What is told of a step whose checkpoint holds `report` and was written, with its policy, in `saved` seconds."""
    whole = {**report, "time/save": saved, "perf/peak_memory_bytes": get_peak_memory(config.device)}
    return whole | build_performance(whole, peak_flops=config.peak_flops, devices=devices)


def build_performance(report: Mapping[str, float], *, peak_flops: float | None, devices: int = 1) -> dict[str, float]:
    """What follows from a step's tokens, samples, `perf/flops` and its three times in seconds.

    `perf/mfu` is left out where `peak_flops`, operations per second of each of `devices`, is not known.
    """
    times = {name: report[f"time/{name}"] for name in ("wait_for_batch", "update", "save")}
    whole = sum(times.values())
    found = {
        "time/step": whole,
        "trainer/idle_ratio": _divide(times["wait_for_batch"], whole),
        "perf/tokens_per_second": _divide(report["batch/tokens"], whole),
        "perf/samples_per_second": _divide(report["batch/samples"], whole),
    }
    if peak_flops is not None:
        found["perf/mfu"] = _divide(report["perf/flops"], times["update"] * peak_flops * devices)
    return found


def _divide(value: float, by: float) -> float:
    """0 where a clock did not move."""
    return value / by if by else 0.0
