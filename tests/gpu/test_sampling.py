"""The sampler's kernels for GPUs, compared with torch operations and with the compiled sampler for CPUs.

On a machine without a GPU, Triton's interpreter runs the same kernels on the CPU: `tests/integration/
engines/test_triton_sampler.py` starts these tests so. The interpreter takes 40 ms for a program, so it gets few rows.
"""

import os
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor

from covey.sampling import sampler, torch_sampler
from covey.sampling.noise import gumbel, philox_words
from covey.sampling.sampler import sample, score

IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if IS_INTERPRETED else "cuda"
ROWS = 2 if IS_INTERPRETED else 64
"""Number of rows of a case."""

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not (IS_INTERPRETED or torch.cuda.is_available()), reason="no CUDA device"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),  # numpy computes when interpreted
]

KINDS = ("normal", "flat", "wide", "peaked", "ties", "masked", "huge", "sorted")
INF, NAN, LOWEST = float("inf"), float("nan"), torch.finfo(torch.float32).min


def race_with_kernels(*args: object, claims: Tensor | None = None) -> torch_sampler.Scores:
    triton_sampler = pytest.importorskip("covey.sampling.triton_sampler")
    return triton_sampler.race(*args, claims=claims)  # type: ignore[no-any-return]


def draw_keys(n: int) -> tuple[Tensor, Tensor]:
    """Return seeds of 64 bits and positions of 32 bits, with the extremes in the first rows."""
    upper, lower, positions = torch.randint(0, 2**32, (3, n), generator=torch.Generator().manual_seed(n))
    seeds = (upper << 32) | lower
    for row, (seed, position) in enumerate([(2**63 - 1, 2**31), (0, 2**32 - 1), (-1, 0), (1, 2**31 - 1)][:n]):
        seeds[row], positions[row] = seed, position
    return seeds, positions


