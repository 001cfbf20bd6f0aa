"""Weights are loaded strictly, read once and checked before anything changes, on a CPU and by way of a GPU's memory."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from covey.errors import ProtocolError, TransientError
from covey.model import weight_files
from covey.model.policy_files import get_head, get_weights, load_model, save_policy
from covey.model.tiny import build_model, build_tokenizer
from covey.model.weight_files import load_weights, read_weights, require_weights, stage_weights
from covey.protocol.policy_record import WEIGHTS_FILE
from tests.fakes.untied import build_untied
from tests.fakes.weights import save_weights

pytestmark = pytest.mark.unit


@pytest.fixture(params=["main memory", "a GPU"], autouse=True)
def _memory(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stage the policy in main memory, or in what takes the place of a GPU's memory."""
    if request.param == "a GPU":
        monkeypatch.setattr(weight_files, "_has_room", lambda device, size: True)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_policy(build_model(3), build_tokenizer(), tmp_path / "policy", "bfloat16")
    return tmp_path / "policy"


def test_load_weights__another_policy__replaces_all_of_it_in_place(folder: Path) -> None:
    model = build_model(4)
    pointers = {name: each.data_ptr() for name, each in get_weights(model).items()}
    load_weights(get_weights(model), folder / WEIGHTS_FILE, "bfloat16")
    expected = load_model(folder, "float32")
    tokens = torch.tensor([[2, 50, 60, 70]])
    assert torch.equal(model.eval()(tokens).logits, expected(tokens).logits)
    assert {name: each.data_ptr() for name, each in get_weights(model).items()} == pointers
    assert get_head(model).weight is model.get_input_embeddings().weight


def test_load_weights__untied_model__replaces_the_head_too(tmp_path: Path) -> None:
    source, target = build_untied(), build_untied()
    with torch.no_grad():
        source.lm_head.weight.mul_(2)
    save_weights(source, tmp_path / "w", torch.float32)
    load_weights(get_weights(target), tmp_path / "w")
    assert torch.equal(target.lm_head.weight, source.lm_head.weight)
    assert not torch.equal(target.lm_head.weight, target.model.embed_tokens.weight)


def change_name(tensors: dict[str, torch.Tensor]) -> None:
    tensors["model.norm.wait"] = tensors.pop("model.norm.weight")


def change_missing(tensors: dict[str, torch.Tensor]) -> None:
    del tensors["model.norm.weight"]


def change_surplus(tensors: dict[str, torch.Tensor]) -> None:
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()


def change_shape(tensors: dict[str, torch.Tensor]) -> None:
    tensors["model.norm.weight"] = torch.ones(1, 96, dtype=torch.bfloat16)


def change_one_dtype(tensors: dict[str, torch.Tensor]) -> None:
    tensors["model.norm.weight"] = torch.ones(96)


def change_all_dtypes(tensors: dict[str, torch.Tensor]) -> None:
    tensors.update({name: each.float() for name, each in tensors.items()})


def change_to_integers(tensors: dict[str, torch.Tensor]) -> None:
    tensors.update({name: each.to(torch.int16) for name, each in tensors.items()})


def change_to_nan(tensors: dict[str, torch.Tensor]) -> None:
    tensors["model.norm.weight"][5] = float("nan")


CHANGES = [
    change_name,
    change_missing,
    change_surplus,
    change_shape,
    change_one_dtype,
    change_to_integers,
    change_to_nan,
]


@pytest.mark.parametrize("change", [*CHANGES, change_all_dtypes])
def test_load_weights__file_that_does_not_fit__is_refused_and_changes_nothing(folder: Path, change) -> None:  # type: ignore[no-untyped-def]
    tensors = load_file(folder / WEIGHTS_FILE)
    change(tensors)
    save_file(tensors, folder / WEIGHTS_FILE)
    model = build_model(4)
    before = {name: each.detach().clone() for name, each in get_weights(model).items()}
    with pytest.raises(ProtocolError) as caught:
        load_weights(get_weights(model), folder / WEIGHTS_FILE, "bfloat16")
    assert caught.value.code == "policy_mismatch"
    assert all(torch.equal(each, before[name]) for name, each in get_weights(model).items())


@pytest.mark.parametrize("content", [b"", b"\xff" * 64, b"\x80\x04." * 30])
def test_load_weights__not_a_safetensors_file__is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "w").write_bytes(content)
    with pytest.raises(ProtocolError, match="not a readable safetensors"):
        load_weights(get_weights(build_model(4)), tmp_path / "w")


