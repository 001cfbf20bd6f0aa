"""One of two ranks that load a model of 230 MB in float32, and measure the memory that this takes."""

import hashlib
import json
import os
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from covey.model.policy_files import load_model
from tests.fakes.samples import SHAPE
from trainer.algorithm.forward import Predictor
from trainer.distributed.loading import build_empty_model, load_shards
from trainer.distributed.sharding import make_whole, shard

RANKS = 2


def write_model(folder: Path) -> int:
    """Write a random model in files of 20 MB. Return the size of its weights in float32, in bytes."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=8192, hidden_size=512, intermediate_size=2048, num_hidden_layers=12, num_attention_heads=8,
        max_position_embeddings=256, tie_word_embeddings=False, dtype="bfloat16",
    )  # fmt: skip
    model: PreTrainedModel = LlamaForCausalLM._from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(folder, max_shard_size="20MB")
    return 4 * model.num_parameters()


def compute_digest(model: PreTrainedModel) -> str:
    """Return the SHA-256 of all weights and buffers. All ranks must call this."""
    digest = hashlib.sha256()
    for name, tensor in (dict(model.named_parameters()) | dict(model.named_buffers())).items():
        digest.update(name.encode() + make_whole(tensor.detach()).contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def compute_whole_digest(folder: Path) -> str:
    """Return the digest of the model that one process loads whole."""
    return compute_digest(load_model(folder, "float32"))


def main(rank: int, folder: Path, source: Path) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    method = f"file://{folder}/rendezvous"
    dist.init_process_group("gloo", init_method=method, rank=rank, world_size=RANKS, timeout=timedelta(seconds=120))
    mesh = init_device_mesh("cpu", (RANKS,))
    before = read_memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts again
    predictor = Predictor(build_empty_model(source, "float32"), SHAPE)
    shard(predictor, mesh, dtype=torch.float32)
    load_shards(predictor.model, source)
    peak = read_memory("VmHWM") - before
    found = {"peak": peak, "digest": compute_digest(predictor.model)}
    (folder / f"{rank}.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


def read_memory(name: str) -> int:
    """Return a value of this process's status in bytes."""
    (line,) = (each for each in Path("/proc/self/status").read_text().splitlines() if each.startswith(f"{name}:"))
    return int(line.split()[1]) << 10