def draw_logits(kind: str, n: int, size: int) -> Tensor:
    generator = torch.Generator().manual_seed(size)
    logits = torch.randn(n, size, generator=generator) * 3
    if kind == "flat":
        logits.fill_(1.5)
    elif kind == "wide":
        logits *= 10
    elif kind == "peaked":
        logits[:, size // 3] += 40
    elif kind == "ties":  # a unit in the last place is 8, so many scores are equal
        logits.fill_(2.0**26)
        logits[:, size // 2] += 8
    elif kind == "masked":
        logits.masked_fill_(torch.rand(n, size, generator=generator) < 0.9, -INF)
    elif kind == "huge":
        logits *= 1e37
    elif kind == "sorted":
        logits = (logits * 4).sort(dim=1).values
    return logits


def list_edges(size: int) -> Iterator[Tensor]:
    """Yield logits with values at which arithmetic or comparisons behave in a special way, float32[n, size]."""
    places = (size - 1, size // 2) if IS_INTERPRETED else (0, size - 1, size // 2)
    for value in (NAN, INF, -INF, LOWEST, -LOWEST, 1e-45, -0.0):
        logits = torch.zeros(len(places), size)
        for row, place in enumerate(places):
            logits[row, place:] = value
        yield logits
        yield logits.flip(1)
    yield torch.full((3, size), LOWEST) * torch.tensor([[0.7], [0.69999993], [0.70000005]])
    nan_after_infinity = torch.full((3, size), INF)
    nan_after_infinity[:, size // 2 :: 3] = NAN
    yield nan_after_infinity


def require_equal(logits: Tensor, temperature: float) -> None:
    """Compare the kernels' tokens and margins with those of torch operations to the bit, and log-probabilities with
    those in float64.
    """
    n, size = logits.shape
    seeds, positions = draw_keys(n)
    claims = torch.randint(0, size, (n,), generator=torch.Generator().manual_seed(n + 1))
    given = [each.to(DEVICE) for each in (logits, seeds, positions)]
    scored = race_with_kernels(*given, temperature, claims=claims.to(DEVICE))
    expected = torch_sampler.race(*given, temperature, claims=claims.to(DEVICE))
    assert torch.equal(scored.tokens, expected.tokens)
    bits, wanted = (each.margins.nan_to_num(7e30).view(torch.int32) for each in (scored, expected))
    assert torch.equal(bits, wanted)
    # The spread of the logits bounds the rounding of a difference of two of them.
    exact = logits.double().log_softmax(dim=-1).gather(1, claims[:, None])[:, 0]
    torch.testing.assert_close(scored.logprobs.cpu().double(), exact, rtol=1e-6, atol=2e-5, equal_nan=True)


@pytest.mark.parametrize("temperature", [0.7] if IS_INTERPRETED else [0.6, 0.7, 1.0, 1.3])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32] if IS_INTERPRETED else [torch.float32, torch.bfloat16])
def test_race__any_logits__equals_torch_operations(kind: str, temperature: float, dtype: torch.dtype) -> None:
    require_equal(draw_logits(kind, ROWS, 1_100 if IS_INTERPRETED else 151_936).to(dtype), temperature)


@pytest.mark.parametrize("size", [259] if IS_INTERPRETED else [1, 2, 259, 1_024, 5_000])
def test_race__special_values__equals_torch_operations(size: int) -> None:
    for logits in list_edges(size):
        for temperature in (0.7,) if IS_INTERPRETED else (0.01, 0.7, 1.0, 3e38):
            require_equal(logits, temperature)


def test_race__rows_of_another_layout__equals_contiguous_ones() -> None:
    logits = draw_logits("normal", ROWS, 260)
    require_equal(logits[:, :251], 0.7)  # an odd stride
    require_equal(logits.T.contiguous().T, 0.7)  # columns that are not adjacent
    require_equal(logits[:, :1], 0.7)  # a vocabulary of one token
    require_equal(logits.bfloat16(), 0.7)


def test_race__claims_that_are_not_tokens__get_nan() -> None:
    seeds, positions = (each.to(DEVICE) for each in draw_keys(4))
    claims = torch.tensor([-1, 4, 5, 2**40], device=DEVICE)
    found = race_with_kernels(torch.zeros(4, 5, device=DEVICE), seeds, positions, 0.7, claims=claims)
    assert found.margins.isnan().tolist() == found.logprobs.isnan().tolist() == [True, False, True, True]
    assert not race_with_kernels(torch.zeros(0, 5, device=DEVICE), seeds[:0], positions[:0], 0.7).tokens.tolist()


@pytest.mark.parametrize("vocabulary", [3_003] if IS_INTERPRETED else [259, 32_000, 151_937])
def test_race__random_logits__equals_the_compiled_sampler_of_cpus(vocabulary: int) -> None:
    logits = draw_logits("normal", ROWS, vocabulary)
    seeds, positions = draw_keys(ROWS)
    claims = torch.randint(0, vocabulary, (ROWS,))
    given = [each.to(DEVICE) for each in (logits, seeds, positions)]
    drawn, scored = race_with_kernels(*given, 0.7), race_with_kernels(*given, 0.7, claims=claims.to(DEVICE))
    tokens, logprobs = sample(logits, seeds, positions, 0.7)
    assert torch.equal(drawn.tokens.cpu(), tokens)
    assert torch.equal(scored.tokens.cpu(), tokens)
    torch.testing.assert_close(drawn.logprobs.cpu(), logprobs, rtol=1e-6, atol=2e-5)
    assert torch.equal(scored.margins.cpu(), score(logits, claims, seeds, positions, 0.7).margins)


cuda_only = pytest.mark.skipif(IS_INTERPRETED, reason="no CUDA device")


@cuda_only
def test_race__captured_in_a_graph__reads_new_contents() -> None:
    logits, (seeds, positions) = draw_logits("normal", 8, 32_000).cuda(), (each.cuda() for each in draw_keys(8))
    race_with_kernels(logits, seeds, positions, 0.7)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = race_with_kernels(logits, seeds, positions, 0.7)
        positions.add_(1)
    for _ in range(3):
        expected = torch_sampler.race(logits, seeds, positions, 0.7)
        graph.replay()
        assert torch.equal(captured.tokens, expected.tokens)
        logits.copy_(logits.roll(977, dims=1))


@cuda_only
def test_sample_and_score__on_cuda__have_the_tokens_and_margins_of_a_cpu() -> None:
    n, vocabulary = 64, 32_000
    logits = draw_logits("normal", n, vocabulary)
    seeds, positions = np.arange(n, dtype=np.uint64) * 2**57, np.arange(n, dtype=np.uint32)
    claims = torch.randint(0, vocabulary, (n,))
    for temperature in (0.0, 0.6, 1.0):
        here, there = (sample(each, seeds, positions, temperature) for each in (logits, logits.cuda()))
        assert torch.equal(there.tokens.cpu(), here.tokens)
        margins = score(logits.cuda(), claims.cuda(), seeds, positions, temperature).margins
        assert torch.equal(margins.cpu(), score(logits, claims, seeds, positions, temperature).margins)
    assert sampler._load_race(torch.device("cuda", 0)).__module__ == "covey.sampling.triton_sampler"


@cuda_only
@pytest.mark.parametrize("vocabulary", [259, 151_937])
def test_noise__of_torch_operations_on_cuda__equals_numpy(vocabulary: int) -> None:
    seeds, positions = draw_keys(4)
    arrays = seeds.numpy().view(np.uint64), positions.numpy().astype(np.uint32), vocabulary
    words = torch_sampler.compute_words(seeds.cuda(), positions.cuda(), vocabulary)
    assert np.array_equal(words.cpu().numpy(), philox_words(*arrays))
    noise = torch_sampler.compute_gumbel(seeds.cuda(), positions.cuda(), vocabulary)
    assert np.array_equal(noise.cpu().numpy(), gumbel(*arrays))


def test_noise__of_given_words__is_that_of_torch_operations() -> None:
    pytest.importorskip("triton")
    from benchmarks.gpu import noise_kernel

    assert noise_kernel.count_different(3_000 if IS_INTERPRETED else 1 << 25, DEVICE) == 0
