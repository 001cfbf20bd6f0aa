"""Two policies for the engine tests.

One is the shipped tiny Qwen2 (tied embeddings, half trained), the other a random tiny Llama (untied).
"""

from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from covey.engines.base import GenerationRequest
from covey.engines.hf.engine import HuggingFaceEngine
from covey.environments.registry import DEMO, load
from covey.model.policy_files import save_policy
from covey.model.prompts import RAW, encode_prompt
from covey.model.tiny import build_tokenizer, tiny_folder


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def llama_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = LlamaConfig(
        vocab_size=259, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, initializer_range=0.2, tie_word_embeddings=False,
        pad_token_id=0, eos_token_id=1, bos_token_id=2,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(11)
        model = LlamaForCausalLM(config)
    folder = tmp_path_factory.mktemp("llama")
    save_policy(model, build_tokenizer(), folder, "bfloat16")
    return folder


@pytest.fixture(scope="session")
def qwen() -> HuggingFaceEngine:
    """Engine that all tests share. A test that loads other weights builds its own engine."""
    engine = HuggingFaceEngine()
    engine.load_policy(tiny_folder(), 0)
    return engine


@pytest.fixture(scope="session")
def llama(llama_folder: Path) -> HuggingFaceEngine:
    engine = HuggingFaceEngine(max_batch=32)
    engine.load_policy(llama_folder, 0)
    return engine


@pytest.fixture(scope="session")
def short_requests() -> list[GenerationRequest]:
    """Requests of one submission of the demo: 16 prompts of 53 to 55 tokens, 8 siblings each, at most 8 tokens."""
    environment, tokenizer = load(DEMO), build_tokenizer()
    prompts = [tuple(encode_prompt(tokenizer, environment.prompt(draw).text, format=RAW)) for draw in range(16)]
    return [
        GenerationRequest(prompt=prompt, seed=(i * 8 + j) * 0x9E3779B97F4A7C15 % 2**63, max_tokens=8)
        for i, prompt in enumerate(prompts)
        for j in range(8)
    ]


@pytest.fixture(scope="session")
def long_requests() -> list[GenerationRequest]:
    """Twelve requests with ragged prompts and limits of 40 to 73 tokens, for full windows and short last ones."""
    return [
        GenerationRequest(
            prompt=(2, *range(3 + i, 10 + 4 * i)), seed=i * 0x9E3779B97F4A7C15 % 2**63, max_tokens=40 + 3 * i
        )
        for i in range(12)
    ]
