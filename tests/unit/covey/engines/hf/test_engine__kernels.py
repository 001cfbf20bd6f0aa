"""The reference engine loads its compiled kernels before its first request."""

from pathlib import Path

import pytest

from covey.engines.base import GenerationRequest, ReplayRequest
from covey.engines.hf.engine import HuggingFaceEngine
from covey.model.policy_files import load_model, load_tokenizer
from covey.sampling.noise_kernels import compile_all

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("from_model", [True, False])
def test_engine__has_a_policy__requests_wait_for_no_kernels(
    llama_folder: Path, long_requests: list[GenerationRequest], from_model: bool
) -> None:
    compile_all.cache_clear()
    engine = HuggingFaceEngine(device="cpu:0")
    assert compile_all.cache_info().currsize == 0  # an engine without a policy does not sample
    if from_model:
        engine = HuggingFaceEngine.from_model(load_model(llama_folder, "float32"), load_tokenizer(llama_folder))
    else:
        engine.load_policy(llama_folder, 0)
    kernels = compile_all()
    loaded = [kernels.race.signatures, kernels.score_tokens.signatures]
    assert [len(each) for each in loaded] == [1, 1]
    completions = engine.generate(long_requests[:2], temperature=1.0)
    claims = [
        ReplayRequest(prompt=request.prompt, tokens=completion.tokens, seed=request.seed)
        for request, completion in zip(long_requests, completions, strict=False)
    ]
    engine.replay(claims, temperature=1.0)
    assert [kernels.race.signatures, kernels.score_tokens.signatures] == loaded
