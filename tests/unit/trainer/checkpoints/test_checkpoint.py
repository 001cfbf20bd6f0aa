"""Folders are complete or absent, and a learner is restored exactly as it was."""

import copy
import shutil
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from covey.errors import OperatorError
from covey.model.policy_files import load_model, load_tokenizer
from covey.model.tiny import tiny_folder
from covey.protocol.ids import GroupId, RolloutId, Step, TaskId
from trainer.algorithm.forward import PackingConfig
from trainer.algorithm.learner import Learner, Optimiser
from trainer.algorithm.loss_settings import LossSettings
from trainer.checkpoints.checkpoint import Checkpoints, State, StepFolders, export_policy, load_state
from trainer.checkpoints.tensor_files import write_digests
from trainer.data.packing import PackedBatch
from trainer.data.samples import Batch, Sample

pytestmark = pytest.mark.unit
FILES = ["digests.json", "masters.safetensors", "optimizer.safetensors", "state.json"]


@pytest.fixture
def learner() -> Learner:
    return Learner(
        load_model(tiny_folder(), "float32"),
        optimiser=Optimiser(learning_rate=1e-3, betas=(0.9, 0.99), epsilon=1e-8, weight_decay=0.0, warm_up=0, clip=1.0),
        objective=LossSettings(),
        shape=PackingConfig(seq_len=64, micro_batch_size=8, compute_dtype="float32"),
    )


def teach(learner: Learner, token: int) -> None:
    sample = Sample(
        id=RolloutId(task=TaskId(0), group=GroupId(0), sibling=0), policy_version=Step(0), prompt=(2, 70),
        tokens=(token, 1), reward=1.0, advantage=1.0, old=(-5.0, -5.0),
    )  # fmt: skip
    learner.update(Batch(samples=(sample,), weights=(0.5,), tokens=2))


def test_restore__nothing_saved__is_none(learner: Learner, tmp_path: Path) -> None:
    assert Checkpoints(tmp_path, keep=2).restore(learner) is None


