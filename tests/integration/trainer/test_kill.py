"""SIGKILL at random moments of the trainer's loop over a recorded stream does not change its results.

What it publishes, reports and keeps equals an uninterrupted run, also if only each third step has a checkpoint. Its
slice is the test of `covey train`, which is killed once.
"""

import multiprocessing
import random
import time
from pathlib import Path

import pytest

from tests.fakes.resuming import live, read_checkpoint, read_metrics, read_published, record_stream

pytestmark = [pytest.mark.integration, pytest.mark.full]

KILLS = 20
STEPS_A_LIFE = 3
"""The longest life; a shorter one than a step repeats what was not kept."""
HANG_S = 900
"""Deadline against hanging, in seconds, of a whole run."""


def run(folder: Path, lifetime: float = HANG_S, *, every: int = 1, published: int | None = None) -> int:
    """Run a process, kill it after that many seconds, and return its exit status.

    It is killed earlier once that many policies are published, however fast the machine has become.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["covey.local.preload"])  # one such server per process
    process = context.Process(target=live, args=(folder, every))
    process.start()
    deadline = time.monotonic() + lifetime
    while process.is_alive() and time.monotonic() < deadline:
        if published is not None and len(read_published(folder)) >= published:
            break
        process.join(min(0.02, lifetime))
    process.kill()
    process.join()
    assert process.exitcode is not None
    return process.exitcode


def measure(folder: Path) -> float:
    started = time.monotonic()
    assert run(folder) == 0
    return time.monotonic() - started


@pytest.mark.parametrize("every", [1, 3])
def test_live__killed_at_random_instants__publishes_what_an_uninterrupted_run_does(tmp_path: Path, every: int) -> None:
    steps = STEPS_A_LIFE * KILLS
    straight, killed = tmp_path / "straight", tmp_path / "killed"
    for folder in (straight, killed):
        record_stream(folder, steps)
    run(straight, 0)  # the first process imports everything
    whole = measure(straight)
    expected = read_published(straight)
    start = measure(straight)  # everything is done
    assert read_published(straight) == expected
    assert len(set(expected)) == len(expected) == steps + 1
    told = sorted((line["event"], line["step"]) for line in read_metrics(straight) if line["event"] != "alarm")
    updates = [("update", step) for step in range(steps)]
    assert told == [*(("policy", step) for step in range(steps + 1)), *updates]

    rng, seen, most = random.Random(0), [], steps - 3  # A process is killed some steps before it would end by itself.
    for _ in range(KILLS):
        lifetime = rng.uniform(0, start + STEPS_A_LIFE * (whole - start) / steps)
        seen.append(run(killed, lifetime, every=every, published=most))
        assert read_published(killed) == expected[: len(read_published(killed))]
    assert seen.count(-9) == KILLS
    life = start
    while len(read_published(killed)) < 2:  # on a machine that has become slower, no process lived long enough to learn
        life *= 1.5
        assert run(killed, life, every=every, published=most) == -9
    assert run(killed, every=every) == 0
    assert read_published(killed) == expected
    assert read_metrics(killed) == read_metrics(straight)
    assert list((killed / "home" / "journal").iterdir()) == []
    assert len(read_checkpoint(straight, steps)) == 2
    assert read_checkpoint(killed, steps) == read_checkpoint(straight, steps)
