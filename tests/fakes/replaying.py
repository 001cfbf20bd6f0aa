"""A process that replays one long completion within a memory limit: `python -m tests.fakes.replaying 2048 152000 1`.

The limit, in GiB, applies to the address space beyond what the process has when model and kernels are loaded. It prints
the peak of the resident memory beyond that in bytes, and fails if the replay needs more.
"""

import json
import random
import resource
import sys

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from covey.engines.base import ReplayRequest
from covey.engines.hf.engine import HuggingFaceEngine
from covey.model.tiny import build_tokenizer
from covey.toploc.topk import Capture

CAPTURE = Capture(window=32, top_k=128)


def build_engine(vocabulary: int, longest: int) -> HuggingFaceEngine:
    """Build a small model with a head as large as that of a large model."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocabulary, hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=longest, pad_token_id=0, eos_token_id=1, bos_token_id=2,
    )  # fmt: skip
    return HuggingFaceEngine.from_model(LlamaForCausalLM(config).train(False), build_tokenizer())


def limit_memory(extra: int) -> None:
    with open("/proc/self/statm") as statm:
        used = int(statm.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + extra, used + extra))


def read_peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main(tokens: int, vocabulary: int, gibibytes: float) -> None:
    torch.set_num_threads(1)
    engine, rng = build_engine(vocabulary, tokens + 64), random.Random(0)
    drawn = tuple(rng.randrange(3, vocabulary) for _ in range(tokens))
    claim = ReplayRequest(prompt=(2, 5, 9), tokens=drawn, seed=1 << 62)
    short = ReplayRequest(prompt=claim.prompt, tokens=drawn[:4], seed=claim.seed)
    (first,) = engine.replay([short], temperature=1.0, capture=CAPTURE)
    before = read_peak()
    limit_memory(int(gibibytes * (1 << 30)))
    (replay,) = engine.replay([claim], temperature=1.0, capture=CAPTURE)
    assert len(replay.margins) == len(replay.logprobs) == tokens
    assert len(replay.tops) == -(-tokens // CAPTURE.window)
    assert np.allclose(replay.logprobs[:4], first.logprobs, atol=1e-5)  # rows do not attend to later ones
    assert np.allclose(replay.margins[:4], first.margins, atol=1e-4)
    print(json.dumps({"extra": read_peak() - before}))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
