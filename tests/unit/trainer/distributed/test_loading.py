"""A model on the meta device gets the buffers, weights and generation configuration that `load_model` gives."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from covey.errors import OperatorError
from covey.model.policy_files import get_head, load_model, load_tokenizer, save_configuration
from covey.model.tiny import tiny_folder
from trainer.distributed.loading import build_empty_model, copy_shard, load_shards, materialize

pytestmark = pytest.mark.unit


@pytest.fixture(scope="module", autouse=True)
def _group() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def load(source: Path, dtype: str = "float32") -> PreTrainedModel:
    model = build_empty_model(source, dtype)
    assert all(each.is_meta for each in (*model.parameters(), *model.buffers()))
    materialize(model, torch.device("cpu"))
    load_shards(model, source)
    return model


def assert_equal(ours: PreTrainedModel, theirs: PreTrainedModel) -> None:
    assert type(ours) is type(theirs)
    assert not ours.training
    for read in (torch.nn.Module.named_parameters, torch.nn.Module.named_buffers):
        found, expected = dict(read(ours)), dict(read(theirs))
        assert found.keys() == expected.keys()
        for name, tensor in expected.items():
            assert found[name].dtype is tensor.dtype
            assert torch.equal(found[name], tensor), name


@pytest.fixture
def untied(tmp_path: Path) -> Path:
    """Return a folder with a model with a rotary scaling, a separate head and several files."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=40, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        rope_parameters={"rope_type": "linear", "factor": 4.0, "rope_theta": 5000.0},
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(tmp_path / "untied", max_shard_size="20KB")
    return tmp_path / "untied"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_load_shards__tied_head__is_the_embedding_and_equals_load_model(dtype: str) -> None:
    model = load(tiny_folder(), dtype)
    assert get_head(model).weight is model.get_input_embeddings().weight
    assert_equal(model, load_model(tiny_folder(), dtype))


def test_load_shards__several_files_and_scaled_positions__equals_load_model(untied: Path) -> None:
    assert len(list(untied.glob("*.safetensors"))) > 2
    model = load(untied)
    assert get_head(model).weight is not model.get_input_embeddings().weight
    assert_equal(model, load_model(untied, "float32"))


def test_build_empty_model__generation_configuration__is_saved_as_that_of_a_loaded_model(
    untied: Path, tmp_path: Path
) -> None:
    tokenizer = load_tokenizer(tiny_folder())
    for n, eos in enumerate((None, [1, 7])):
        (untied / "generation_config.json").unlink(missing_ok=True)
        if eos is not None:
            GenerationConfig(eos_token_id=eos, do_sample=True, temperature=0.6).save_pretrained(untied)
        folders = [tmp_path / f"{n}-{kind}" for kind in ("empty", "loaded")]
        for folder, model in zip(folders, (load(untied), load_model(untied, "float32")), strict=True):
            save_configuration(model, tokenizer, folder, "bfloat16")
        ours, theirs = ({path.name: path.read_bytes() for path in folder.iterdir()} for folder in folders)
        assert ours == theirs
        assert ("generation_config.json" in ours) is (eos is not None)


def damage(folder: Path, change: str) -> None:
    path = next(path for path in sorted(folder.glob("*.safetensors")) if "model.norm.weight" in load_file(path))
    tensors = load_file(path)
    norm = tensors.pop("model.norm.weight")
    if change == "shape":
        tensors["model.norm.weight"] = norm[:-1].clone()
    save_file(tensors, path)
    if change == "garbage":
        path.write_bytes(b"{}")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("missing", r"weights are missing: \['model.norm.weight'\]"),
        ("shape", r"model.norm.weight has the shape \[31\] instead of \[32\]"),
        ("garbage", "model_unavailable"),
    ],
)
def test_load_shards__damaged_files__are_refused(untied: Path, change: str, reason: str) -> None:
    damage(untied, change)
    with pytest.raises(OperatorError, match=reason):
        load(untied)


def test_load_shards__no_safetensors__is_refused(untied: Path) -> None:
    for path in untied.glob("*.safetensors*"):
        path.unlink()
    with pytest.raises(OperatorError, match=r"neither model.safetensors nor model.safetensors.index.json"):
        load(untied)


def test_load_shards__other_weights_than_rank_0__are_refused(untied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def receive(tensor: torch.Tensor, source: int) -> None:
        tensor.add_(1)

    monkeypatch.setattr(dist, "broadcast", receive)
    with pytest.raises(OperatorError, match=r"other_weights: .* differ from those of rank 0"):
        load(untied)


def test_copy_shard__whole_tensor__sets_this_ranks_part() -> None:
    whole = torch.arange(6.0).view(3, 2)
    shards = distribute_tensor(torch.zeros(3, 2), init_device_mesh("cpu", (1,)), [Shard(0)])
    copy_shard(shards, whole)
    assert isinstance(shards, DTensor)
    assert torch.equal(shards.full_tensor(), whole)
