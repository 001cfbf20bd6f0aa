"""A full disk under the trainer: a clear error, no incomplete files, and the last good state loads."""

import errno
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from covey.chain.outbox import Intent
from covey.chain.sqlite_outbox import SqliteOutbox
from covey.errors import OperatorError
from covey.model.policy_files import load_model, load_tokenizer
from covey.model.tiny import tiny_folder
from covey.protocol.ids import Hash, Step
from covey.runtime.files import append
from tests.fakes.disk import limit_files
from tests.fakes.samples import build_batch, build_learner, build_samples
from trainer import loop
from trainer.algorithm.learner import Learner
from trainer.checkpoints.checkpoint import Checkpoints, State, StepFolders, export_policy
from trainer.publisher import Publisher

pytestmark = pytest.mark.unit


@pytest.fixture
def learner() -> Learner:
    return build_learner(load_model(tiny_folder(), "float32"))


@pytest.mark.parametrize("size", [100, 1_000_000])  # The limit is reached in the master weights, then in the moments.
def test_save__no_room__says_so_and_the_last_good_state_loads(learner: Learner, tmp_path: Path, size: int) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    learner.update(build_batch(build_samples(2)))
    checkpoints.save(learner, Step(1), {})
    weights = {name: tensor.clone() for name, tensor in learner.model.state_dict().items()}
    learner.update(build_batch(build_samples(3)))
    with (
        limit_files(size),
        pytest.raises(OperatorError, match=r"disk_full: .* step 2 could not be written.*Free space"),
    ):
        checkpoints.save(learner, Step(2), {})
    assert [path.name for path in tmp_path.iterdir()] == ["1"]
    assert checkpoints.restore(learner) == State(step=Step(1), updates=1, report={})
    assert all(torch.equal(weights[name], tensor) for name, tensor in learner.model.state_dict().items())
    checkpoints.save(learner, Step(2), {})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1", "2"]


@pytest.mark.parametrize("size", [0, 100, 700, 2_000, 100_000])
def test_export_policy__no_room__keeps_the_existing_policies(learner: Learner, tmp_path: Path, size: int) -> None:
    exports, tokenizer = StepFolders(tmp_path), load_tokenizer(tiny_folder())
    export_policy(exports, learner, tokenizer, Step(0))
    with limit_files(size), pytest.raises(OperatorError, match="disk_full"):
        export_policy(exports, learner, tokenizer, Step(1))
    assert [path.name for path in tmp_path.iterdir()] == ["0"]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_add__disk_is_full_at_fsync__leaves_nothing(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OperatorError, match="disk_full"):
        StepFolders(tmp_path).add(Step(0), lambda folder: (folder / "x").touch())
    assert list(tmp_path.iterdir()) == []


def test_add__another_failure__is_not_reported_as_a_full_disk(tmp_path: Path) -> None:
    def refuse(folder: Path) -> None:
        raise PermissionError(errno.EACCES, "no")

    with pytest.raises(PermissionError):
        StepFolders(tmp_path).add(Step(0), refuse)


def run_out(harness: Any) -> None:
    with pytest.raises(OperatorError, match=r"disk_full: the disk of .* is full.*Free space"):
        harness.run()


# The limit is reached in the record and in the delta.
@pytest.mark.parametrize("size", [0, 100, 20_000])
def test_run__origin_is_full__resumes_and_publishes_the_same_policies(
    size: int, build_harness: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    straight, filled = build_harness(), build_harness()
    straight.run()
    offer = Publisher.offer

    def fill(self: Publisher, folder: Path, step: Step, *, base_folder: Path | None) -> Hash:
        if step != 1:
            return offer(self, folder, step, base_folder=base_folder)
        with limit_files(size):
            return offer(self, folder, step, base_folder=base_folder)

    monkeypatch.setattr(Publisher, "offer", fill)
    monkeypatch.setattr(loop, "evaluate", lambda ctx: None)  # It would write concurrently under the same limit.
    run_out(filled)
    assert {path.name for path in filled.config.origin_root.rglob(".*")} == {".offered"}, "no drafts"
    head = filled.coordinator.store.read_head(1)
    assert [policy.step for policy in head.policies] == [0]
    monkeypatch.undo()
    filled.run()
    assert filled.chain.hashes == straight.chain.hashes
    assert filled.coordinator.claims == [0, 1]


def test_run__no_room_for_an_intent__is_published_once_there_is_room(
    build_harness: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = build_harness()
    put = SqliteOutbox.put

    def fill(self: SqliteOutbox, intent: Intent) -> None:
        if intent.key.endswith("/1"):
            self._database.execute("PRAGMA max_page_count = 1")  # Existing pages stay, and none is added.
            intent = replace(intent, call=replace(intent.call, data=bytes(100_000)))  # Existing pages have no room.
        put(self, intent)

    monkeypatch.setattr(SqliteOutbox, "put", fill)
    run_out(harness)
    monkeypatch.undo()
    harness.run()
    assert len(set(harness.chain.hashes)) == 3
    assert harness.coordinator.claims == [0, 1]


def test_run__no_room_for_a_line_of_metrics__is_written_once_there_is_room(
    build_harness: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = build_harness()

    def fill(path: Path, data: bytes) -> None:
        if b'{"event": "policy", "step": 1,' in data:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        append(path, data)

    monkeypatch.setattr("trainer.monitoring.metrics.append", fill)
    run_out(harness)
    monkeypatch.undo()
    harness.run()
    lines = [(line["event"], line["step"]) for line in harness.read_metrics()]
    assert len(lines) == len(set(lines)) == 8
    assert harness.coordinator.claims == [0, 1]


def test_run__disk_fills_up_between_two_steps__resumes_and_publishes_the_same_policies(
    build_harness: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    straight, filled = build_harness(), build_harness()
    straight.run()
    prepare = Checkpoints.prepare

    def run_out(self: Checkpoints, learner: Learner, step: Step, report: dict[str, float]) -> Callable[[], None]:
        write = prepare(self, learner, step, report)

        def write_little() -> None:
            with limit_files(1_000_000):
                write()

        return write_little if step == 2 else write

    monkeypatch.setattr(Checkpoints, "prepare", run_out)
    with pytest.raises(OperatorError, match="disk_full"):
        filled.run()
    monkeypatch.undo()
    filled.run()
    assert filled.chain.hashes == straight.chain.hashes
    assert filled.coordinator.claims == [0, 1, 1]
