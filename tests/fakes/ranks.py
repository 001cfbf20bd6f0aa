"""One of two ranks on loopback. `main` runs in its own process and writes its results to the folder.

Rank 0 leads as the trainer does, through `Ranks.together`; rank 1 follows its commands.
"""

import json
import os
import resource
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp._fully_shard import _fsdp_collectives, _fsdp_param_group
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from covey.errors import OperatorError
from covey.model.policy_files import DTYPES, load_model, load_tokenizer, save_policy
from covey.model.tiny import tiny_folder
from covey.protocol.ids import Step
from tests.fakes.samples import DECOUPLED, OPTIMISER, SHAPE, build_batch, build_samples, change, forget_old
from trainer.algorithm.forward import recompute_activations, share_samples
from trainer.algorithm.learner import Learner
from trainer.algorithm.lm_head import compute_head
from trainer.algorithm.logprobs import Recomputer
from trainer.algorithm.lora import add_adapters, fill_adapters
from trainer.checkpoints import tensor_files
from trainer.checkpoints.checkpoint import Checkpoints, StepFolders, export_policy
from trainer.checkpoints.saver import Saver
from trainer.distributed.commands import RankCommand, Verb
from trainer.distributed.loading import build_empty_model, load_shards
from trainer.distributed.ranks import ALONE, Ranks
from trainer.distributed.sharding import make_whole
from trainer.worker_rank import carry_out, do_share

RANKS, ROWS = 2, 6
SIZES = (7, 5, 1)
"""Number of samples of each batch of a run. With one sample, one of the ranks has none."""
OBJECTIVE = change(DECOUPLED, beta=2e-5)
"""Objective whose references are far enough away that the divergence weighs as much as the other terms."""
MASKED = change(OBJECTIVE, loss_type="grpo", mask="kpop", mask_threshold=2e-2)
"""Objective that averages over completions, and some of whose tokens are masked and leave the denominator."""
CASES = ("tied", "untied", "lean", "rough", "adapted", "rough-adapted", "offloaded")
"""Models of the tests.

A Qwen2 whose head is its embedding, a Llama whose head is separate, the first with recomputed activations and a masked
objective, and with bfloat16 arithmetic, the second with adapters, the first with bfloat16 arithmetic and adapters, and
the second with masters, moments and activations in main memory.
"""
SMOOTH = replace(OPTIMISER, clip=0.2, epsilon=1e-3)
"""Optimiser settings that clip, and under which tiny gradients cause only tiny updates."""


def write_base(folder: Path) -> None:
    """Write the model of the case "untied"."""
    save_policy(build_untied(), load_tokenizer(tiny_folder()), folder / "untied-base", "float32")


def find_base(case: str, folder: Path) -> Path:
    """Return the folder of the model of a case. `write_base` has written to `folder`."""
    return folder / "untied-base" if case in ("untied", "adapted", "offloaded") else tiny_folder()


def build_untied() -> PreTrainedModel:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=259, hidden_size=33, intermediate_size=50, num_hidden_layers=2, num_attention_heads=3, head_dim=16,
        num_key_value_heads=1, max_position_embeddings=256, tie_word_embeddings=False,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    model.train(False)
    return model  # no dimension is even: parts differ in size


def build_case(case: str, folder: Path, ranks: Ranks = ALONE, **changes: Any) -> Learner:
    source = find_base(case, folder)
    model = build_empty_model(source, "float32") if ranks.is_shared else load_model(source, "float32")
    if case == "lean":
        recompute_activations(model)
    is_offloaded = case == "offloaded"
    optimiser, changes = replace(SMOOTH, offload=is_offloaded), {"activation_offload": is_offloaded} | changes
    shape = replace(SHAPE, compute_dtype="bfloat16" if case.startswith("rough") else "float32", **changes)
    if case.endswith("adapted"):
        add_adapters(model, rank=4, alpha=64.0, targets=(), dtype=DTYPES[shape.compute_dtype])

    def fill(model: PreTrainedModel) -> None:
        if ranks.is_shared:
            load_shards(model, source)
        if case.endswith("adapted"):
            fill_adapters(model, seed=3)

    if not ranks.is_shared:
        fill(model)
    objective = MASKED if case == "lean" else OBJECTIVE
    return Learner(model, optimiser=optimiser, objective=objective, shape=shape, ranks=ranks, fill=fill)


