"""Weights on disk: equal weights give equal bytes, loading is strict, and embeddings stay tied."""

import json
from pathlib import Path

import pytest
import torch
from huggingface_hub import constants
from safetensors.torch import load_file, save_file

from covey.errors import OperatorError, ProtocolError
from covey.model.policy_files import (
    describe_policy,
    get_head,
    get_weights,
    load_model,
    load_tokenizer,
    require_policy,
    save_policy,
)
from covey.model.tiny import build_model, build_tokenizer
from covey.protocol.policy_record import WEIGHTS_FILE
from tests.fakes.untied import build_untied

pytestmark = pytest.mark.unit


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_policy(build_model(3), build_tokenizer(), tmp_path / "policy", "bfloat16")
    return tmp_path / "policy"


def test_save_policy__equal_weights__are_equal_bytes(folder: Path, tmp_path: Path) -> None:
    save_policy(build_model(3), build_tokenizer(), tmp_path / "again", "bfloat16")
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["config.json", WEIGHTS_FILE, "tokenizer.json", "tokenizer_config.json"]
    assert all((folder / name).read_bytes() == (tmp_path / "again" / name).read_bytes() for name in names)


def test_save_policy__saved_loaded_and_saved__are_equal_bytes(folder: Path, tmp_path: Path) -> None:
    save_policy(load_model(folder, "float32"), load_tokenizer(folder), tmp_path / "again", "bfloat16")
    for path in folder.iterdir():
        assert path.read_bytes() == (tmp_path / "again" / path.name).read_bytes()


def test_save_policy__config__names_dtype_and_no_path(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    assert (config["dtype"], config["tie_word_embeddings"]) == ("bfloat16", True)
    assert str(folder.parent) not in (folder / "config.json").read_text()


def test_save_policy__model_in_memory__keeps_its_dtype(tmp_path: Path) -> None:
    model = build_model(3)
    save_policy(model, build_tokenizer(), tmp_path, "bfloat16")
    assert model.dtype == torch.float32
    assert model.config.dtype in (None, torch.float32)


def test_get_weights__tied_model__has_the_embedding_once() -> None:
    tied, untied = get_weights(build_model(0)), get_weights(build_untied())
    assert "model.embed_tokens.weight" in tied
    assert "lm_head.weight" not in tied
    assert {"model.embed_tokens.weight", "lm_head.weight"} <= set(untied)
    assert list(tied) == sorted(tied)
    assert sum(each.numel() for each in tied.values()) == 247_104


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_load_model__saved_policy__has_its_weights_in_the_given_dtype(folder: Path, dtype: str) -> None:
    model = load_model(folder, dtype)
    stored = load_file(folder / WEIGHTS_FILE)
    assert not model.training
    for name, tensor in get_weights(model).items():
        assert tensor.dtype == getattr(torch, dtype)
        assert torch.equal(tensor, stored[name].to(tensor.dtype))
    assert get_head(model).weight is model.get_input_embeddings().weight


def test_load_tokenizer__saved_policy__encodes_alike(folder: Path) -> None:
    # The text has a combining accent, which a normalizer would merge, and a token of the model's family that this
    # tokenizer does not have.
    text = "Spell e\u0301 ->  x12 <|endoftext|>\n"
    loaded = load_tokenizer(folder)
    assert loaded.encode(text) == build_tokenizer().encode(text)
    assert len(loaded) == 259
    assert (loaded.pad_token_id, loaded.eos_token_id, loaded.bos_token_id) == (0, 1, 2)


def test_require_policy__complete_folder__is_accepted_tied_or_not(folder: Path, tmp_path: Path) -> None:
    require_policy(folder)
    save_policy(build_untied(), build_tokenizer(), tmp_path / "untied", "float32")
    require_policy(tmp_path / "untied")


@pytest.mark.parametrize("change", [{"model.norm.wait": torch.ones(1)}, {"model.norm.weight": torch.ones(96) / 0}])
def test_require_policy__weights_that_do_not_fit__are_refused(folder: Path, change: dict[str, torch.Tensor]) -> None:
    changed = {name: each.to(torch.bfloat16) for name, each in change.items()}
    save_file(load_file(folder / WEIGHTS_FILE) | changed, folder / WEIGHTS_FILE)
    with pytest.raises(ProtocolError) as caught:
        require_policy(folder)
    assert caught.value.code == "policy_mismatch"


def test_require_policy__missing_weights_or_unknown_model_type__is_refused(folder: Path) -> None:
    (folder / WEIGHTS_FILE).unlink()
    with pytest.raises(ProtocolError, match="not a readable safetensors"):
        require_policy(folder)
    (folder / "config.json").write_text('{"model_type": "nothing"}')
    with pytest.raises(OperatorError) as caught:
        require_policy(folder)
    assert caught.value.code == "model_unavailable"


def test_describe_policy__weights_change__is_the_same_and_another_file_is_not(folder: Path) -> None:
    before = describe_policy(folder)
    assert sorted(before) == ["config.json", "tokenizer.json", "tokenizer_config.json"]
    (folder / WEIGHTS_FILE).write_bytes(b"other")
    assert describe_policy(folder) == before
    (folder / "tokenizer.json").write_text("{}")
    assert [name for name, digest in describe_policy(folder).items() if digest != before[name]] == ["tokenizer.json"]


def test_load_model__pickled_weights__are_not_loaded(folder: Path) -> None:
    torch.save(load_file(folder / WEIGHTS_FILE), folder / "pytorch_model.bin")
    (folder / WEIGHTS_FILE).unlink()
    with pytest.raises(OperatorError) as caught:
        load_model(folder, "float32")
    assert caught.value.code == "model_unavailable"


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("my-model", "the folder does not exist, and http://127.0.0.1:9 does not respond"),
        ("./no/such/folder", "Repo id must be in the form"),
    ],
)
def test_load_model__name_that_cannot_be_fetched__is_reported_at_once(
    monkeypatch: pytest.MonkeyPatch, name: str, word: str
) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(OperatorError, match=f"model_unavailable: the model {name} could not be loaded: {word}"):
        load_model(name, "float32")


def test_load_model__weights_missing__are_not_made_up(folder: Path) -> None:
    tensors = load_file(folder / WEIGHTS_FILE)
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, folder / WEIGHTS_FILE, metadata={"format": "pt"})
    with pytest.raises(OperatorError, match="up_proj"):
        load_model(folder, "float32")


def test_load_model__unknown_dtype__is_refused(folder: Path) -> None:
    with pytest.raises(OperatorError, match="float64"):
        load_model(folder, "float64")


def test_load_tokenizer__empty_folder__is_refused(tmp_path: Path) -> None:
    with pytest.raises(OperatorError):
        load_tokenizer(tmp_path)
