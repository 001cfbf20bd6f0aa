"""Share of a GPU's peak that the trainer reaches: updates of a Qwen2 of 1.5 billion random weights in bfloat16.

The masters are float32.  Operations are counted as `trainer.monitoring.performance` counts them: recomputation that
saves memory, masked positions and padding do not count.  Where memory is short, use ARGS="--activation-checkpointing".
On a CPU, ARGS="--size tiny --peak-flops 1e11" only shows that the benchmark runs.
"""

import argparse
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import torch
from transformers import PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

from benchmarks.harness import finish
from benchmarks.measurement import Bar, Measurement, find_misses, set_bars
from covey.engines.hf.engine import prepare_process
from covey.errors import OperatorError
from covey.protocol.ids import GroupId, RolloutId, Step, TaskId
from trainer.algorithm.batches import build_batch
from trainer.algorithm.forward import PackingConfig, recompute_activations
from trainer.algorithm.learner import Learner, Optimiser
from trainer.algorithm.loss_settings import LossSettings
from trainer.data.samples import Batch, Sample
from trainer.monitoring.performance import compute_flops, get_peak_memory, measure_model

BARS = {"utilisation": Bar(least=0.4)}
OPTIMISER = Optimiser(learning_rate=1e-6, betas=(0.9, 0.99), epsilon=1e-8, weight_decay=0.0, warm_up=0, clip=0.1)
OBJECTIVE = LossSettings(importance_sampling_mode="none")
PEAK_FLOPS = {
    "NVIDIA H100 80GB HBM3": 989e12,
    "NVIDIA H200": 989e12,
    "NVIDIA A100-SXM4-40GB": 312e12,
    "NVIDIA A100-SXM4-80GB": 312e12,
    "NVIDIA A100-PCIE-40GB": 312e12,
    "NVIDIA A100 80GB PCIe": 312e12,
}
"""Dense bfloat16 operations per second by the name that CUDA gives, from NVIDIA's data sheets."""


@dataclass(frozen=True, kw_only=True, slots=True)
class UpdateWorkload:
    """Model and update of one size.  Each sample has its own prompt, so that attention shares none."""

    hidden: int
    """Width of the model."""
    layers: int
    """Number of layers."""
    intermediate: int
    """Width of the feed-forward networks."""
    heads: int
    """Number of attention heads."""
    key_value_heads: int
    """Number of key and value heads, which attention heads share."""
    vocabulary: int
    """Number of entries of the vocabulary."""
    prompt: int
    """Tokens of a prompt."""
    sample: int
    """Tokens of a sample that go into the model, with its prompt and without the last token of its completion."""
    row: int
    """Tokens of a packed row."""
    tokens: int
    """Packed tokens of an update, by default."""


SIZES = {
    "1.5b": UpdateWorkload(
        hidden=1536, layers=28, intermediate=8960, heads=12, key_value_heads=2, vocabulary=151_936, prompt=256,
        sample=1024, row=4096, tokens=16_384,
    ),
    "tiny": UpdateWorkload(
        hidden=16, layers=2, intermediate=32, heads=2, key_value_heads=1, vocabulary=64, prompt=4, sample=16, row=32,
        tokens=64,
    ),
}  # fmt: skip