@torch.no_grad()
def spoil(model: PreTrainedModel) -> None:
    """Change all weights."""
    for parameter in model.parameters():
        parameter.mul_(1.5)


def build_recomputer(ranks: Ranks = ALONE) -> Recomputer:
    model = build_empty_model(tiny_folder(), "float32") if ranks.is_shared else load_model(tiny_folder(), "float32")
    return Recomputer(model, SHAPE, ranks)


def run(learner: Learner, checkpoints: Checkpoints, exports: StepFolders) -> list[dict[str, float]]:
    """Do a step of two updates, a checkpoint, a step of one update, and a policy. Return the metrics of each update."""
    tokenizer = load_tokenizer(tiny_folder())
    said = learner.learn([build_batch(build_samples(size)) for size in SIZES[:-1]])
    checkpoints.save(learner, Step(1), {})
    said += learner.learn([build_batch(build_samples(SIZES[-1]))])
    export_policy(exports, learner, tokenizer, Step(2))
    return [asdict(each) for each in said]


def look_back(learner: Learner) -> list[dict[str, float]]:
    """Do a step of two updates whose old policy is the one before the step. Return the metrics of each."""
    return [asdict(each) for each in learner.learn([forget_old(build_batch(build_samples(n))) for n in SIZES[:-1]])]


def resume(learner: Learner, checkpoints: Checkpoints) -> None:
    """Resume from the checkpoint, and go to the end of `run`."""
    assert checkpoints.restore(learner) is not None
    learner.learn([build_batch(build_samples(SIZES[-1]))])


def gather(learner: Learner) -> dict[str, torch.Tensor]:
    """Gather the master weights, and the gradients in AdamW's first moment. All ranks must call this."""
    moments = learner.get_optimizer_tensors()
    tensors: dict[str, torch.Tensor] = {}
    for name, parameter in learner.model.named_parameters():
        if not parameter.requires_grad:
            continue
        gradient = make_whole(moments[f"{name}.exp_avg"]) / (1 - SMOOTH.betas[0])
        tensors |= {name: make_whole(parameter.detach()), f"{name}.grad": gradient}
    return {name: tensor.contiguous() for name, tensor in tensors.items()}


def gather_start(learner: Learner) -> dict[str, torch.Tensor]:
    """Gather the weights and buffers of a learner that has not learned yet. All ranks must call this."""
    named = dict(learner.model.named_parameters()) | dict(learner.model.named_buffers())
    return {name: make_whole(tensor.detach()).clone() for name, tensor in named.items()}


def draw_head() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Draw hidden states, a weight and targets, which are the same on every rank."""
    generator = torch.Generator().manual_seed(0)
    targets = torch.randint(0, 30, (ROWS,), generator=generator)
    return torch.randn(ROWS, 8, generator=generator), torch.randn(30, 8, generator=generator), targets


def compute_sharded_head(rank: int) -> torch.Tensor:
    """Return the gathered gradient of a sharded weight, of which each rank has every second row."""
    hidden, weight, targets = draw_head()
    shards = distribute_tensor(weight, init_device_mesh("cpu", (RANKS,)), [Shard(0)]).requires_grad_()
    logprobs, entropy = compute_head(hidden[rank::RANKS], shards, targets[rank::RANKS], dtype=torch.float32)
    torch.autograd.backward((logprobs + entropy).sum())
    gradient = shards.grad
    assert isinstance(gradient, DTensor)
    return gradient.full_tensor()


def count_reductions(folder: Path, ranks: Ranks, *, sync_each_batch: bool) -> dict[str, Any]:
    """Return how often units add up their gradients in an update of several micro-batches, and what it changes."""
    learner = build_case("untied", folder, ranks, micro_batch_size=1, sync_each_batch=sync_each_batch)
    samples, calls, reduce = build_samples(SIZES[0]), list[int](), _fsdp_collectives.foreach_reduce

    def count(*arguments: Any, **options: Any) -> Any:
        calls.append(1)
        return reduce(*arguments, **options)

    with patch.object(_fsdp_param_group, "foreach_reduce", count):
        metrics = learner.update(build_batch(samples))
    micro_batches = len(share_samples(learner.model, samples, replace(SHAPE, micro_batch_size=1)))
    return {"calls": len(calls), "micro_batches": micro_batches, "gradient_norm": metrics.gradient_norm}


@contextmanager
def led(ranks: Ranks, learner: Learner, recomputer: Recomputer) -> Iterator[bool]:
    """Yield True on rank 0, whose commands rank 1 follows meanwhile."""
    yield ranks.rank == 0
    if ranks.rank == 0:
        with ranks.together(RankCommand(verb=Verb.STOP)):
            return
    carry_out(ranks, learner, recomputer)


@contextmanager
def watch_hashing() -> Iterator[list[str]]:
    """Yield the names of the checkpoint's files that this process hashes meanwhile."""
    hashed, compute = list[str](), tensor_files._compute_digest

    def note(path: Path) -> str:
        hashed.append(path.name)
        return compute(path)

    with patch.object(tensor_files, "_compute_digest", note):
        yield hashed


