"""The engine of a run: its device, its memory, and who takes turns."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from covey.engines.vllm.engine import VllmEngine
from covey.engines.vllm.engine_process import build_too_large
from covey.errors import OperatorError
from covey.model.policy_files import load_tokenizer
from covey.model.tiny import tiny_folder
from covey.standalone import run_engine
from covey.standalone.config import TrainConfig
from covey.standalone.preparation import prepare
from covey.standalone.run_engine import EngineTurns, RunEngine, build_run_engine
from trainer.monitoring.evaluation import explain_evaluation

pytestmark = pytest.mark.unit
VLLM = {"sampling.engine": "vllm", "sampling.vllm.interpreter": "/usr/bin/python3", "eval.prompts": 4}


@pytest.fixture
def build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[RunEngine, dict[str, Any]]]:
    """Return a function that builds the engine of a run on a GPU, and returns the arguments of the engine, too."""
    arguments: dict[str, Any] = {}

    def build_engine(name: str, **values: Any) -> object:
        arguments.update(values)
        return VllmEngine(options=values["vllm"]) if name == "vllm" else object()

    monkeypatch.setattr(run_engine, "build_engine", build_engine)

    def build(device: str = "cuda", **values: object) -> tuple[RunEngine, dict[str, Any]]:
        named = {name.replace("__", "."): value for name, value in values.items()}
        plan = prepare(TrainConfig.load(None, {"home": str(tmp_path), "device": "cpu"} | VLLM | named, {}))
        environment, tokenizer = plan.load_environment(), load_tokenizer(tiny_folder())
        built = build_run_engine(
            plan.engine, plan.config, plan.params, environment=environment, tokenizer=tokenizer, learner=device
        )
        return built, arguments

    return build


@pytest.mark.parametrize("values", [{}, {"sampling__device": "cuda:0"}])
def test_build_run_engine__vllm_on_the_learners_gpu__sleeps_and_evaluates(build, values: dict[str, Any]):
    built, arguments = build(**values)
    assert (built.device, built.evaluates, built.is_alone) == (values.get("sampling__device", "cuda"), True, True)
    assert (arguments["vllm"].enable_sleep_mode, arguments["vllm"].gpu_memory_utilization) == (True, 0.4)
    assert arguments["vllm"].max_model_len == 64 + 8  # the pool's default lengths, which all held-out questions fit


@pytest.mark.parametrize(
    "values", [{"sampling__max_staleness": 1}, {"sampling__vllm.enable_sleep_mode": False}, {"device": "cpu"}]
)
def test_build_run_engine__no_turns_or_no_gpu__never_sleeps(build, values: dict[str, Any]):
    built, arguments = build(**values)
    assert (built.evaluates, built.is_alone, arguments["vllm"].enable_sleep_mode) == (True, False, False)


def test_build_run_engine__device_of_its_own__has_all_its_memory(build):
    built, arguments = build(sampling__device="cuda:1")
    assert (built.device, built.is_alone, arguments["device"]) == ("cuda:1", False, "cuda:1")
    assert arguments["vllm"].gpu_memory_utilization == 0.9


def test_build_run_engine__hf__has_another_engine_for_evaluations(build):
    built, _ = build(sampling__engine="hf")
    assert (built.evaluates, built.is_alone) == (False, False)


def test_build_run_engine__long_held_out_question__fits(build):
    _, arguments = build(sampling__max_prompt_tokens=8)
    assert arguments["vllm"].max_model_len > 8 + 8


def test_engine_turns__each__frees_memory_before_and_sleeps_after():
    seen: list[str] = []
    turns = EngineTurns(before=lambda: seen.append("before"), after=lambda: seen.append("after"))
    with turns:
        seen.append("generate")
    with pytest.raises(ValueError, match="broken"), turns:
        raise ValueError("broken")
    with turns:
        pass
    assert seen == ["before", "generate", "after", "before", "before", "after"]


def test_engine_turns__model_does_not_fit__the_fix_names_settings_of_the_run():
    match = r"did not start: .* 3 GiB\b.*sampling\.vllm\.gpu_memory_utilization"
    with pytest.raises(OperatorError, match=match) as caught, EngineTurns(), explain_evaluation():
        raise build_too_large("3 GiB are free")
    assert (caught.value.code, "eval.max_batch" in str(caught.value)) == ("model_too_large", False)
    with EngineTurns():  # its lock was released
        pass
