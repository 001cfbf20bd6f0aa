"""Performance of a step: throughput, idle time, floating-point operations and memory.

All functions are pure, except `get_peak_memory` and its caller `complete_report`.
"""

import resource
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from transformers import PreTrainedModel

from covey.model.policy_files import get_head
from trainer.config import LearningSettings
from trainer.data.packing import PrefixTree


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelSize:
    """Floating-point operations per token in forward and backward pass.

    Example: ModelSize(token=187_000_000_000, prediction=5_000_000_000, layers=64, width=5120).
    """

    token: int
    """Operations of one token in the layers, without attention."""
    prediction: int
    """Operations of one prediction in the head, which runs only where a completion token is predicted."""
    layers: int
    """Number of layers."""
    width: int
    """Number of attention heads times the size of a head."""


def measure_model(model: PreTrainedModel) -> ModelSize:
    """Return the size of a decoder. All its layers must have the same attention."""
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
    """Return the operations per token of these parameters.

    Each parameter takes two in the forward pass and two for the gradient of the input. Unless it is frozen, it takes
    two more for its own gradient.
    """
    return sum((6 if each.requires_grad else 4) * each.numel() for each in parameters)


def compute_flops(families: Sequence[PrefixTree], size: ModelSize, *, predictions: int) -> float:
    """Return the floating-point operations of forward and backward pass over samples, some of which share a prefix.

    A token takes 6 x parameters (PaLM, arXiv 2204.02311, appendix B). The head's parameters count only for
    `predictions`. A sequence takes 6 x layers x width x length^2 more: half of PaLM's 12, because attention is causal.
    Recomputation of activations does not count.
    """
    linear = size.token * sum(each.tokens for each in families) + size.prediction * predictions
    return float(linear + 6 * size.layers * size.width * sum(each.seen for each in families))


def get_peak_memory(device: str) -> int:
    """Return the peak memory so far in bytes: allocated by torch on a GPU, resident for the process on a CPU."""
    if device.startswith("cuda"):
        return torch.cuda.max_memory_allocated(device)
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def complete_report(
    report: Mapping[str, float], config: LearningSettings, *, saved: float, devices: int
) -> dict[str, float]:
    """Return all metrics of a step, from the `report` in its checkpoint.

    `saved` is the number of seconds from the updates until the next step can begin. `devices` is the number of devices
    of all ranks.
    """
    whole = {**report, "time/save": saved, "perf/peak_memory_bytes": get_peak_memory(config.device)}
    return whole | build_performance(whole, peak_flops=config.log.peak_flops, devices=devices)


def build_performance(report: Mapping[str, float], *, peak_flops: float | None, devices: int = 1) -> dict[str, float]:
    """Return the metrics derived from a step's tokens, samples, `perf/flops` and its three times in seconds.

    If `peak_flops`, the operations per second of each of `devices`, is None, there is no `perf/mfu`.
    """
    times = {name: report[f"time/{name}"] for name in ("wait_for_batch", "update", "save")}
    whole = sum(times.values())
    metrics = {
        "time/step": whole,
        "trainer/idle_ratio": _divide(times["wait_for_batch"], whole),
        "perf/tokens_per_second": _divide(report["batch/tokens"], whole),
        "perf/samples_per_second": _divide(report["batch/samples"], whole),
    }
    if peak_flops is not None:
        metrics["perf/mfu"] = _divide(report["perf/flops"], times["update"] * peak_flops * devices)
    return metrics


def _divide(value: float, by: float) -> float:
    """Return the quotient, or 0 if the divisor is 0 because a clock did not advance."""
    return value / by if by else 0.0