def main(rank: int, folder: Path) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=RANKS,
        timeout=timedelta(seconds=600),
    )
    ranks = Ranks(rank=rank, mesh=init_device_mesh("cpu", (RANKS,)), writers=dist.new_group(backend="gloo"))
    tensors: dict[str, torch.Tensor] = {"head": compute_sharded_head(rank)}
    said: dict[str, object] = {}
    recomputer = build_recomputer(ranks)
    for case in CASES:
        learner = build_case(case, folder, ranks)
        tensors |= {f"{case}/start/{name}": tensor for name, tensor in gather_start(learner).items()}
        with watch_hashing() as hashed, led(ranks, learner, recomputer) as is_leader:
            said["hashed"] = hashed
            if is_leader:
                checkpoints = Checkpoints(folder / case / "checkpoints", keep=1)
                said[case] = run(learner, checkpoints, StepFolders(folder / case / "exports"))
        tensors |= {f"{case}/{name}": tensor for name, tensor in gather(learner).items()}
        resumed = build_case(case, folder, ranks)
        with led(ranks, resumed, recomputer) as is_leader:
            if is_leader:
                resume(resumed, checkpoints)
        tensors |= {f"{case}/resumed/{name}": tensor for name, tensor in gather(resumed).items()}
    with led(ranks, learner, recomputer) as is_leader:
        if is_leader:
            found = recomputer.compute(write_policy(folder / "policy"), build_samples(3))
            tensors["recomputed"] = torch.tensor([value for each in found for value in each])
    looking = build_case(CASES[0], folder, ranks)
    with led(ranks, looking, recomputer) as is_leader:
        if is_leader:
            said["back"] = look_back(looking)
    said["reductions"] = [count_reductions(folder, ranks, sync_each_batch=each) for each in (False, True)]
    said["full"] = fill_disk(rank, resumed, folder / CASES[0])
    save_file(tensors, folder / f"{rank}.safetensors")
    (folder / f"{rank}.json").write_text(json.dumps(said))
    dist.destroy_process_group()


def fill_disk(rank: int, learner: Learner, folder: Path) -> str:
    """Return the error of saving on this rank when rank 1 has no disk space for its part."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        if rank == 0:
            Checkpoints(folder / "checkpoints", keep=1).save(learner, Step(2), {})
            return "saved"
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
        with closing(Saver()) as saver:
            do_share(learner.ranks.receive(), learner, build_recomputer(), saver)
    except OperatorError as error:
        return error.code
    except SafetensorError as error:
        return str(error)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    return "saved"


def write_policy(folder: Path) -> Path:
    """Write a policy whose weights differ from those that the recomputers start with."""
    if not folder.exists():
        model = load_model(tiny_folder(), "float32")
        spoil(model)
        save_policy(model, load_tokenizer(tiny_folder()), folder, "float32")
    return folder
