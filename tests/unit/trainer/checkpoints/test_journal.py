"""Batches on disk: what is read equals what was written, and nothing else is read."""

from pathlib import Path

import pytest

from covey.errors import OperatorError
from covey.protocol.ids import Step
from tests.fakes.samples import build_batch, build_samples, forget_old
from trainer.checkpoints.journal import LearnedStep, StepJournal

pytestmark = pytest.mark.unit


def fill(folder: Path, *steps: int) -> StepJournal:
    journal = StepJournal(folder)
    for step in steps:
        journal.write(Step(step), (build_batch(build_samples(3, step)),), {"loss": step / 3})
    return journal


def test_read__step_of_two_updates__equals_what_was_written(tmp_path: Path) -> None:
    batches = (build_batch(build_samples(5)), forget_old(build_batch(build_samples(2, 1))))
    StepJournal(tmp_path).write(Step(7), batches, {"policy/loss": 0.1, "batch/tokens": 9})
    assert StepJournal(tmp_path).read(Step(7)) == LearnedStep(
        batches=batches, report={"policy/loss": 0.1, "batch/tokens": 9}
    )


def test_list_steps__gap__ends_before_it(tmp_path: Path) -> None:
    journal = fill(tmp_path, 3, 4, 5, 7)
    assert [journal.list_steps(Step(first)) for first in (2, 3, 5, 6, 7)] == [[], [3, 4, 5], [5], [], [7]]


def test_retain__some_steps__removes_the_others(tmp_path: Path) -> None:
    fill(tmp_path, 3, 4, 12).retain(lambda step: step >= 4)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["12", "4"]


def test_init__draft_of_a_killed_process__is_removed(tmp_path: Path) -> None:
    (tmp_path / ".5.ab12").write_bytes(b"half")
    assert StepJournal(tmp_path).list_steps(Step(5)) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("place", [0, 40, -1])
def test_read__bit_has_changed__is_refused(tmp_path: Path, place: int) -> None:
    journal = fill(tmp_path, 2)
    content = bytearray((tmp_path / "2").read_bytes())
    content[place] ^= 1
    (tmp_path / "2").write_bytes(content)
    with pytest.raises(OperatorError, match=r"damaged_journal: .*/2, the batch .* step 2 learned"):
        journal.read(Step(2))