def test_restore__after_more_updates__restores_weights_and_moments(learner: Learner, tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    teach(learner, 71)
    checkpoints.save(learner, Step(1), {"loss": 0.5, "tokens": 2})
    weights = copy.deepcopy(learner.model.state_dict())
    moments = {name: tensor.clone() for name, tensor in learner.get_optimizer_tensors().items()}
    teach(learner, 72)
    assert Checkpoints(tmp_path, keep=2).restore(learner) == State(
        step=Step(1), updates=1, report={"loss": 0.5, "tokens": 2}
    )
    assert learner.updates == 1
    assert all(torch.equal(weights[name], tensor) for name, tensor in learner.model.state_dict().items())
    restored = learner.get_optimizer_tensors()
    assert restored.keys() == moments.keys()
    assert all(torch.equal(moments[name], restored[name]) for name in moments)


def test_restore__step_0__has_a_fresh_optimizer(learner: Learner, tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=1)
    checkpoints.save(learner, Step(0), {})
    teach(learner, 71)
    assert checkpoints.restore(learner) == State(step=Step(0), updates=0, report={})
    assert learner.get_optimizer_tensors() == {}


def test_save__more_than_kept__keeps_the_newest(learner: Learner, tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    for step in (8, 9, 10, 11):
        checkpoints.save(learner, Step(step), {})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["10", "11"]
    state = checkpoints.restore(learner)
    assert state is not None
    assert state.step == 11


def test_is_due__every_fourth_and_the_last__by_hand(tmp_path: Path) -> None:
    for last, expected in ((10, [0, 4, 8, 10]), (None, [0, 4, 8])):
        checkpoints = Checkpoints(tmp_path, keep=1, every=4, last=last)
        assert [step for step in range(11) if checkpoints.is_due(Step(step))] == expected


def add_parameter(learner: Learner, reached: Sequence[bool]) -> Learner:
    """Build a learner of the same model with one more parameter, and with one frozen parameter.

    Update i depends on the added parameter if `reached[i]`.
    """
    model, turns = copy.deepcopy(learner.model), iter(reached)
    model.extra = torch.nn.Parameter(torch.ones(3))
    model.get_input_embeddings().weight.requires_grad_(False)
    added = Learner(model, optimiser=learner._settings, objective=learner._objective, shape=learner._shape)
    predict = added._predictor.forward

    def reach(rows: PackedBatch) -> tuple[torch.Tensor, torch.Tensor]:
        logprobs, entropy = predict(rows)
        return (logprobs * model.extra.mean() if next(turns) else logprobs), entropy

    added._predictor.forward = reach  # type: ignore[method-assign]
    return added


@pytest.mark.parametrize("reached", [(False, False, False), (False, True, True), (True, False, True)])
def test_restore__parameters_without_gradient__continue_with_equal_bits(
    learner: Learner, tmp_path: Path, reached: tuple[bool, ...]
) -> None:
    checkpoints, straight, resumed = (
        Checkpoints(tmp_path, keep=1), add_parameter(learner, reached), add_parameter(learner, reached[2:]),
    )  # fmt: skip
    teach(straight, 71)
    teach(straight, 72)
    checkpoints.save(straight, Step(1), {})
    checkpoints.restore(resumed)
    teach(straight, 73)
    teach(resumed, 73)
    first, second = straight.model.state_dict(), resumed.model.state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert torch.equal(first["extra"], torch.ones(3)) == (not any(reached))
    frozen = "model.embed_tokens.weight"
    assert torch.equal(first[frozen], learner.model.state_dict()[frozen])


def flip(path: Path) -> None:
    """Flip the lowest bit of the last byte. In a tensor this is a bit of the last value's exponent."""
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def count_other_updates(path: Path) -> None:
    path.write_text(path.read_text().replace('"updates": 1', '"updates": 7'))


def restore(learner: Learner, folder: Path) -> None:
    """Restore as rank 0 does. The other ranks call `load_state`."""
    Checkpoints(folder.parent, keep=2).restore(learner)


@pytest.mark.parametrize(
    ("name", "damage"),
    [*product(FILES, (flip, truncate, Path.unlink)), ("state.json", count_other_updates), ("surplus", Path.touch)],
)
@pytest.mark.parametrize("restore", [restore, load_state])
def test_restore__damage__is_refused_before_anything_changes(
    learner: Learner, tmp_path: Path, restore: Callable[..., object], name: str, damage: Callable[[Path], None]
) -> None:
    folder = tmp_path / "1"
    teach(learner, 71)
    Checkpoints(tmp_path, keep=2).save(learner, Step(1), {})
    assert sorted(path.name for path in folder.iterdir()) == FILES
    teach(learner, 72)
    before = copy.deepcopy((learner.model.state_dict(), learner.get_optimizer_tensors()))
    damage(folder / name)
    with pytest.raises(OperatorError, match=rf"bad_checkpoint: .*{name}.*Resume with .*, or remove the folder"):
        restore(learner, folder)
    assert learner.updates == 2
    for kept, after in zip(before, (learner.model.state_dict(), learner.get_optimizer_tensors()), strict=True):
        assert kept.keys() == after.keys()
        assert all(torch.equal(kept[name], after[name]) for name in kept)


@pytest.mark.parametrize("name", FILES[1:])
@pytest.mark.parametrize("content", [b"", b"{}", b"\xff" * 100])
def test_restore__file_of_nonsense__says_what_to_do(
    learner: Learner, tmp_path: Path, name: str, content: bytes
) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    teach(learner, 71)
    checkpoints.save(learner, Step(1), {})
    (tmp_path / "1" / name).write_bytes(content)
    write_digests(tmp_path / "1")
    with pytest.raises(OperatorError, match="bad_checkpoint"):
        checkpoints.restore(learner)


@pytest.mark.parametrize("content", [b"[]", b"7", b"[[]]", b'{"state.json": []}', b"\xff"])
def test_restore__digests_are_nonsense__is_refused(learner: Learner, tmp_path: Path, content: bytes) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    checkpoints.save(learner, Step(1), {})
    (tmp_path / "1" / "digests.json").write_bytes(content)
    with pytest.raises(OperatorError, match="bad_checkpoint"):
        checkpoints.restore(learner)


def test_restore__nan__is_refused(learner: Learner, tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    checkpoints.save(learner, Step(1), {})
    tensors = load_file(tmp_path / "1" / "masters.safetensors")
    tensors["model.norm.weight"][3] = float("nan")
    save_file(tensors, tmp_path / "1" / "masters.safetensors")
    write_digests(tmp_path / "1")
    with pytest.raises(OperatorError, match=r"bad_checkpoint: .* NaN or Inf"):
        checkpoints.restore(learner)
    assert all(bool(parameter.isfinite().all()) for parameter in learner.model.parameters())


def test_add__writer_dies__leaves_no_folder_and_the_next_process_cleans_up(tmp_path: Path) -> None:
    folders = StepFolders(tmp_path)

    def die(folder: Path) -> None:
        (folder / "half").write_bytes(b"x")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        folders.add(Step(3), die)
    assert folders.list_steps() == []
    again = StepFolders(tmp_path)
    assert list(tmp_path.iterdir()) == []
    again.add(Step(3), lambda folder: (folder / "whole").touch())
    assert again.list_steps() == [3]
    assert (again.get_path(Step(3)) / "whole").exists()


def test_add__killed_while_the_old_folder_is_removed__never_looks_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = StepFolders(tmp_path)
    folders.add(Step(1), lambda folder: (folder / "old").touch())

    def die(folder: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(shutil, "rmtree", die)
    with pytest.raises(KeyboardInterrupt):
        folders.add(Step(1), lambda folder: (folder / "new").touch())
    monkeypatch.undo()
    assert StepFolders(tmp_path).list_steps() == []


def test_add__existing_folder__is_replaced_as_a_whole(tmp_path: Path) -> None:
    folders = StepFolders(tmp_path)
    folders.add(Step(1), lambda folder: (folder / "old").touch())
    folders.add(Step(1), lambda folder: (folder / "new").touch())
    assert [path.name for path in (tmp_path / "1").iterdir()] == ["new"]


def test_retain__some_steps__removes_the_others_only(tmp_path: Path) -> None:
    folders = StepFolders(tmp_path)
    for step in (1, 2, 10, 11):
        folders.add(Step(step), lambda folder: (folder / "x").touch())
    folders.retain(lambda step: step in (2, 10))
    assert folders.list_steps() == [2, 10]
    assert len(list(tmp_path.iterdir())) == 2


def test_export_policy__equal_masters__equal_bytes_and_another_update_differs(learner: Learner, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(tiny_folder())
    first = export_policy(StepFolders(tmp_path / "a"), learner, tokenizer, Step(0))
    second = export_policy(StepFolders(tmp_path / "b"), learner, tokenizer, Step(7))
    names = sorted(path.name for path in first.iterdir())
    assert "model.safetensors" in names
    assert all((first / name).read_bytes() == (second / name).read_bytes() for name in names)
    exported, shipped = (load_file(each / "model.safetensors") for each in (first, tiny_folder()))
    assert exported.keys() == shipped.keys()
    assert all(torch.equal(exported[name], shipped[name]) for name in shipped)
    teach(learner, 71)
    third = export_policy(StepFolders(tmp_path / "a"), learner, tokenizer, Step(1))
    assert (third / "model.safetensors").read_bytes() != (first / "model.safetensors").read_bytes()
