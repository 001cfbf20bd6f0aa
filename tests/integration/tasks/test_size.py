"""Memory of data sets as large as published ones, and what a draw reads of them. Every run tests a slice."""

import json
import random
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from covey.environments.base import EnvironmentSpec, TaskSource
from covey.environments.registry import load
from covey.protocol.dataset_manifest import DatasetFile
from covey.tasks.dataset import DataSet, open_folder
from tests.fakes.tasks import make_row

pytestmark = pytest.mark.integration

GIGABYTE = 1 << 30
_CHILD = r"""
import re, sys
from pathlib import Path
from covey.tasks.importing import import_rows
from covey.tasks.dataset_row import Reading
from covey.tasks.sources import read_sources
import_rows(read_sources([sys.argv[1]]), Path(sys.argv[2]), Reading())
print(re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text()).group(1))
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


def import_alone(source: Path, folder: Path) -> int:
    """Return the peak memory in bytes of an import in a new process."""
    done = subprocess.run(
        [sys.executable, "-c", _CHILD, source, folder], capture_output=True, text=True, timeout=3600, check=True
    )
    return 1024 * int(done.stdout)


@pytest.mark.parametrize(
    ("write", "count"),
    [
        (write_small, 2000),
        (write_large, 20),
        pytest.param(write_small, 285_000, marks=pytest.mark.full),
        pytest.param(write_large, 2000, marks=pytest.mark.full),
    ],
)
def test_import__many_or_large_rows__in_little_memory__and_a_draw_reads_one_row(tmp_path, write, count):
    write(tmp_path / "rows.jsonl", count)
    memory = import_alone(tmp_path / "rows.jsonl", tmp_path / "tasks")
    (tmp_path / "rows.jsonl").unlink()
    found = open_folder(tmp_path / "tasks")
    assert sum(found.groups.values()) == count
    assert memory < GIGABYTE
    if write is write_small:
        environment = load(EnvironmentSpec(kind="math", options={"dataset": found.digest}), lambda digest: found)
        assert max(measure_draws(environment, found)) < 5000, "an index entry and a row of 1 to 2 kB"
    for path in (tmp_path / "tasks").iterdir():
        path.unlink()


def measure_draws(environment: TaskSource, found: DataSet) -> list[int]:
    """Return the number of bytes of the data set that each of 1,000 draws reads."""
    rng, read, sizes = random.Random(1), found._content.read, []

    def count(file: DatasetFile, offset: int, size: int) -> bytes:
        sizes[-1] += size
        return read(file, offset, size)

    found._content = SimpleNamespace(read=count)
    for _ in range(1000):
        sizes.append(0)
        environment.prompt(rng.randrange(1 << 62))
    assert min(sizes) > 0
    return sizes


def test_row_of_40_megabytes__is_refused_by_name_without_being_read_whole(tmp_path):
    source = tmp_path / "rows.jsonl"
    row = json.dumps(make_row(2, prompt="x" * (40 << 20)))
    source.write_text(json.dumps(make_row(1)) + "\n" + row + "\n")
    done = subprocess.run(
        [sys.executable, "-m", "covey", "tasks", "import", source, "--out", tmp_path / "tasks"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("covey: row_too_long: rows.jsonl, row 2: the row has at least 419")
    assert "--skip-bad" in done.stderr
    assert not (tmp_path / "tasks").exists()
