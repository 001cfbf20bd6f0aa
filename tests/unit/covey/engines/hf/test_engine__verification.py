"""In float32 a replay accepts honest work of any batch shape, and each cheat is detected by its signal."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from covey.engines.base import Completion, GenerationRequest, Replay, ReplayRequest
from covey.engines.hf.engine import HuggingFaceEngine
from covey.model.policy_files import load_model, load_tokenizer
from covey.model.tiny import tiny_folder
from covey.protocol.thresholds import Thresholds
from covey.toploc.closeness import is_within
from covey.toploc.proofs import TOP_K, WINDOW, build_many, compare_many, find_tops
from covey.toploc.topk import EVERYTHING, Capture, Top, join

pytestmark = pytest.mark.unit

LIMITS = Thresholds()
CAPTURE = Capture(window=WINDOW, top_k=TOP_K)

Engines = tuple[HuggingFaceEngine, list[GenerationRequest]]


@pytest.fixture(params=["qwen", "llama"])
def honest(
    request: pytest.FixtureRequest,
    qwen: HuggingFaceEngine,
    llama: HuggingFaceEngine,
    short_requests: list[GenerationRequest],
    long_requests: list[GenerationRequest],
) -> Engines:
    return (qwen, short_requests) if request.param == "qwen" else (llama, long_requests)


def judge(
    engine: HuggingFaceEngine,
    requests: Sequence[GenerationRequest],
    completions: Sequence[Completion],
    temperature: float = 1.0,
) -> set[str]:
    """Replay and compare one submission as a validator does, and return the signals beyond the limits."""
    replays = engine.replay(
        [
            ReplayRequest(prompt=r.prompt, tokens=c.tokens, seed=r.seed)
            for r, c in zip(requests, completions, strict=True)
        ],
        temperature=temperature,
        capture=CAPTURE,
    )
    return compare(completions, replays)


def compare(completions: Sequence[Completion], replays: Sequence[Replay]) -> set[str]:
    """Return all signals that are beyond the limits of a pool. Empty for honest work."""
    pairs = list(zip(completions, replays, strict=True))
    compared = compare_many(build_many([c.tops for c in completions]), [r.tops for r in replays])
    windows = [distances for completion in compared for distances in completion]
    margins = np.concatenate([r.margins for _, r in pairs])
    deviations = np.concatenate([np.abs(np.array(c.logprobs, np.float32) - r.logprobs) for c, r in pairs])
    within = {
        "proof": all(is_within(LIMITS, each) for each in windows),
        "margin": bool((margins <= LIMITS.margin_max).all()),
        "logprob": deviations.max() <= LIMITS.logprob_max and deviations.mean() <= LIMITS.logprob.mean,
    }
    return {signal for signal, is_within_limits in within.items() if not is_within_limits}


def perturbed(folder: Path, fraction: float, seed: int = 0) -> HuggingFaceEngine:
    """Return the same policy with a relative error of one percent in a fraction of its weights."""
    model = load_model(folder, "float32")
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            hit = torch.rand(weight.shape, generator=generator) < fraction
            weight.mul_(1 + 0.01 * torch.randn(weight.shape, generator=generator) * hit)
    return HuggingFaceEngine.from_model(model, load_tokenizer(folder))


def with_tokens(completion: Completion, tokens: tuple[int, ...], tops: tuple[Top, ...] | None = None) -> Completion:
    n = len(tokens)
    return Completion(
        policy_version=0,
        tokens=tokens,
        logprobs=completion.logprobs[:n],
        tops=completion.tops if tops is None else tops,
        finished=tokens[-1] == 1,
    )


@pytest.mark.parametrize(("worker_batch", "validator_batch"), [(64, 64), (64, 5), (1, 16), (7, 64)])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_replay__honest_work__is_accepted_for_any_batch_shape(
    honest: Engines, worker_batch: int, validator_batch: int, temperature: float
) -> None:
    engine, requests = honest
    worker = HuggingFaceEngine.from_model(engine._require_model(), engine.tokenizer, max_batch=worker_batch)
    validator = HuggingFaceEngine.from_model(engine._require_model(), engine.tokenizer, max_batch=validator_batch)
    completions = worker.generate(requests, temperature=temperature, capture=CAPTURE)
    assert judge(validator, requests, completions, temperature) == set()


def test_replay__honest_order_changed__is_accepted(honest: Engines) -> None:
    engine, requests = honest
    completions = engine.generate(requests, temperature=1.0, capture=CAPTURE)
    assert judge(engine, requests[::-1], completions[::-1]) == set()


def test_replay__other_seed__is_found_by_the_margin(honest: Engines) -> None:
    engine, requests = honest
    other = [GenerationRequest(prompt=r.prompt, seed=r.seed + 1, max_tokens=r.max_tokens) for r in requests]
    assert "margin" in judge(engine, requests, engine.generate(other, temperature=1.0, capture=CAPTURE))


def test_replay__other_seed_in_one_completion__is_found_by_the_margin(
    llama: HuggingFaceEngine, long_requests: list[GenerationRequest]
) -> None:
    completions = llama.generate(long_requests, temperature=1.0, capture=CAPTURE)
    first = long_requests[0]
    other = GenerationRequest(prompt=first.prompt, seed=first.seed + 1, max_tokens=first.max_tokens)
    completions[0] = llama.generate([other], temperature=1.0, capture=CAPTURE)[0]
    assert "margin" in judge(llama, long_requests, completions)


@pytest.mark.parametrize("temperature", [0.7, 0.0])
def test_replay__other_temperature__is_found_over_a_submission(honest: Engines, temperature: float) -> None:
    engine, requests = honest
    assert "margin" in judge(engine, requests, engine.generate(requests, temperature=temperature, capture=CAPTURE))


@pytest.mark.parametrize("fraction", [1.0, 0.01])
def test_replay__one_percent_off__is_found_without_the_margin(
    honest: Engines, llama_folder: Path, fraction: float
) -> None:
    engine, requests = honest
    folder = tiny_folder() if engine.hidden_size == 96 else llama_folder
    completions = perturbed(folder, fraction).generate(requests, temperature=1.0, capture=CAPTURE)
    replays = engine.replay(
        [
            ReplayRequest(prompt=r.prompt, tokens=c.tokens, seed=r.seed)
            for r, c in zip(requests, completions, strict=True)
        ],
        temperature=1.0,
        capture=CAPTURE,
    )
    assert compare(completions, replays) != set()
    # Each single completion is detected too, even if every token matches.
    for completion, replay in zip(completions, replays, strict=True):
        won = Replay(
            tops=replay.tops,
            logprobs=replay.logprobs,
            margins=np.zeros_like(replay.margins),
        )
        assert compare([completion], [won]) & {"proof", "logprob"}


def test_replay__other_model_writes_and_the_true_one_proves__is_found_by_the_margin(
    llama: HuggingFaceEngine, llama_folder: Path, long_requests: list[GenerationRequest]
) -> None:
    written = perturbed(llama_folder, 1.0, seed=4).generate(long_requests, temperature=1.0, capture=CAPTURE)
    claims = [
        ReplayRequest(prompt=r.prompt, tokens=c.tokens, seed=r.seed)
        for r, c in zip(long_requests, written, strict=True)
    ]
    replays = llama.replay(claims, temperature=1.0, capture=CAPTURE)
    proven = [
        Completion(
            policy_version=0, tokens=c.tokens, logprobs=tuple(r.logprobs.tolist()), tops=r.tops, finished=c.finished
        )
        for c, r in zip(written, replays, strict=True)
    ]
    assert compare(proven, replays) == {"margin"}


@pytest.mark.parametrize("place", [0, 1, -1])
def test_replay__one_swapped_token__is_found_by_the_margin(honest: Engines, place: int) -> None:
    engine, requests = honest
    completions = engine.generate(requests, temperature=1.0, capture=CAPTURE)
    tokens = list(completions[3].tokens)
    tokens[place] = tokens[place] + 1 if tokens[place] < 258 else 5
    completions[3] = with_tokens(completions[3], tuple(tokens))
    assert "margin" in judge(engine, requests, completions)


def test_replay__early_end__is_found_by_the_margin(
    llama: HuggingFaceEngine, long_requests: list[GenerationRequest]
) -> None:
    completions = llama.generate(long_requests, temperature=1.0, capture=CAPTURE)
    (whole,) = llama.generate([long_requests[2]], temperature=1.0, capture=EVERYTHING)
    (tops,) = find_tops([join(whole.tops)[:10]], CAPTURE)
    completions[2] = with_tokens(completions[2], (*completions[2].tokens[:9], 1), tops)
    assert "margin" in judge(llama, long_requests, completions)


def test_replay__changed_logprobs__are_found_by_the_logprob(
    llama: HuggingFaceEngine, long_requests: list[GenerationRequest]
) -> None:
    completions = llama.generate(long_requests, temperature=1.0, capture=CAPTURE)
    moved = [
        Completion(
            policy_version=0,
            tokens=c.tokens,
            logprobs=tuple(p + 1e-4 for p in c.logprobs),
            tops=c.tops,
            finished=c.finished,
        )
        for c in completions
    ]
    assert judge(llama, long_requests, moved) == {"logprob"}


def test_replay__proofs_of_another_completion__are_found_by_the_proof(
    llama: HuggingFaceEngine, long_requests: list[GenerationRequest]
) -> None:
    requests = [GenerationRequest(prompt=r.prompt, seed=r.seed, max_tokens=20) for r in long_requests]
    completions = llama.generate(requests, temperature=1.0, capture=CAPTURE)
    kept = [i for i, c in enumerate(completions) if len(c.tokens) == 20]
    chosen, rest = [requests[i] for i in kept], [completions[i] for i in kept]
    stolen = [
        Completion(policy_version=0, tokens=c.tokens, logprobs=c.logprobs, tops=other.tops, finished=c.finished)
        for c, other in zip(rest, rest[1:] + rest[:1], strict=True)
    ]
    assert "proof" in judge(llama, chosen, stolen)
