"""The engine `hf`: generation against transformers, replay against generation, and the replay of a long completion.

Generation and replay are those of 1.5B in bfloat16.  A batch of 0.1B in float32 shows what the host takes per token,
which limits small models.  The long completion is replayed by 0.6B in float32, whose memory decides which cards can
validate it.
"""

import random
from collections.abc import Sequence
from statistics import median

import torch
from torch import Tensor
from transformers import PreTrainedModel

from benchmarks.gpu.random_models import (
    CAPTURE,
    LARGE,
    LEAST,
    SMALL,
    build_claims,
    build_model,
    count_tokens,
    draw_requests,
    open_engine,
)
from benchmarks.gpu.section_run import SectionRun
from benchmarks.measurement import Bar
from covey.engines.base import Completion, GenerationRequest, ReplayRequest
from covey.engines.hf.engine import HuggingFaceEngine
from covey.model.policy_files import get_head
from covey.model.tiny import PAD

BATCH = 64
RATE = Bar(least=0.67)
"""Least rate of a generation with proofs, as a part of that of transformers without them."""
CHUNK = 512
"""Number of predictions of which the peer computes the logits at once: 311 MB in float32."""


def measure(run: SectionRun) -> None:
    """Measure the section."""
    run.attempt("small generation", lambda: measure_small(run), seconds=10)
    run.attempt("generation and replay", lambda: measure_batch(run), seconds=35)
    run.attempt("long replay", lambda: measure_long(run), seconds=20)


def measure_small(run: SectionRun) -> None:
    """Record the rate of generation of 0.1B in float32, for 16 prompts without siblings."""
    model, batch = build_model(run, LEAST), run.pick(16, 4)
    vocabulary, limits = int(get_head(model).weight.shape[0]), [run.pick(128, 4)] * batch
    measure_generation(
        run, LEAST, model, draw_requests(limits, prompt=run.pick(64, 8), vocabulary=vocabulary, siblings=1)
    )


def measure_generation(
    run: SectionRun, shape: str, model: PreTrainedModel, requests: Sequence[GenerationRequest]
) -> HuggingFaceEngine:
    """Record the rate of a generation with proofs and that of transformers; return the engine.

    All requests run together.
    """
    peer = run.time(lambda: generate_plainly(model, requests), repeats=2)
    engine = open_engine(model, len(requests))
    run.clear_memory()
    ours = run.time(lambda: engine.generate(requests, temperature=1.0, capture=CAPTURE), repeats=2)
    expected = sum(each.max_tokens for each in requests)
    run.record(
        f"{shape}, generation", expected / median(ours), "tokens/s", n=len(ours), peer="transformers generate",
        peer_value=expected / median(peer), aim=RATE, memory_gb=run.read_peak_gb(),
    )  # fmt: skip
    return engine


def measure_batch(run: SectionRun) -> None:
    """Record the rates of generation and replay of one batch."""
    batch, prompt = run.pick(BATCH, 8), run.pick(128, 8)
    model = build_model(run, LARGE, torch.bfloat16)
    vocabulary = int(get_head(model).weight.shape[0])
    even = draw_requests([run.pick(64, 4)] * batch, prompt=prompt, vocabulary=vocabulary)
    engine = measure_generation(run, LARGE, model, even)
    longest = run.pick(256, 16)
    limits = [longest // 4 + longest * 3 // 4 * i // (batch - 1) for i in range(batch)]
    ragged = draw_requests(limits, prompt=prompt, vocabulary=vocabulary, seed=1)
    made: list[Completion] = []
    generation = run.time(
        lambda: made.extend(engine.generate(ragged, temperature=1.0, capture=CAPTURE)), repeats=1, is_warm=True
    )
    run.clear_memory()
    claims = build_claims(ragged, made)
    replay = run.time(lambda: engine.replay(claims, temperature=1.0, capture=CAPTURE))
    tokens, memory = count_tokens(made), run.read_peak_gb()
    run.record("1.5B, replay", tokens / median(replay), "tokens/s", n=len(replay), memory_gb=memory)
    run.record_times("1.5B, replay of a batch", replay, generation, "s", peer="its generation", memory_gb=memory)


def generate_plainly(model: PreTrainedModel, requests: Sequence[GenerationRequest]) -> Tensor:
    """Sample completions of equal length with transformers' own loop."""
    tokens = torch.tensor([each.prompt for each in requests], device=model.device)
    length = requests[0].max_tokens
    with torch.inference_mode():
        made: Tensor = model.generate(  # type: ignore[operator]
            tokens,
            attention_mask=torch.ones_like(tokens),
            do_sample=True,
            top_k=0,
            max_new_tokens=length,
            min_new_tokens=length,
            pad_token_id=PAD,
        )
    return made


def measure_long(run: SectionRun) -> None:
    """Record time and memory of the replay of one long completion in float32."""
    model, rng, length = build_model(run, SMALL), random.Random(0), run.pick(16_384, 300)
    vocabulary = int(get_head(model).weight.shape[0])
    prompt, tokens = (tuple(rng.choices(range(3, vocabulary), k=size)) for size in (run.pick(256, 8), length))
    claims = [ReplayRequest(prompt=prompt, tokens=tokens, seed=5)]
    engine = open_engine(model, BATCH)
    run.clear_memory()
    ours = run.time(lambda: engine.replay(claims, temperature=1.0, capture=CAPTURE), repeats=2)
    memory = run.read_peak_gb()
    run.clear_memory()
    peer = run.time(lambda: score_plainly(model, prompt, tokens), repeats=2)
    case = "0.6B float32, replay of 16k"
    run.record_times(case, ours, peer, "s", peer="transformers prefill", memory_gb=memory)
    if memory is not None:
        run.record(
            f"{case}, memory", memory, "GB", peer="transformers prefill", peer_value=run.read_peak_gb(),
            aim=Bar(most=8.0), is_value_aimed=True, memory_gb=memory,
        )  # fmt: skip


@torch.inference_mode()
def score_plainly(model: PreTrainedModel, prompt: Sequence[int], tokens: Sequence[int]) -> Tensor:
    """Return the log-probabilities of a completion, float32[tokens], by transformers' prefill and a head in chunks."""
    ids = torch.tensor([[*prompt, *tokens]], device=model.device)
    states = model.base_model(input_ids=ids, use_cache=False).last_hidden_state[0, len(prompt) - 1 : -1]
    pairs = zip(torch.split(states, CHUNK), torch.split(ids[0, len(prompt) :], CHUNK), strict=True)
    return torch.cat(
        [(get_head(model)(part).float().log_softmax(-1).gather(1, chosen[:, None]))[:, 0] for part, chosen in pairs]
    )