def test_load_weights__truncated_or_missing_file__is_refused(folder: Path) -> None:
    path = folder / WEIGHTS_FILE
    path.write_bytes(path.read_bytes()[:-2])
    for file in (path, folder / "nothing"):
        with pytest.raises(ProtocolError, match="not a readable safetensors"):
            load_weights(get_weights(build_model(4)), file)


def test_stage_weights__until_it_is_applied__changes_nothing(folder: Path) -> None:
    weights = get_weights(build_model(4))
    before = {name: each.detach().clone() for name, each in weights.items()}
    staged = stage_weights(weights, folder / WEIGHTS_FILE)
    assert all(torch.equal(each, before[name]) for name, each in weights.items())
    staged.apply()
    stored = load_file(folder / WEIGHTS_FILE)
    assert all(torch.equal(each, stored[name].float()) for name, each in weights.items())


@pytest.mark.parametrize("names", [frozenset(), frozenset({"model.norm.weight", "model.embed_tokens.weight"})])
def test_stage_weights__some_names__reads_each_once_and_no_others(
    folder: Path, names: frozenset[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    weights, stored, whole, read = (
        get_weights(build_model(4)),
        load_file(folder / WEIGHTS_FILE),
        weight_files.safe_open,
        [],
    )
    before = {name: each.detach().clone() for name, each in weights.items()}

    @contextmanager
    def record(path: Path, **how: Any) -> Iterator[SimpleNamespace]:
        with whole(path, **how) as file:

            def get_tensor(name: str) -> torch.Tensor:
                read.append(name)
                return file.get_tensor(name)

            yield SimpleNamespace(keys=file.keys, get_slice=file.get_slice, get_tensor=get_tensor)

    monkeypatch.setattr(weight_files, "safe_open", record)
    stage_weights(weights, folder / WEIGHTS_FILE, names=names).apply()
    assert sorted(read) == sorted(names)
    for name, each in weights.items():
        assert torch.equal(each, stored[name].float() if name in names else before[name])


def test_stage_weights__disk_fails_at_the_last_tensor__changes_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights, whole = get_weights(build_model(4)), weight_files.safe_open
    before = {name: each.detach().clone() for name, each in weights.items()}

    @contextmanager
    def open_torn(path: Path, **how: Any) -> Iterator[SimpleNamespace]:
        with whole(path, **how) as file:

            def get_tensor(name: str) -> torch.Tensor:
                if name == list(weights)[-1]:
                    raise OSError("input/output error")
                return file.get_tensor(name)

            yield SimpleNamespace(keys=file.keys, get_slice=file.get_slice, get_tensor=get_tensor)

    monkeypatch.setattr(weight_files, "safe_open", open_torn)
    with pytest.raises(TransientError, match="input/output error"):
        load_weights(weights, folder / WEIGHTS_FILE)
    assert all(torch.equal(each, before[name]) for name, each in weights.items())


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_stage_weights__several_bad_tensors__names_the_first(folder: Path, value: float) -> None:
    tensors = load_file(folder / WEIGHTS_FILE)
    first, second = sorted(tensors)[2:4]
    for name in (first, second):
        tensors[name].view(-1)[-1] = value
    save_file(tensors, folder / WEIGHTS_FILE)
    with pytest.raises(ProtocolError, match=f'tensor "{first}" contains NaN or Inf'):
        stage_weights(get_weights(build_model(4)), folder / WEIGHTS_FILE)


def test_read_weights__a_policy__has_all_values_in_its_dtype(folder: Path) -> None:
    found, stored = read_weights(get_weights(build_model(4)), folder / WEIGHTS_FILE), load_file(folder / WEIGHTS_FILE)
    assert found.keys() == stored.keys()
    assert all(torch.equal(each, stored[name]) for name, each in found.items())
    assert {each.dtype for each in found.values()} == {torch.bfloat16}


def test_require_weights__names__limit_the_values_that_are_checked(folder: Path) -> None:
    tensors = load_file(folder / WEIGHTS_FILE)
    change_to_nan(tensors)
    save_file(tensors, folder / WEIGHTS_FILE)
    weights, path = get_weights(build_model(4)), folder / WEIGHTS_FILE
    require_weights(weights, path, names={"model.embed_tokens.weight"})
    for names in (None, {"model.norm.weight"}):
        with pytest.raises(ProtocolError, match="contains NaN or Inf"):
            require_weights(weights, path, names=names)
