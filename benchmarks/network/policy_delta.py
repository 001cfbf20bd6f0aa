"""Sizes and speed of policy deltas on real steps of the trainer, against the codecs of other systems, on one core.

A Qwen2 of over 10M parameters learns the copying task. The trainer's learner then continues at four learning rates with
a new optimizer. "first" is the delta of its first step, "later" that of its ninth, and "jump" that of five steps at
once. All tensors are coded as one array, as they travel in a delta file. Every delta file is decoded and compared bit
for bit.

The peers are the codecs' published forms, not their code: XOR (slime), gaps as u16 with values (PULSE), and int32
indices with values (verl, NeMo-RL), each compressed with zstd at level 1. `over_bound` divides the size by the entropy
of the changes given the parent's exponent: for each exponent the binary entropy of the changed positions, and the
entropy of the differences in units of the last place. It can be below 1, because blocks differ and have their own
frequencies. Speeds are those of the fastest of several runs on the "later" delta at 1e-6, repeated to 256 MB, over the
speed of a copy of these bytes.
"""

import argparse
import io
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from benchmarks import isolated_process
from benchmarks.harness import OUTPUT, finish
from benchmarks.measurement import Bar, Measurement, find_misses, set_bars
from covey.protocol.ids import ZERO_HASH
from covey.protocol.policy_record import PolicyRecord, TensorRow
from covey.shardcast.delta import image_codec
from covey.shardcast.delta.class_gaps import get_rank
from covey.shardcast.delta.image_codec import DeltaFile, ImageBlock

RATES = (3e-7, 1e-6, 3e-6, 1e-5)
SPANS = {"first": (0, 1), "later": (8, 9), "jump": (8, 13)}
"""Steps of parent and child by the name of the delta."""
SPEED_BYTES = 256 << 20
BARS = {
    "ratio_vs_xor.later.lr1e-6": Bar(least=2.6),
    "ratio_vs_u16.later.lr1e-6": Bar(least=2.8),
    "over_bound.later.lr1e-6": Bar(most=1.10),
    "encode_over_memcpy": Bar(least=0.06),
    "decode_over_memcpy": Bar(least=0.10),
}

Bits = NDArray[np.uint16]


def take_steps(rate: float, folder: str) -> None:
    """Train at one learning rate, and save the bfloat16 weights of the steps in `SPANS` in the folder."""
    import random

    import torch

    from benchmarks.training import copy_task
    from benchmarks.training.throughput import build_learner, prepare, roll_out
    from covey.engines.hf.engine import HuggingFaceEngine, prepare_process
    from trainer.algorithm.loss_settings import LossSettings

    prepare_process(threads=1)
    shape = {"name": "delta", "hidden": 384, "layers": 6, "groups": 8, "siblings": 8, "timed": 0}
    objective = LossSettings(importance_sampling_mode="none", epsilon=copy_task.EPSILON, delta=copy_task.DELTA)
    rng = random.Random(0)
    weights: Mapping[str, torch.Tensor] | None = None
    for learning_rate, steps in ((1e-3, 12), (rate, 13)):
        config = copy_task.CopyTaskConfig(**shape, learning_rate=learning_rate, steps=steps)  # type: ignore[arg-type]
        learner = build_learner(config, 0, objective)
        if weights is not None:
            learner.model.load_state_dict(weights)
        engine = HuggingFaceEngine.from_model(learner.model, copy_task.build_tokenizer(), max_batch=64)
        prompts = copy_task.draw_prompts(steps, config.groups * steps)
        for step in range(steps + 1):
            if weights is not None and step in {i for span in SPANS.values() for i in span}:
                save(learner.model.state_dict(), Path(folder) / f"{step}.npz")
            if step < steps:
                rollouts = roll_out(engine, prompts[step * config.groups :][: config.groups], config.siblings, rng)
                learner.learn(prepare(rollouts, config.siblings, step))
        weights = learner.model.state_dict()


def save(tensors: "Mapping[str, object]", path: Path) -> None:
    """Save tensors as bfloat16 bits. Tied tensors are saved once."""
    import torch

    seen: dict[int, str] = {}
    bits: dict[str, Bits] = {}
    for name, tensor in tensors.items():
        assert isinstance(tensor, torch.Tensor)
        if seen.setdefault(tensor.data_ptr(), name) == name:
            bits[name] = tensor.detach().to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **bits)  # type: ignore[arg-type]


def compress(*arrays: NDArray[np.generic]) -> int:
    """Return the size of the arrays' bytes, each compressed with zstd at level 1."""
    codec = pa.Codec("zstd", compression_level=1)
    return sum(len(codec.compress(array.tobytes(), asbytes=True)) for array in arrays)


def list_blocks(size: int) -> tuple[ImageBlock, ...]:
    """Return the blocks of an image of `size` bfloat16 values."""
    row = TensorRow(name="all", dtype="BF16", shape=(size,), digest=ZERO_HASH)
    return image_codec.list_blocks(PolicyRecord(pool=1, step=0, tensors=(row,), files=()))


def encode(parent: Bits, child: Bits) -> bytes:
    """Return Covey's delta file."""
    file = io.BytesIO()
    image_codec.encode_image(parent.view(np.uint8), child.view(np.uint8), blocks=list_blocks(len(parent)), file=file)
    return file.getvalue()