def build_model(workload: UpdateWorkload, device: str) -> PreTrainedModel:
    """Build the model with float32 masters on its device."""
    config = Qwen2Config(
        vocab_size=workload.vocabulary,
        hidden_size=workload.hidden,
        num_hidden_layers=workload.layers,
        intermediate_size=workload.intermediate,
        num_attention_heads=workload.heads,
        num_key_value_heads=workload.key_value_heads,
        max_position_embeddings=workload.row,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    with torch.device(device):
        model: PreTrainedModel = Qwen2ForCausalLM(config).train(False)
    return model


def build_update(workload: UpdateWorkload, tokens: int) -> Batch:
    """Build samples of `tokens` packed tokens in all.

    Raises OperatorError("odd_tokens") unless they fill whole rows.
    """
    if tokens < 1 or tokens % workload.row:
        raise OperatorError(
            "odd_tokens",
            f"{tokens} tokens do not fill rows of {workload.row}",
            fix=f"Set --tokens to a multiple of {workload.row}",
        )
    completion = workload.sample - workload.prompt + 1
    lengths = [completion] * (tokens // workload.sample)
    return draw_batch(lengths, prompt=workload.prompt, vocabulary=workload.vocabulary)


def draw_batch(lengths: Sequence[int], *, prompt: int, vocabulary: int, siblings: int = 1) -> Batch:
    """Draw a sample of random tokens for each length of a completion, with advantages of -0.5 and 0.5 in turn.

    Each prompt has `prompt` random tokens and is that of `siblings` consecutive samples.
    """
    rng, prompts, samples = random.Random(0), list[tuple[int, ...]](), list[Sample]()
    for i, length in enumerate(lengths):
        if i % siblings == 0:
            prompts.append(tuple(rng.choices(range(vocabulary), k=prompt)))
        sample = Sample(
            id=RolloutId(task=TaskId(0), group=GroupId(i // 2), sibling=i % 2),
            policy_version=Step(0),
            prompt=prompts[-1],
            tokens=tuple(rng.choices(range(vocabulary), k=length)),
            reward=float(i % 2),
            advantage=i % 2 - 0.5,
            old=None,
        )
        samples.append(sample)
    return build_batch(samples, normaliser="tokens", constant=max(lengths), keep_all=False)


def find_peak_flops(device: str) -> float:
    """Return the peak operations per second of a device.  Raises OperatorError("unknown_peak")."""
    name = torch.cuda.get_device_name(device) if device.startswith("cuda") else device
    if name not in PEAK_FLOPS:
        raise OperatorError("unknown_peak", f"the peak of {name} is not known", fix="Set --peak-flops")
    return PEAK_FLOPS[name]


def choose_device(size: str, wanted: str | None) -> str:
    """Choose the device: `wanted` unless it is None, else a GPU, else a CPU for the size "tiny".

    Raises OperatorError("no_gpu").
    """
    has_gpu = torch.cuda.is_available()
    device = wanted or ("cpu" if size == "tiny" and not has_gpu else "cuda")
    if device.startswith("cuda") and not has_gpu:
        raise OperatorError("no_gpu", "there is no CUDA device", fix="Set --size tiny --peak-flops 1e11 to try a CPU")
    return device


def measure(
    workload: UpdateWorkload,
    *,
    device: str,
    tokens: int,
    updates: int,
    peak_flops: float,
    activation_checkpointing: bool = False,
) -> list[Measurement]:
    """Measure the median update.  The first update, which warms up, does not count.

    `activation_checkpointing` computes layers again to save memory.

    Raises OperatorError("odd_tokens") and ("trainer_out_of_memory").
    """
    batch, model = build_update(workload, tokens), build_model(workload, device)
    if activation_checkpointing:
        recompute_activations(model)
    shape = PackingConfig(seq_len=workload.row, micro_batch_size=tokens // workload.row, compute_dtype="bfloat16")
    learner = Learner(model, optimiser=OPTIMISER, objective=OBJECTIVE, shape=shape)
    seconds = []
    for _ in range(1 + updates):
        start = time.perf_counter()
        learner.learn([batch])
        if device.startswith("cuda"):
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - start)
    predictions = sum(len(sample.tokens) for sample in batch.samples)
    flops = compute_flops(learner.find_families(batch), measure_model(model), predictions=predictions)
    return build_measurements(
        seconds[1:], tokens=tokens, flops=flops, peak_flops=peak_flops, memory=get_peak_memory(device)
    )


def build_measurements(
    seconds: Sequence[float], *, tokens: int, flops: float, peak_flops: float, memory: float
) -> list[Measurement]:
    """Build the measurements.  `flops` are the operations of one update, and `memory` is in bytes."""
    typical, n = median(seconds), len(seconds)
    peer = f"{flops:.4g} operations per update, peak {peak_flops:.4g} per second"
    return [
        Measurement(name="utilisation", value=flops / typical / peak_flops, unit="ratio", n=n, peer=peer),
        Measurement(name="tokens_per_s", value=tokens / typical, unit="tokens/s", n=n),
        Measurement(name="peak_memory_gb", value=memory / 1e9, unit="GB", n=n),
        Measurement(name="seconds_per_update", value=typical, unit="s", n=n),
    ]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser("make bench NAME=utilisation", description=__doc__)
    parser.add_argument("--size", choices=sorted(SIZES), default="1.5b", help="model and update; default: 1.5b")
    parser.add_argument("--device", help="PyTorch device; default: cuda, or cpu for --size tiny without a GPU")
    parser.add_argument("--tokens", type=int, help="packed tokens of an update; default: 16384, or 64 for --size tiny")
    parser.add_argument("--updates", type=int, default=5, help="timed updates, after one that warms up; default: 5")
    parser.add_argument(
        "--peak-flops",
        type=float,
        help="peak bfloat16 operations per second of a device that the benchmark does not know",
    )
    parser.add_argument(
        "--activation-checkpointing", action="store_true", help="layers are computed again, which saves memory"
    )
    options = parser.parse_args(arguments)
    if options.updates < 1 or (options.peak_flops is not None and not options.peak_flops > 0):
        parser.error("--updates and --peak-flops must be above 0")
    workload = SIZES[options.size]
    prepare_process(threads=torch.get_num_threads())
    try:
        device = choose_device(options.size, options.device)
        measurements = measure(
            workload,
            device=device,
            tokens=workload.tokens if options.tokens is None else options.tokens,
            updates=options.updates,
            peak_flops=options.peak_flops or find_peak_flops(device),
            activation_checkpointing=options.activation_checkpointing,
        )
    except OperatorError as error:
        print(error, file=sys.stderr)
        return 1
    if options.size == "1.5b":
        measurements = set_bars(measurements, BARS)
    return finish("utilisation", measurements, find_misses(measurements), arguments)
