"""Time and memory of data sets as large as published ones. Every run tests a slice."""

import json
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from covey.environments.base import EnvironmentSpec
from covey.environments.registry import load
from covey.tasks.dataset import open_folder
from tests.fakes.tasks import make_row

pytestmark = pytest.mark.integration

GIGABYTE = 1 << 30
_CHILD = r"""
import re, sys, time
from pathlib import Path
from covey.tasks.importing import import_rows
from covey.tasks.dataset_row import Reading
from covey.tasks.sources import read_sources
started = time.monotonic()
import_rows(read_sources([sys.argv[1]]), Path(sys.argv[2]), Reading())
print(time.monotonic() - started, re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text()).group(1))
"""
# Not ru_maxrss, which starts at the peak memory of the parent process.


def write_small(path: Path, count: int) -> None:
    """Write rows of 1 to 2 kB."""
    rng = random.Random(0)
    words = [rng.randbytes(rng.randint(1, 4)).hex() for _ in range(20_000)]
    with path.open("w") as file:
        for number in range(count):
            prompt = " ".join([str(number), *rng.choices(words, k=rng.randint(170, 330))])
            file.write(json.dumps(make_row(number, prompt=prompt)) + "\n")


def write_large(path: Path, count: int) -> None:
    """Write rows of 150 kB to 3 MB."""
    rng = random.Random(0)
    with path.open("w") as file:
        for number in range(count):
            truth = rng.randbytes(rng.randint(75_000, 1_500_000)).hex()
            info = json.dumps({"ground_truth": [f"{number}", truth]})
            file.write(json.dumps(make_row(number, verification_info=info)) + "\n")


def import_alone(source: Path, folder: Path) -> tuple[float, float]:
    """Return the seconds and the peak memory in bytes of an import in a new process."""
    done = subprocess.run(
        [sys.executable, "-c", _CHILD, source, folder], capture_output=True, text=True, timeout=1200, check=True
    )
    seconds, memory = done.stdout.split()
    return float(seconds), 1024 * float(memory)


@pytest.mark.parametrize(
    ("write", "count", "seconds"),
    [
        (write_small, 2000, 60),
        (write_large, 20, 60),
        pytest.param(write_small, 285_000, 180, marks=pytest.mark.full),
        pytest.param(write_large, 2000, 600, marks=pytest.mark.full),
    ],
)
def test_import__many_or_large_rows__in_little_time_and_memory(tmp_path, write, count, seconds):
    write(tmp_path / "rows.jsonl", count)
    took, memory = import_alone(tmp_path / "rows.jsonl", tmp_path / "tasks")
    (tmp_path / "rows.jsonl").unlink()
    found = open_folder(tmp_path / "tasks")
    assert sum(found.groups.values()) == count
    assert took < seconds
    assert memory < GIGABYTE
    if write is write_small:
        environment = load(EnvironmentSpec(kind="math", options={"dataset": found.digest}), lambda digest: found)
        assert measure_draws(environment)[500] < 0.001
    for path in (tmp_path / "tasks").iterdir():
        path.unlink()


def measure_draws(environment) -> list[float]:
    """Return the CPU seconds of 1,000 draws, ascending, with the files in the page cache."""
    rng = random.Random(1)
    draws = [rng.randrange(1 << 62) for _ in range(1000)]
    times = []
    for draw in draws:
        started = time.thread_time()
        environment.prompt(draw)
        times.append(time.thread_time() - started)
    return sorted(times)


def test_row_of_40_megabytes__is_refused_by_name_without_being_read_whole(tmp_path):
    source = tmp_path / "rows.jsonl"
    row = json.dumps(make_row(2, prompt="x" * (40 << 20)))
    source.write_text(json.dumps(make_row(1)) + "\n" + row + "\n")
    done = subprocess.run(
        [sys.executable, "-m", "covey", "tasks", "import", source, "--out", tmp_path / "tasks"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("covey: row_too_long: rows.jsonl, row 2: the row has at least 419")
    assert "--skip-bad" in done.stderr
    assert not (tmp_path / "tasks").exists()
