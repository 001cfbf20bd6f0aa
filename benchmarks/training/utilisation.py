"""How much of a GPU the trainer uses: updates of a Qwen2 of 1.5 billion random weights on packed rows, bfloat16 over
float32 masters.

`make bench NAME=utilisation`; ARGS="--activation-checkpointing --tokens 16384 --updates 5".  Where there is no GPU,
ARGS="--size tiny --peak-flops 1e11" shows that it runs.  Operations are counted as `trainer.monitoring.performance`
counts them: without recomputation that saves memory, masked positions and padding.
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

from benchmarks.harness import Measurement, find_misses, finish
from covey.engines.hf.engine import prepare_process
from covey.errors import OperatorError
from covey.protocol.ids import GroupId, RolloutId, Step, TaskId
from trainer.algorithm.batches import build_batch
from trainer.algorithm.forward import Shape, recompute_activations
from trainer.algorithm.grpo import Objective
from trainer.algorithm.learner import Learner, Optimiser
from trainer.data.samples import Batch, Sample
from trainer.monitoring.performance import compute_flops, get_peak_memory, measure_model

LEAST = {"utilisation": 0.4}
OPTIMISER = Optimiser(learning_rate=1e-6, betas=(0.9, 0.99), epsilon=1e-8, weight_decay=0.0, warm_up=0, clip=0.1)
OBJECTIVE = Objective(kind="two_sided", epsilon=0.2, delta=4.0, cap=1.0, kl=0.0, entropy=0.0)
PEAK_FLOPS = {
    "NVIDIA H100 80GB HBM3": 989e12,
    "NVIDIA H200": 989e12,
    "NVIDIA A100-SXM4-40GB": 312e12,
    "NVIDIA A100-SXM4-80GB": 312e12,
    "NVIDIA A100-PCIE-40GB": 312e12,
    "NVIDIA A100 80GB PCIe": 312e12,
}
"""Dense bfloat16 operations a second, by the name that CUDA gives (NVIDIA's data sheets)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class UpdateWorkload:
    """One size.  Samples have a prompt each, so that no attention shares a copy of it."""

    hidden: int
    layers: int
    intermediate: int
    heads: int
    key_value_heads: int
    vocabulary: int
    prompt: int
    sample: int
    """Tokens of one that go into the model, its prompt among them; the last token of a completion does not."""
    row: int
    """Tokens of a packed row."""
    tokens: int
    """Of an update unless told."""


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


def build_model(case: UpdateWorkload, device: str) -> PreTrainedModel:
    """Float32 masters, made where they are used."""
    config = Qwen2Config(
        vocab_size=case.vocabulary,
        hidden_size=case.hidden,
        num_hidden_layers=case.layers,
        intermediate_size=case.intermediate,
        num_attention_heads=case.heads,
        num_key_value_heads=case.key_value_heads,
        max_position_embeddings=case.row,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    with torch.device(device):
        model: PreTrainedModel = Qwen2ForCausalLM(config).train(False)
    return model


def build_update(case: UpdateWorkload, tokens: int) -> Batch:
    """Samples of so many packed tokens in all; raise OperatorError("odd_tokens") unless they fill samples and rows."""
    if tokens < 1 or tokens % case.row:
        raise OperatorError("odd_tokens", f"{tokens} tokens fill no rows of {case.row}", fix="Give a multiple of it")
    rng, completion = random.Random(0), case.sample - case.prompt + 1
    samples = [
        Sample(
            id=RolloutId(task=TaskId(0), group=GroupId(i // 2), sibling=i % 2),
            policy_version=Step(0),
            prompt=tuple(rng.choices(range(case.vocabulary), k=case.prompt)),
            tokens=tuple(rng.choices(range(case.vocabulary), k=completion)),
            reward=float(i % 2),
            advantage=i % 2 - 0.5,
            old=None,
        )
        for i in range(tokens // case.sample)
    ]
    return build_batch(samples, normaliser="tokens", constant=completion, keep_all=False)


def find_peak_flops(device: str) -> float:
    """What is known of the device; raises OperatorError("unknown_peak")."""
    name = torch.cuda.get_device_name(device) if device.startswith("cuda") else device
    if name not in PEAK_FLOPS:
        raise OperatorError("unknown_peak", f"operations a second of {name} are not known", fix="Set --peak-flops")
    return PEAK_FLOPS[name]


def choose_device(size: str, wanted: str | None) -> str:
    """What is wanted, else a GPU, else a CPU for what is tiny; raises OperatorError("no_gpu")."""
    has_gpu = torch.cuda.is_available()
    device = wanted or ("cpu" if size == "tiny" and not has_gpu else "cuda")
    if device.startswith("cuda") and not has_gpu:
        raise OperatorError("no_gpu", "there is no CUDA device", fix="Set --size tiny --peak-flops 1e11 to try a CPU")
    return device


def measure(
    case: UpdateWorkload, *, device: str, tokens: int, updates: int, peak_flops: float, is_lean: bool = False
) -> list[Measurement]:
    """The claims, of the median update; the first one, which warms up, does not count.

    `is_lean`: layers are computed again.  Raises OperatorError("odd_tokens") and ("trainer_out_of_memory").
    """
    batch, model = build_update(case, tokens), build_model(case, device)
    if is_lean:
        recompute_activations(model)
    shape = Shape(row_tokens=case.row, micro_batch_rows=tokens // case.row, compute_dtype="bfloat16")
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
    return build_claims(seconds[1:], tokens=tokens, flops=flops, peak_flops=peak_flops, memory=get_peak_memory(device))


def build_claims(
    seconds: Sequence[float], *, tokens: int, flops: float, peak_flops: float, memory: float
) -> list[Measurement]:
    """`seconds` and `flops` are of one update, `peak_flops` a second's, `memory` in bytes."""
    typical, n = median(seconds), len(seconds)
    told = f"{flops:.4g} operations an update, {peak_flops:.4g} a second"
    return [
        Measurement(name="utilisation", value=flops / typical / peak_flops, unit="ratio", n=n, peer=told),
        Measurement(name="tokens_per_s", value=tokens / typical, unit="1/s", n=n),
        Measurement(name="peak_memory_gb", value=memory / 1e9, unit="GB", n=n),
        Measurement(name="seconds_per_update", value=typical, unit="s", n=n),
    ]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=sorted(SIZES), default="1.5b")
    parser.add_argument("--device", help="default: cuda; a CPU for --size tiny where there is none")
    parser.add_argument("--tokens", type=int, help="of an update; default: 16,384, or 64 for --size tiny")
    parser.add_argument("--updates", type=int, default=5, help="that are timed, after one that is not")
    parser.add_argument("--peak-flops", type=float, help="bfloat16 operations a second of a device that is not known")
    parser.add_argument("--activation-checkpointing", action="store_true", help="compute layers again, keep less")
    options = parser.parse_args(arguments)
    if options.updates < 1 or (options.peak_flops is not None and not options.peak_flops > 0):
        parser.error("--updates and --peak-flops must be above 0")
    case = SIZES[options.size]
    prepare_process(threads=torch.get_num_threads())
    try:
        device = choose_device(options.size, options.device)
        claims = measure(
            case,
            device=device,
            tokens=case.tokens if options.tokens is None else options.tokens,
            updates=options.updates,
            peak_flops=options.peak_flops or find_peak_flops(device),
            is_lean=options.activation_checkpointing,
        )
    except OperatorError as error:
        print(error, file=sys.stderr)
        return 1
    return finish("utilisation", claims, find_misses(claims, least=LEAST) if options.size == "1.5b" else [])
