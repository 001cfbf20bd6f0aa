"""The seeded sampler against a softmax with an exponential race, and its bits against torch operations.

On a GPU times are those of calls in a CUDA graph, in which the host waits for nothing, as decoding without a wait would
see them.  A second row has the time of calls from Python, whose launches take longer than small batches.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks.gpu.random_models import TINY_VOCABULARY, VOCABULARY
from benchmarks.gpu.section_run import SectionRun
from benchmarks.measurement import Bar
from covey.sampling import torch_sampler
from covey.sampling.sampler import sample, score
from covey.sampling.torch_sampler import Scores

BATCHES = (1, 16, 64, 256)
AIMED = (64, 256)
"""Batches whose time has an aim."""
TEMPERATURE = 0.7
CALLS = 20
"""Number of calls per run, and in a CUDA graph."""
SCORES = 100_000_000
"""Number of scores whose bits are compared."""
WORDS = 1 << 32
"""Number of words that the noise can be computed from."""
PEER = "softmax and race"


def measure(run: SectionRun) -> None:
    """Measure the section."""
    for rows in BATCHES:
        run.attempt(f"sample, {rows} rows", lambda rows=rows: measure_sample(run, rows), seconds=4)  # type: ignore[misc]
    run.attempt("bits", lambda: compare_bits(run), seconds=8)
    run.attempt("replay of rows", lambda: measure_score(run), seconds=8)
    if run.checks_noise:
        run.attempt("noise", lambda: compare_noise(run), seconds=20)


def draw_rows(run: SectionRun, rows: int, *, key: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Return logits float32[rows, V], seeds int64[rows] and positions int64[rows] on the run's device."""
    vocabulary = run.pick(VOCABULARY, TINY_VOCABULARY)
    generator = torch.Generator(run.device).manual_seed(key)
    logits = torch.randn(rows, vocabulary, device=run.device, generator=generator) * 3
    seeds, positions = torch.randint(0, 1 << 62, (2, rows), device=run.device, generator=generator)
    return logits, seeds, positions & 0xFFFF


def race_exponentially(logits: Tensor) -> Tensor:
    """Sample a token of each row without seeds: the peer."""
    probabilities = logits.softmax(-1)
    return probabilities.div_(torch.empty_like(probabilities).exponential_()).argmax(-1)


def measure_sample(run: SectionRun, rows: int) -> None:
    """Record the microseconds of a call of `sample` and of the peer."""
    logits, seeds, positions = draw_rows(run, rows)

    def seeded() -> None:
        sample(logits, seeds, positions, TEMPERATURE)

    def plain() -> None:
        race_exponentially(logits)

    case, aim = f"sample, {rows} rows", Bar(most=0.25) if rows in AIMED else None
    ours, peer = (run.time(call, calls=CALLS) for call in (seeded, plain))
    if run.device == "cuda":
        run.record_times(f"{case}, from Python", ours, peer, "us", peer=PEER)
        ours, peer = (time_captured(run, call) for call in (seeded, plain))
    run.record_times(case, ours, peer, "us", peer=PEER, aim=aim, memory_gb=run.read_peak_gb())


def time_captured(run: SectionRun, call: Callable[[], None]) -> list[float]:
    """Return the seconds of a call in a CUDA graph.  The call must have been made before."""
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(side):
        call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(CALLS):
            call()
    return [seconds / CALLS for seconds in run.time(graph.replay)]


def find_scores(logits: Tensor, seeds: Tensor, positions: Tensor, claims: Tensor) -> tuple[Tensor, Tensor]:
    """Return tokens and margins of the sampler under test: Triton's kernels, or the compiled search of CPUs."""
    if logits.is_cuda:
        from covey.sampling import triton_sampler

        found: Scores = triton_sampler.race(logits, seeds, positions, TEMPERATURE, claims=claims)
        return found.tokens, found.margins
    tokens = sample(logits, seeds, positions, TEMPERATURE).tokens
    return tokens, score(logits, claims, seeds, positions, TEMPERATURE).margins


def compare_bits(run: SectionRun) -> None:
    """Record how many tokens and margins differ from those of torch operations."""
    rows, different, compared = run.pick(64, 8), 0, 0
    while compared < run.pick(SCORES, 20_000):
        logits, seeds, positions = draw_rows(run, rows, key=compared)
        claims = torch.randint(0, logits.shape[1], (rows,), device=run.device)
        tokens, margins = find_scores(logits, seeds, positions, claims)
        wanted = torch_sampler.race(logits, seeds, positions, TEMPERATURE, claims=claims)
        bits = margins.view(torch.int32) != wanted.margins.view(torch.int32)
        different += int((tokens != wanted.tokens).sum() + bits.sum())
        compared += logits.numel()
    run.record(
        "bits", different, "different", n=compared, peer="torch operations", aim=Bar(most=0), is_value_aimed=True,
        memory_gb=run.read_peak_gb(),
    )  # fmt: skip


def measure_score(run: SectionRun) -> None:
    """Record the milliseconds of scoring the claimed tokens of many rows, as in a replay."""
    rows = run.pick(4096, 64)
    logits, seeds, positions = draw_rows(run, rows)
    claims = torch.randint(0, logits.shape[1], (rows,), device=run.device)
    ours = run.time(lambda: score(logits, claims, seeds, positions, TEMPERATURE))
    memory = run.read_peak_gb()
    peer = run.time(lambda: logits.log_softmax(-1).gather(1, claims[:, None]))
    run.record_times(f"replay of {rows} rows", ours, peer, "ms", peer="log_softmax and gather", memory_gb=memory)


def compare_noise(run: SectionRun) -> None:
    """Record for how many words the kernels' noise differs from that of torch operations."""
    from benchmarks.gpu.noise_kernel import count_different

    words = run.pick(WORDS, 1 << 16)
    run.record(
        "noise", count_different(words, run.device), "different", n=words, peer="torch operations", aim=Bar(most=0),
        is_value_aimed=True, memory_gb=run.read_peak_gb(),
    )  # fmt: skip
