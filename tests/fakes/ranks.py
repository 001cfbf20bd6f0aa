"""One of two ranks on loopback: `python -m tests.fakes.ranks <rank> <folder>` writes what it found to the folder."""

import json
import sys
from dataclasses import asdict, replace
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from covey.model.files import load_model
from covey.model.tiny import tiny_folder
from tests.fakes.samples import DECOUPLED, SHAPE, build_batch, build_learner, build_samples
from trainer.forward import compute_logprobs
from trainer.head import compute_head

RANKS, ROWS = 2, 6
SIZES = (7, 1)
"""Samples of a batch; of one sample, a rank has none."""
OBJECTIVE = replace(DECOUPLED, kl=0.0)


def draw_head() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Hidden states, weight and targets; the same on every rank."""
    generator = torch.Generator().manual_seed(0)
    targets = torch.randint(0, 30, (ROWS,), generator=generator)
    return torch.randn(ROWS, 8, generator=generator), torch.randn(30, 8, generator=generator), targets


def compute_sharded_head(rank: int) -> torch.Tensor:
    """Gradient of a sharded weight, gathered; each rank has every second row."""
    hidden, weight, targets = draw_head()
    shards = distribute_tensor(weight, init_device_mesh("cpu", (RANKS,)), [Shard(0)]).requires_grad_()
    logprobs, entropy = compute_head(hidden[rank::RANKS], shards, targets[rank::RANKS], dtype=torch.float32)
    torch.autograd.backward((logprobs + entropy).sum())
    gradient = shards.grad
    assert isinstance(gradient, DTensor)
    return gradient.full_tensor()


def main(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=RANKS,
        timeout=timedelta(seconds=60),
    )
    base = load_model(tiny_folder(), "float32")
    tensors, metrics = {"head": compute_sharded_head(rank)}, {}
    for size in SIZES:
        learner, samples = build_learner(base, objective=OBJECTIVE), build_samples(size)
        found = compute_logprobs(learner.model, samples, SHAPE)
        tensors[f"{size}/logprobs"] = torch.tensor([value for each in found for value in each])
        metrics[str(size)] = asdict(learner.update(build_batch(samples)))
        for name, parameter in learner.model.named_parameters():
            assert parameter.grad is not None
            tensors |= {f"{size}/{name}": parameter.detach(), f"{size}/{name}.grad": parameter.grad}
    save_file(tensors, folder / f"{rank}.safetensors")
    (folder / f"{rank}.json").write_text(json.dumps(metrics))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
