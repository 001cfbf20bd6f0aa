"""A run on one machine never loses policies silently when it is resumed."""

import json
from pathlib import Path
from typing import Any, cast

import pytest

from covey.errors import OperatorError
from covey.model.tiny import tiny_folder
from covey.protocol.ids import PoolId, Step
from covey.standalone import run_restart
from covey.standalone.beacons import Beacons
from covey.standalone.config import TrainConfig
from trainer.algorithm.learner import Learner
from trainer.checkpoints.checkpoint import Checkpoints, State, StepFolders
from trainer.checkpoints.journal import StepJournal

pytestmark = pytest.mark.unit


class _Checkpoint:
    """The only checkpoint of a run."""

    def __init__(self, step: int) -> None:
        self._state = State(step=Step(step), updates=step, report={})

    def restore(self, _: Learner) -> State:
        return self._state


def restore(home: Path, *, checkpoint: int, batches: list[int], policies: list[int]) -> None:
    """Restore a run that has reached policy 8 and has a checkpoint, the batches of some steps and some policies."""
    for folder, steps in (("journal", batches), ("exports", policies)):
        (home / folder).mkdir()
        for step in steps:
            path = home / folder / str(step)
            path.touch() if folder == "journal" else path.mkdir()
    lines = [json.dumps({"step": step, "record_hash": f"0x{step:064x}"}) + "\n" for step in range(9)]
    (home / "beacons.jsonl").write_text("".join(lines))
    exports = StepFolders(home / "exports")
    run_restart.restore(
        TrainConfig.load(None, {"home": str(home)}, {}),
        cast(Learner, None),
        tiny_folder(),
        checkpoints=cast(Checkpoints, _Checkpoint(checkpoint)),
        journal=StepJournal(home / "journal"),
        exports=exports,
        beacons=Beacons(home / "beacons.jsonl", exports, PoolId(1)),
        pool=PoolId(1),
    )


def test_restore__newest_checkpoint_was_removed__is_refused_and_nothing_is_deleted(tmp_path: Path):
    with pytest.raises(OperatorError, match=r"wrong_checkpoint: .*from step 3 only.* copy of .*exports/8;") as caught:
        restore(tmp_path, checkpoint=3, batches=[6, 7], policies=[7, 8])
    assert f"remove {tmp_path / 'journal'}" in str(caught.value)
    assert sorted(path.name for path in (tmp_path / "journal").iterdir()) == ["6", "7"]
    assert sorted(path.name for path in (tmp_path / "exports").iterdir()) == ["7", "8"]
    assert len((tmp_path / "beacons.jsonl").read_text().splitlines()) == 9


def test_restore__batches_follow_the_checkpoint__the_advice_names_what_exists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    class StoppedError(Exception):
        pass

    def repeat(steps: list[Step], *_: object, advice: str, **__: Any) -> None:
        raise StoppedError(steps, advice)

    monkeypatch.setattr(run_restart, "repeat_steps", repeat)
    with pytest.raises(StoppedError) as caught:  # policy 9 was not written before the crash
        restore(tmp_path, checkpoint=6, batches=[6, 7, 8], policies=[7, 8])
    steps, advice = caught.value.args
    assert steps == [6, 7, 8]
    assert f"remove {tmp_path / 'journal'} to go on from the checkpoint of step 6" in advice
    assert f"a copy of {tmp_path / 'exports' / '8'}" in advice
