"""A policy and its checkpoint are written while the next step runs, as on a GPU, and published only once on disk."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from covey.errors import OperatorError
from trainer import train_step
from trainer.algorithm.learner import Learner
from trainer.checkpoints.checkpoint import Checkpoints
from trainer.distributed.host_copies import HostCopies

pytestmark = pytest.mark.unit
Build = Callable[..., Any]


@pytest.fixture
def apart(monkeypatch: pytest.MonkeyPatch) -> None:
    save_apart(monkeypatch)


def save_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make learners copy their tensors and go on, as on a GPU."""
    monkeypatch.setattr(Learner, "is_saved_apart", True)
    monkeypatch.setattr(HostCopies, "copy", HostCopies.keep)


def test_run__written_in_the_background__publishes_the_same_policies(
    build_harness: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    straight, apart = build_harness(steps=3), build_harness(steps=3)
    straight.run()
    save_apart(monkeypatch)
    apart.run()
    assert apart.chain.hashes == straight.chain.hashes
    assert apart.context.progress.written == apart.context.progress.step == 3
    assert [(line["event"], line["step"]) for line in apart.read_metrics() if line["event"] == "update"] == [
        ("update", step) for step in range(3)
    ]


def test_run__checkpoint_is_being_written__next_step_runs_and_the_policy_waits(
    build_harness: Build, apart: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness, seen = build_harness(steps=2), list[tuple[int, int, int]]()
    harness.coordinator.staleness = 1  # so that the second step needs no policy of the first one
    prepare, may_end = Checkpoints.prepare, threading.Event()

    def wait_for_the_next_step(self: Checkpoints, learner: Any, step: int, report: Any) -> Callable[[], None]:
        write = prepare(self, learner, step, report)
        if step == 2:  # the second step is over, so the write of the first one may end
            progress = harness.context.progress
            seen.append((progress.step, progress.written, len(harness.chain.hashes)))
            may_end.set()
        if step != 1:
            return write

        def write_late() -> None:
            assert may_end.wait(60)
            write()

        return write_late

    # `learn` waits for the previous write before it prepares the next one. Here the second step has to come so far.
    monkeypatch.setattr("trainer.checkpoints.saver.Saver.wait", lambda self: None)
    monkeypatch.setattr(Checkpoints, "prepare", wait_for_the_next_step)
    harness.run()
    assert seen == [(1, 0, 1)]
    assert len(harness.chain.hashes) == 3


@pytest.mark.parametrize("part", ["policy", "checkpoint"])
def test_run__write_fails_once_in_the_background__ends_the_process_and_resumes(
    build_harness: Build, apart: None, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    """The second step needs nothing of the first one, so it could be written without it."""
    straight, failing = build_harness(steps=3), build_harness(steps=3)
    for harness in (straight, failing):
        harness.coordinator.staleness = 1
    straight.run()
    prepare, export = Checkpoints.prepare, train_step.prepare_export

    def raise_error() -> Any:
        raise OperatorError("disk_full", "the disk is full", fix="Free space")

    def fail_checkpoint(self: Checkpoints, learner: Any, step: int, report: Any) -> Callable[[], None]:
        write = prepare(self, learner, step, report)
        return raise_error if (part, step) == ("checkpoint", 1) else write

    def fail_policy(exports: Any, learner: Any, tokenizer: Any, step: int, **settings: Any) -> Callable[[], Any]:
        write = export(exports, learner, tokenizer, step, **settings)
        return raise_error if (part, step) == ("policy", 1) else write

    with monkeypatch.context() as patched:
        patched.setattr(Checkpoints, "prepare", fail_checkpoint)
        patched.setattr(train_step, "prepare_export", fail_policy)
        with pytest.raises(OperatorError, match="disk_full"):
            failing.run()
    assert len(failing.chain.hashes) == 1
    failing.run()
    assert failing.chain.hashes == straight.chain.hashes
