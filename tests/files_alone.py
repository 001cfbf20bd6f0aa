"""Runs every file of tests/unit in a process of its own, so that no test needs what another file has left behind.

python -m tests.files_alone [FILE ...]
"""

import os
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

TIMEOUT_S = 600.0
"""Deadline of a file in seconds."""


def run_file(file: Path) -> tuple[Path, str]:
    """Run the tests of a file. Returns the file, and its output if they failed or "" if they passed."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(file)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return file, f"{file} took more than {TIMEOUT_S:.0f} s"
    is_good = done.returncode in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
    return file, "" if is_good else done.stdout + done.stderr


def run_files(files: Iterable[Path]) -> list[Path]:
    """Run files one by one on each core, print failures, and return the files that failed."""
    failed: list[Path] = []
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as threads:
        for file, output in threads.map(run_file, files):
            if output:
                print(output, flush=True)
                failed.append(file)
    return failed


if __name__ == "__main__":
    files = [Path(each) for each in sys.argv[1:]] or sorted((Path(__file__).parent / "unit").rglob("test_*.py"))
    failed = run_files(files)
    print(f"{len(files) - len(failed)} files passed alone, {len(failed)} failed", *failed, sep="\n  ")
    sys.exit(bool(failed) or not files)
