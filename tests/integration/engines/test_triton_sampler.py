"""The sampler's kernels for GPUs pass their own tests in Triton's interpreter, which computes on the CPU."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
TRITON = ROOT / ".triton"
"""Folder with Triton alone. It is not in the Python of the tests, because torch and vLLM act differently with it."""

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.skipif(not TRITON.is_dir(), reason="Triton is not installed: make triton"),
]


def test_kernels__in_the_interpreter__equal_torch_operations_and_the_compiled_sampler() -> None:
    command = [sys.executable, "-m", "pytest", "-p", "no:randomly", "tests/gpu/test_sampling.py"]
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": str(TRITON)}
    environment.pop("CI", None)  # the tests of graphs and of CUDA are skipped here
    ran = subprocess.run(command, check=False, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)
    assert ran.returncode == 0, ran.stdout[-3000:]
    passed = re.search(r"\b([0-9]+) passed, [0-9]+ skipped in", ran.stdout)
    assert passed is not None, ran.stdout[-3000:]
    assert int(passed[1]) >= 12
