"""SIGKILL to all ranks while they write a step in the background leaves a checkpoint from which they resume.

The policies equal those of an undisturbed run. Two ranks have a checkpoint of each third step; COVEY_FULL=1 also kills
one rank, with a checkpoint of each step, and at more instants.
"""

import multiprocessing
import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from pathlib import Path

import pytest
from safetensors import safe_open

from tests.fakes.saving_rank import STEPS, be_patient, main, read_policies

pytestmark = [pytest.mark.integration, pytest.mark.slow]

HANG_S = 300
"""Deadline against hanging, in seconds, of one life."""
MOMENTS = {(2, 3): ["checkpoints/.[1-9]/shard-00002-*", "journal/4"]}
if os.environ.get("COVEY_FULL") == "1":
    MOMENTS[1, 1] = ["checkpoints/.[1-9]", "checkpoints/[3-5]"]
    MOMENTS[1, 1] += ["exports/.[1-9]", "checkpoints/.[1-9]/optimizer.safetensors"]
    MOMENTS[2, 1] = ["checkpoints/.[1-9]/shard-00002-*", "exports/.[1-9]", "checkpoints/.[1-9]"]
    MOMENTS[1, 3] = ["journal/0", "exports/2", "exports/.3", "checkpoints/.3"]
    MOMENTS[1, 3] += ["exports/.4", "journal/4", "checkpoints/.6"]
"""Files whose appearance ends a life, by number of ranks and steps from one checkpoint to the next: the batch, the
policy, the checkpoint and its parts are being written, and the checkpoint has just got its name.
"""


def find(folder: Path, pattern: str) -> set[Path]:
    try:
        return set(folder.glob(pattern))
    except FileNotFoundError:  # a draft was renamed while it was searched
        return set()


def live(folder: Path, size: int, life: int, every: int, until: str | None) -> list[int | None]:
    """Run all ranks until a file appears that was not there before, and kill them. Return their exit codes."""
    return run([partial(main, rank, size, folder, life, every) for rank in range(size)], folder, until)


def run(ranks: Sequence[Callable[[], None]], folder: Path, until: str | None) -> list[int | None]:
    before = find(folder, until) if until else set()
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["covey.local.preload"])
    processes = [context.Process(target=rank) for rank in ranks]
    deadline = time.monotonic() + HANG_S
    try:
        for process in processes:
            process.start()
        while all(process.is_alive() for process in processes) and time.monotonic() < deadline:
            if until is None:
                processes[0].join(0.05)
            elif find(folder, until) - before:
                break
        if until is None:
            for process in processes:
                process.join(max(0.0, deadline - time.monotonic()))
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.join()
    return [process.exitcode for process in processes]


@pytest.mark.parametrize(("size", "every"), MOMENTS)
def test_save__killed_at_several_instants__resumes_to_the_same_policies(tmp_path: Path, size: int, every: int) -> None:
    straight, killed, lives = tmp_path / "straight", tmp_path / "killed", count()
    for folder in (straight, killed):
        folder.mkdir()
    assert live(straight, size, next(lives), 1, None) == [0] * size
    expected = read_policies(straight)
    assert len(set(expected.values())) == len(expected) == STEPS + 1
    for moment in MOMENTS[size, every]:
        assert live(killed, size, next(lives), every, moment) == [-9] * size, moment
    assert live(killed, size, next(lives), every, None) == [0] * size
    assert read_policies(killed) == expected
    assert (killed / "beacons.jsonl").read_text() == (straight / "beacons.jsonl").read_text()
    assert list((killed / "journal").iterdir()) == []
    assert read_checkpoint(killed) == read_checkpoint(straight)


def test_save__policy_takes_longer_than_ranks_wait__no_rank_is_lost(tmp_path: Path) -> None:
    assert run([partial(be_patient, rank, tmp_path) for rank in range(2)], tmp_path, None) == [0, 0]
    assert read_policies(tmp_path).keys() == {"0", "1"}
    assert (tmp_path / "checkpoints" / "1").exists()


def read_checkpoint(folder: Path) -> dict[str, object]:
    """Return tensors and state of the newest checkpoint. The order of a file's metadata may differ."""
    kept = folder / "checkpoints" / str(STEPS)
    found: dict[str, object] = {"state": (kept / "state.json").read_text()}
    for file in sorted(kept.glob("*.safetensors")):
        with safe_open(file, "pt") as opened:
            values = {name: opened.get_tensor(name).numpy().tobytes() for name in opened.keys()}  # noqa: SIM118
            found[file.name] = values, opened.metadata()
    return found
