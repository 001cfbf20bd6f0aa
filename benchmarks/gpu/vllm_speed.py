"""The engine `vllm` with sampler and proofs against plain vLLM, both with CUDA graphs, and the rate of its replay.

Both engines share the card and are started together.  Plain vLLM has the engine's arguments without its extensions.
Memory is that of the whole card.  On a CPU both compute in float32, because in bfloat16 plain vLLM uses AMX, which not
every container allows.
"""

from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from statistics import median

from benchmarks.engines.generation_speed import generate
from benchmarks.engines.vllm_peer import VllmPeer
from benchmarks.gpu.random_models import CAPTURE, TINY_VOCABULARY, VOCABULARY, build_claims, count_tokens, draw_requests
from benchmarks.gpu.section_run import SectionRun
from benchmarks.gpu.vllm_policies import build_options, read_card_gb, save_peaked
from benchmarks.measurement import Bar
from covey.engines.base import Completion, GenerationRequest
from covey.engines.vllm.engine import VllmEngine

BATCHES = {64: 256, 256: 128}
"""Tokens of a completion, by size of the batch."""
TINY_BATCHES = {8: 8}
PROMPT = 128
ROUNDS = 3
"""Number of timed runs of each side."""
ROUND_SECONDS = 15.0
"""Seconds that remain of the section's time when another round begins."""
WITH_LOGPROBS, WITHOUT = "plain", "plain_without_logprobs"
"""Modes of the peer: with the log-probabilities of the chosen tokens, which a worker needs, and without."""


def measure(run: SectionRun) -> None:
    """Measure the section."""
    batches, dtype = run.pick(BATCHES, TINY_BATCHES), "float32" if run.device == "cpu" else "bfloat16"
    engine = VllmEngine(dtype=dtype, device=run.device, max_batch=max(batches), options=build_options(run))
    with save_peaked(run) as policy, engine:
        with ThreadPoolExecutor() as threads:
            start = threads.submit(engine.load_policy, policy, 0)
            peer, failure = run.guard(lambda: open_peer(run, policy, dtype, max(batches)))
            start.result()
        try:
            for batch, tokens in batches.items():
                case = f"0.6B, batch {batch}"
                attempt = partial(measure_generation, run, engine, peer, failure, batch, tokens)
                run.attempt(case, attempt, seconds=25)
            smallest = min(batches)
            run.attempt("0.6B, replay", lambda: measure_replay(run, engine, smallest, batches[smallest]), seconds=10)
        finally:
            if peer is not None:
                peer.close()


def open_peer(run: SectionRun, policy: Path, dtype: str, batch: int) -> VllmPeer:
    """Start plain vLLM."""
    return VllmPeer(policy, dtype, batch, device=run.device, options=build_options(run))


def draw_round(run: SectionRun, batch: int, tokens: int, round_: int) -> list[GenerationRequest]:
    """Draw the requests of a round, whose prompts no other round has, so that no cache holds them."""
    vocabulary = run.pick(VOCABULARY, TINY_VOCABULARY)
    return draw_requests(
        [tokens] * batch, prompt=run.pick(PROMPT, 8), vocabulary=vocabulary, seed=1000 * batch + round_
    )


def measure_generation(
    run: SectionRun, engine: VllmEngine, peer: VllmPeer | None, failure: str, batch: int, tokens: int
) -> None:
    """Record the rates of the sampler, alone and with proofs, each against plain vLLM."""
    rates: dict[str, list[float]] = defaultdict(list)
    for round_ in range(1 + ROUNDS):
        measured = measure_round(run, engine, peer, draw_round(run, batch, tokens, 2 * round_), is_proven=False)
        measured |= measure_round(run, engine, peer, draw_round(run, batch, tokens, 2 * round_ + 1), is_proven=True)
        if not round_:  # warms up
            continue
        for name, rate in measured.items():
            rates[name].append(rate)
        if run.left < ROUND_SECONDS:
            break
    with_logprobs, without = (median(rates[mode]) if mode in rates else None for mode in (WITH_LOGPROBS, WITHOUT))
    memory, case = read_card_gb(run), f"0.6B, batch {batch}"
    for ours, suffix, peer_value, name, aim in (
        ("sampler", "", with_logprobs, "vLLM with logprobs", Bar(least=0.95)),
        ("sampler and proofs", "", with_logprobs, "vLLM with logprobs", Bar(least=0.95)),
        ("sampler and proofs", ", peer without logprobs", without, "vLLM", None),
    ):
        run.record(
            f"{case}, {ours}{suffix}", median(rates[ours]), "tokens/s", n=len(rates[ours]), peer=name,
            peer_value=peer_value, aim=aim, memory_gb=memory, note=failure,
        )  # fmt: skip


def measure_round(
    run: SectionRun, engine: VllmEngine, peer: VllmPeer | None, requests: list[GenerationRequest], *, is_proven: bool
) -> dict[str, float]:
    """Return the tokens per second of one run of each side, by its name."""
    made: list[Completion] = []
    seconds = run.time(lambda: made.extend(generate(engine, requests, with_proofs=is_proven)), repeats=1, is_warm=True)
    rates = {"sampler and proofs" if is_proven else "sampler": count_tokens(made) / seconds[0]}
    if peer is not None:
        mode = WITH_LOGPROBS if is_proven else WITHOUT
        answer = peer.run(mode, [each.prompt for each in requests], [len(each.tokens) for each in made])
        rates[mode] = answer["tokens"] / answer["wall"]
    return rates


def measure_replay(run: SectionRun, engine: VllmEngine, batch: int, tokens: int) -> None:
    """Record the rate of a replay, and that of the generation before it."""
    requests, made = draw_round(run, batch, tokens, 99), list[Completion]()
    generation = run.time(
        lambda: made.extend(engine.generate(requests, temperature=1.0, capture=CAPTURE)), repeats=1, is_warm=True
    )
    claims, count = build_claims(requests, made), count_tokens(made)
    replay = run.time(lambda: engine.replay(claims, temperature=1.0, capture=CAPTURE))
    run.record(
        "0.6B, replay", count / median(replay), "tokens/s", n=len(replay), peer="its generation",
        peer_value=count / generation[0], aim=Bar(least=40_000), is_value_aimed=True, memory_gb=read_card_gb(run),
    )  # fmt: skip
