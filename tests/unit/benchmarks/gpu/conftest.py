"""A run of a section with tiny sizes on the CPU."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from benchmarks.gpu.section_rows import SectionRow, read_rows
from benchmarks.gpu.section_run import SectionRun


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def run(tmp_path: Path) -> SectionRun:
    return SectionRun(
        section="sampler", device="cpu", is_tiny=True, ends=time.monotonic() + 600, file=tmp_path / "rows.jsonl"
    )


@pytest.fixture
def rows(run: SectionRun) -> Callable[[], dict[str, SectionRow]]:
    """Return a function that reads the recorded rows by case."""
    return lambda: {row.case: row for row in read_rows(run.file)}
