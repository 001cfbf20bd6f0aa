"""Record hashes of a run's policies: each follows from the one before, and those of lost policies are forgotten."""

import json
import struct
from functools import partial
from pathlib import Path

import pytest

from covey.protocol.ids import ZERO_HASH, PoolId, Step
from covey.shardcast.policy_export import build_record, build_row, write_weights
from covey.standalone.beacons import Beacons
from trainer.checkpoints.checkpoint import StepFolders

pytestmark = pytest.mark.unit


@pytest.fixture
def exports(tmp_path: Path) -> StepFolders:
    folders = StepFolders(tmp_path / "exports")
    for step in range(3):
        folders.add(Step(step), partial(write_policy, step))
    return folders


def write_policy(step: int, folder: Path) -> None:
    """Write a policy of one tensor with two values, which are the step."""
    rows = [build_row("weight", "F32", (2,))]
    write_weights(folder, rows, lambda _: memoryview(struct.pack("<2f", step, step)), threads=1)


def open_beacons(tmp_path: Path, exports: StepFolders) -> Beacons:
    return Beacons(tmp_path / "beacons.jsonl", exports, PoolId(4))


def test_get__policies_without_a_line__are_added_from_the_first(tmp_path: Path, exports: StepFolders):
    newest = open_beacons(tmp_path, exports).get(Step(2))
    parent = ZERO_HASH
    for step in range(3):
        parent = build_record(exports.get_path(Step(step)), pool=4, step=step, parent=parent).compute_hash()
    assert newest == parent
    lines = [json.loads(line) for line in (tmp_path / "beacons.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [0, 1, 2]
    assert open_beacons(tmp_path, exports).find(Step(2)) == newest


def test_forget_after__later_policies_were_lost__only_their_lines_go(tmp_path: Path, exports: StepFolders):
    beacons = open_beacons(tmp_path, exports)
    beacons.get(Step(2))
    whole = (tmp_path / "beacons.jsonl").read_bytes()
    beacons.forget_after(Step(2))
    assert (tmp_path / "beacons.jsonl").read_bytes() == whole
    beacons.forget_after(Step(0))
    assert (tmp_path / "beacons.jsonl").read_bytes() == whole[: whole.index(b"\n") + 1]
    assert (beacons.find(Step(1)), open_beacons(tmp_path, exports).find(Step(1))) == (None, None)
    beacons.get(Step(2))
    assert (tmp_path / "beacons.jsonl").read_bytes() == whole