def decode(parent: Bits, data: bytes, child: Bits) -> None:
    """Write the child of a delta file."""
    blocks, before, after = list_blocks(len(parent)), parent.view(np.uint8), child.view(np.uint8)
    delta = DeltaFile(data, blocks)
    for index, block in enumerate(blocks):
        delta.apply(index, block.cut(before), block.cut(after))


def measure_covey(parent: Bits, child: Bits) -> int:
    """Return the size of Covey's delta, after decoding it. Raises RuntimeError if the child is not restored."""
    data, found = encode(parent, child), np.empty_like(child)
    decode(parent, data, found)
    if not np.array_equal(found, child):
        raise RuntimeError("a decoded image differs from the child")
    return len(data)


def measure_gaps(parent: Bits, child: Bits) -> int:
    """Return the size of u16 gaps, where 65535 continues, and values."""
    places = np.flatnonzero(parent != child)
    gaps = np.diff(places, prepend=-1) - 1
    long = np.repeat(np.full(len(gaps), 65535), gaps // 65535)
    return compress(np.concatenate((long, gaps % 65535)).astype(np.uint16), child[places])


def measure_indices(parent: Bits, child: Bits) -> int:
    """Return the size of int32 indices and values."""
    places = np.flatnonzero(parent != child)
    return compress(places.astype(np.int32), child[places])


CODECS: dict[str, Callable[[Bits, Bits], int]] = {
    "covey": measure_covey,
    "xor": lambda parent, child: compress(parent ^ child),
    "u16": measure_gaps,
    "int32": measure_indices,
}


def compute_bound(before: Bits, after: Bits) -> float:
    """Return the bytes of the entropy of all changes, given the exponents of the parent."""
    ranks = np.array([int(get_rank(np.int64(bits))) for bits in range(1 << 16)])
    exponents, has_changed, bits = before >> 7 & 255, before != after, 0.0
    for kind in np.unique(exponents[has_changed]):
        of_kind = exponents == kind
        n, moved = int(of_kind.sum()), of_kind & has_changed
        m = int(moved.sum())
        bits += sum(count * np.log2(n / count) for count in (m, n - m) if count)
        counts = np.unique(ranks[after[moved]] - ranks[before[moved]], return_counts=True)[1]
        bits += float((counts * np.log2(m / counts)).sum())
    return bits / 8


def measure_speed(parent: Bits, child: Bits, runs: int) -> list[Measurement]:
    """Measure encoding and decoding of a large image against a copy of its bytes, in CPU time of this process."""
    times = -(-SPEED_BYTES // parent.nbytes)
    before, after = np.tile(parent, times), np.tile(child, times)
    data, found = encode(before, after), np.zeros_like(after)
    actions: dict[str, Callable[[], object]] = {
        "memcpy": lambda: np.copyto(found, after),
        "encode": lambda: encode(before, after),
        "decode": lambda: decode(before, data, found),
    }
    best = dict.fromkeys(actions, float("inf"))
    for _ in range(runs):
        for name, act in actions.items():
            started = time.process_time()
            act()
            best[name] = min(best[name], time.process_time() - started)
    rates = {name: before.nbytes / seconds / 1e9 for name, seconds in best.items()}
    return [
        *(
            Measurement(name=f"{name}_over_memcpy", value=rates[name] / rates["memcpy"], unit="ratio", n=runs)
            for name in ("encode", "decode")
        ),
        *(Measurement(name=f"{name}_gb_per_s", value=rate, unit="GB/s", n=runs) for name, rate in rates.items()),
    ]


def load(path: Path) -> Bits:
    """Return all saved tensors as one array, sorted by name as in a policy record."""
    saved = np.load(path)
    return np.concatenate([saved[name].ravel() for name in sorted(saved.files)])


def build_measurements(rate: float, folder: Path) -> list[Measurement]:
    """Build the ratios of one learning rate."""
    suffix, found = f"lr{rate:.0e}".replace("e-0", "e-"), list[Measurement]()
    for span, (first, last) in SPANS.items():
        parent, child = load(folder / f"{first}.npz"), load(folder / f"{last}.npz")
        sizes = {name: code(parent, child) for name, code in CODECS.items()}
        values = {
            "ratio": parent.nbytes / sizes["covey"],
            **{f"ratio_vs_{name}": sizes[name] / sizes["covey"] for name in CODECS if name != "covey"},
            "over_bound": sizes["covey"] / compute_bound(parent, child),
            "changed": np.count_nonzero(parent != child) / len(parent),
        }
        found += [
            Measurement(
                name=f"{name}.{span}.{suffix}",
                value=value,
                unit="ratio",
                n=len(parent),
                peer=name.removeprefix("ratio_vs_") + " with zstd-1" if "_vs_" in name else "",
            )
            for name, value in values.items()
        ]
    return found


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="make bench NAME=delta", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--runs", type=int, default=5, help="runs of encoding and decoding; default: 5")
    options = parser.parse_args(arguments)
    measurements, folder = list[Measurement](), OUTPUT / "delta"
    for rate in RATES:
        isolated_process.call("benchmarks.network.policy_delta:take_steps", rate, str(folder / f"{rate:.0e}"))
        measurements += build_measurements(rate, folder / f"{rate:.0e}")
    parent, child = (load(folder / "1e-06" / f"{step}.npz") for step in SPANS["later"])
    measurements += measure_speed(parent, child, options.runs)
    measurements = set_bars(measurements, BARS)
    return finish("delta", measurements, find_misses(measurements), arguments)
