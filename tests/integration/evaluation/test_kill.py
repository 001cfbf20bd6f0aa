"""An evaluation that is killed at five instants and run again has the numbers of one that was not interrupted."""

import json
import multiprocessing
from pathlib import Path

import pytest

from tests.fakes.spelling_rows import evaluate_tiny, evaluate_until, write_rows

pytestmark = [pytest.mark.integration, pytest.mark.slow]

ROWS, SAMPLES = 24, 4
INSTANTS = (0, 1, 2, 1, 3)
"""Turns that each process writes before it is killed. There are six turns of 16 completions."""
SECONDS = 300


def kill_after(rows: Path, out: Path, turns: int) -> None:
    """Run the evaluation in a process that kills itself."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["covey.local.preload"])  # one such server per process, with one thread
    process = context.Process(target=evaluate_until, args=(rows, out, turns))
    process.start()
    process.join(SECONDS)
    assert process.exitcode == -9


def read_samples(out: Path) -> dict[tuple[int, int], dict[str, object]]:
    rows = [json.loads(line) for line in (out / "samples.jsonl").read_text().splitlines()]
    found = {(row["question"], row["sample"]): row for row in rows}
    assert len(found) == len(rows)  # nothing is written twice
    return found


def test_evaluate__killed_at_five_instants__has_the_numbers_of_one_run(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    write_rows(rows, ROWS)
    whole = evaluate_tiny(rows, tmp_path / "whole", samples=SAMPLES)
    killed = tmp_path / "killed"
    counts = []
    for turns in INSTANTS:
        kill_after(rows, killed, turns)
        samples = killed / "samples.jsonl"
        counts.append(len(read_samples(killed)) if samples.exists() else 0)
        assert not (killed / "results.json").exists()
        if counts[-1]:  # as if the power had failed while a turn was written: its last line is torn
            lines = samples.read_bytes().splitlines(keepends=True)
            samples.write_bytes(b"".join([*lines[:-1], lines[-1][:40]]))
    assert counts == [0, 16, 32, 32, 64]  # a turn that lacks one line is generated again, and gets that line
    assert evaluate_tiny(rows, killed, samples=SAMPLES) == whole
    assert read_samples(killed) == read_samples(tmp_path / "whole")
    results = [json.loads((folder / "results.json").read_text()) for folder in (tmp_path / "whole", killed)]
    assert results[0]["models"] == results[1]["models"]


def test_evaluate__another_batch__has_the_same_numbers(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    write_rows(rows, ROWS)
    results = [evaluate_tiny(rows, tmp_path / str(batch), samples=2, batch=batch) for batch in (1, 7, 64)]
    assert results[0] == results[1] == results[2]
    assert read_samples(tmp_path / "1") == read_samples(tmp_path / "64")
