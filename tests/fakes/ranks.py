"""One of two ranks on loopback. `main` runs in its own process and writes its results to the folder.

Rank 0 leads as the trainer does, through `Ranks.together`; rank 1 follows its commands.
"""

import errno
import json
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from covey.errors import OperatorError
from covey.model.policy_files import load_model, load_tokenizer, save_policy
from covey.model.tiny import tiny_folder
from covey.protocol.ids import Step
from tests.fakes.samples import DECOUPLED, OPTIMISER, SHAPE, build_batch, build_samples, forget_old
from trainer.algorithm.forward import recompute_activations
from trainer.algorithm.learner import Learner
from trainer.algorithm.lm_head import compute_head
from trainer.algorithm.logprobs import Recomputer
from trainer.checkpoints.checkpoint import Checkpoints, StepFolders, export_policy
from trainer.distributed.commands import RankCommand, Verb
from trainer.distributed.ranks import ALONE, Ranks
from trainer.distributed.sharding import make_whole
from trainer.worker_rank import do_share

RANKS, ROWS = 2, 6
SIZES = (7, 5, 1)
"""Number of samples of each batch of a run. With one sample, one of the ranks has none."""
OBJECTIVE = replace(DECOUPLED, kl=2e-5)
"""Objective whose references are far enough away that the divergence weighs as much as the other terms."""
CASES = ("tied", "untied", "lean", "rough")
"""Models of the tests.

A Qwen2 whose head is its embedding, a Llama whose head is separate, and the first with recomputed activations and with
bfloat16 arithmetic.
"""
SMOOTH = replace(OPTIMISER, clip=0.2, epsilon=1e-3)
"""Optimiser settings that clip, and under which tiny gradients cause only tiny updates."""


def build_base(case: str) -> PreTrainedModel:
    if case != "untied":
        return load_model(tiny_folder(), "float32")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=259, hidden_size=33, intermediate_size=50, num_hidden_layers=2, num_attention_heads=3, head_dim=16,
        num_key_value_heads=1, max_position_embeddings=256, tie_word_embeddings=False, attn_implementation="sdpa",
    )  # fmt: skip
    return LlamaForCausalLM(config).train(False)  # no dimension is even: parts differ in size


def build_case(case: str, ranks: Ranks = ALONE) -> Learner:
    model = build_base(case)
    if ranks.rank > 0:
        spoil(model)
    if case == "lean":
        recompute_activations(model)
    shape = replace(SHAPE, compute_dtype="bfloat16" if case == "rough" else "float32")
    return Learner(model, optimiser=SMOOTH, objective=OBJECTIVE, shape=shape, ranks=ranks)


@torch.no_grad()
def spoil(model: PreTrainedModel) -> None:
    """Change the weights, so that only those that rank 0 starts with can count."""
    for parameter in model.parameters():
        parameter.mul_(1.5)


def build_recomputer(ranks: Ranks = ALONE) -> Recomputer:
    return Recomputer(load_model(tiny_folder(), "float32"), SHAPE, ranks)


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
    tensors = {}
    for name, parameter in learner.model.named_parameters():
        gradient = make_whole(moments[f"{name}.exp_avg"]) / (1 - SMOOTH.betas[0])
        tensors |= {name: make_whole(parameter.detach()), f"{name}.grad": gradient}
    return {name: tensor.contiguous() for name, tensor in tensors.items()}


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


@contextmanager
def led(ranks: Ranks, learner: Learner, recomputer: Recomputer) -> Iterator[bool]:
    """Yield True on rank 0, whose commands rank 1 follows meanwhile."""
    yield ranks.rank == 0
    if ranks.rank == 0:
        with ranks.together(RankCommand(verb=Verb.STOP)):
            return
    while (order := ranks.receive()).verb is not Verb.STOP:
        do_share(order, learner, recomputer)


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
    ranks = Ranks(rank=rank, mesh=init_device_mesh("cpu", (RANKS,)))
    tensors: dict[str, torch.Tensor] = {"head": compute_sharded_head(rank)}
    said: dict[str, object] = {}
    recomputer = build_recomputer(ranks)
    for case in CASES:
        learner = build_case(case, ranks)
        with led(ranks, learner, recomputer) as is_leader:
            if is_leader:
                checkpoints = Checkpoints(folder / case / "checkpoints", keep=1)
                said[case] = run(learner, checkpoints, StepFolders(folder / case / "exports"))
        tensors |= {f"{case}/{name}": tensor for name, tensor in gather(learner).items()}
        resumed = build_case(case, ranks)
        with led(ranks, resumed, recomputer) as is_leader:
            if is_leader:
                resume(resumed, checkpoints)
        tensors |= {f"{case}/resumed/{name}": tensor for name, tensor in gather(resumed).items()}
    with led(ranks, learner, recomputer) as is_leader:
        if is_leader:
            found = recomputer.compute(write_policy(folder / "policy"), build_samples(3))
            tensors["recomputed"] = torch.tensor([value for each in found for value in each])
    looking = build_case(CASES[0], ranks)
    with led(ranks, looking, recomputer) as is_leader:
        if is_leader:
            said["back"] = look_back(looking)
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
        do_share(learner.ranks.receive(), learner, build_recomputer())
    except OperatorError as error:
        return error.code
    except OSError as error:
        return errno.errorcode[error.errno]
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
