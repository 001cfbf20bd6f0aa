"""No room for a checkpoint or a policy: a clear error, nothing half-written, and the last good state loads."""

import errno
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from covey.errors import OperatorError
from covey.model.files import load_model, load_tokenizer
from covey.model.tiny import tiny_folder
from covey.protocol.ids import Step
from tests.fakes.samples import build_batch, build_learner, build_samples
from trainer.checkpoint import Checkpoints, State, StepFolders, export_policy
from trainer.learner import Learner

pytestmark = pytest.mark.unit


@contextmanager
def limit_files(size: int) -> Iterator[None]:
    """Writing a file beyond so many bytes fails, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.fixture
def learner() -> Learner:
    return build_learner(load_model(tiny_folder(), "float32"))


@pytest.mark.parametrize("size", [100, 1_000_000])  # in the masters, in the moments
def test_save__no_room__says_so_and_the_last_good_state_loads(learner: Learner, tmp_path: Path, size: int) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    learner.update(build_batch(build_samples(2)))
    checkpoints.save(learner, Step(1), {})
    weights = {name: tensor.clone() for name, tensor in learner.model.state_dict().items()}
    learner.update(build_batch(build_samples(3)))
    with limit_files(size), pytest.raises(OperatorError, match=r"disk_full: .* no room for step 2.*Free space"):
        checkpoints.save(learner, Step(2), {})
    assert [path.name for path in tmp_path.iterdir()] == ["1"]
    assert checkpoints.restore(learner) == State(step=Step(1), updates=1, report={})
    assert all(torch.equal(weights[name], tensor) for name, tensor in learner.model.state_dict().items())
    checkpoints.save(learner, Step(2), {})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1", "2"]


@pytest.mark.parametrize("size", [0, 100, 700, 2_000, 100_000])
def test_export_policy__no_room__leaves_the_policies_that_stand(learner: Learner, tmp_path: Path, size: int) -> None:
    exports, tokenizer = StepFolders(tmp_path), load_tokenizer(tiny_folder())
    export_policy(exports, learner, tokenizer, Step(0))
    with limit_files(size), pytest.raises(OperatorError, match="disk_full"):
        export_policy(exports, learner, tokenizer, Step(1))
    assert [path.name for path in tmp_path.iterdir()] == ["0"]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_add__disk_is_found_full_when_synced__leaves_nothing(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OperatorError, match="disk_full"):
        StepFolders(tmp_path).add(Step(0), lambda folder: (folder / "x").touch())
    assert list(tmp_path.iterdir()) == []


def test_add__another_failure__is_not_called_a_full_disk(tmp_path: Path) -> None:
    def refuse(folder: Path) -> None:
        raise PermissionError(errno.EACCES, "no")

    with pytest.raises(PermissionError):
        StepFolders(tmp_path).add(Step(0), refuse)


def test_run__disk_fills_up_between_two_steps__goes_on_to_the_same_policies(
    build_world: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    straight, filled = build_world(), build_world()
    straight.run()
    save = Checkpoints.save

    def run_out(self: Checkpoints, learner: Learner, step: Step, report: dict[str, float]) -> None:
        with limit_files(1_000_000 if step == 2 else resource.RLIM_INFINITY):
            save(self, learner, step, report)

    monkeypatch.setattr(Checkpoints, "save", run_out)
    with pytest.raises(OperatorError, match="disk_full"):
        filled.run()
    monkeypatch.undo()
    filled.run()
    assert filled.chain.hashes == straight.chain.hashes
    assert filled.coordinator.claims == [0, 1, 1]
