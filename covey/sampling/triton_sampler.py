"""The seeded sampler as two Triton kernels, for logits on a GPU: a cheap pass over all logits, then a few exact scores.

The score of token v is float32(logit / T) plus its noise, in float32. `_bound` writes an upper bound of the scores of
each block of tokens. `_decide` visits the blocks of a row from the largest bound down and scores a visited block
exactly, until the next bound is below the best score. A skipped token can therefore neither win nor tie, and the result
is that of all scores for every input: a loose bound costs a visit, and changes nothing. Only integers are compared.

`sampler` imports this module when it first meets logits on a GPU. With TRITON_INTERPRET=1 the kernels run on a CPU.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# Triton compiles the functions with its decorator, and knows no annotations but its own.

import subprocess
from contextlib import nullcontext

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.errors import TritonError

from covey.sampling import noise_kernels, philox
from covey.sampling.torch_sampler import Scores

BLOCK = 1024
"""Number of tokens in a block. Tokens and scores do not depend on it. Log-probabilities do, in the last place."""
WARPS = 4
"""Number of warps of a program. It is fixed and not tuned, because log-probabilities depend on it in the last place."""

ERRORS = (TritonError, OSError, subprocess.CalledProcessError, ValueError, RuntimeError)
"""What Triton raises if it does not support the device, or finds no C compiler for its launchers."""

_MULTIPLIER_0, _MULTIPLIER_1 = tl.constexpr(philox.MULTIPLIER_0), tl.constexpr(philox.MULTIPLIER_1)
_WEYL_0, _WEYL_1 = tl.constexpr(philox.WEYL_0), tl.constexpr(philox.WEYL_1)
_ROUNDS = tl.constexpr(philox.ROUNDS)
_ONE_BITS, _FRACTION_BITS = tl.constexpr(noise_kernels.ONE_BITS), tl.constexpr(noise_kernels.FRACTION_BITS)
_ROOT_HALF_BITS = tl.constexpr(noise_kernels.ROOT_HALF_BITS)
_LN2_HIGH, _LN2_LOW = tl.constexpr(noise_kernels.LN2_HIGH), tl.constexpr(noise_kernels.LN2_LOW)
_LG1, _LG2 = tl.constexpr(noise_kernels.LG1), tl.constexpr(noise_kernels.LG2)
_LG3, _LG4 = tl.constexpr(noise_kernels.LG3), tl.constexpr(noise_kernels.LG4)
_LG5, _LG6 = tl.constexpr(noise_kernels.LG5), tl.constexpr(noise_kernels.LG6)
_LG7 = tl.constexpr(noise_kernels.LG7)
_VISITED = tl.constexpr(-(2**31))
"""Below the order of every float32."""
_NOTHING = tl.constexpr(-(2**63))
"""Below the key of every score."""
_NAN = tl.constexpr(2**31 - 1)
"""The order of NaN, which is above that of every number."""
_LOWEST = tl.constexpr(-3.4028234663852886e38)


def race(
    logits: Tensor, seeds: Tensor, positions: Tensor, temperature: float, *, claims: Tensor | None = None
) -> Scores:
    """Do what `torch_sampler.race` does, with the same tokens and margins.

    Log-probabilities may differ in the last places. After a first call with the same types, a call can be captured in a
    CUDA graph, which then reads the new contents of the tensors.
    """
    logits = logits if logits.stride(1) == 1 else logits.contiguous()
    (rows, vocabulary), device = logits.shape, logits.device
    blocks = triton.cdiv(vocabulary, BLOCK)
    bounds = torch.empty(rows, blocks, dtype=torch.int32, device=device)
    peaks, sums = torch.empty(2, rows, blocks, device=device)
    tokens = torch.empty(rows, dtype=torch.int64, device=device)
    margins, logprobs = torch.empty(2, rows, device=device)
    if rows == 0:
        return Scores(tokens, margins, logprobs)
    shape = (temperature, logits.stride(0), vocabulary, blocks)
    keys = (logits, seeds, positions)
    with torch.cuda.device(device) if logits.is_cuda else nullcontext():
        _bound[(rows * blocks,)](*keys, bounds, peaks, sums, *shape, BLOCK=BLOCK, num_warps=WARPS)
        _decide[(rows,)](
            *keys,
            tokens if claims is None else claims,
            *(bounds, peaks, sums, tokens, margins, logprobs),
            *shape,
            BLOCK=BLOCK,
            BLOCKS=triton.next_power_of_2(blocks),
            CLAIMED=claims is not None,
            num_warps=WARPS,
            enable_fp_fusion=False,  # with fused products and sums, 1 of all 2**32 words has another noise
        )
    return Scores(tokens, margins, logprobs)


@triton.jit
def _bound(logits, seeds, positions, bounds, peaks, sums, temperature, stride, vocabulary, blocks, BLOCK: tl.constexpr):
    """Write an upper bound of the scores of one block of one row, its largest logit, and its sum of exponentials."""
    row = (tl.program_id(0) // blocks).to(tl.int64)  # row * stride can exceed 2**31
    block = tl.program_id(0) % blocks
    seed, position = tl.load(seeds + row), tl.load(positions + row).to(tl.uint32)
    token = _tokens(block, BLOCK)
    logit = tl.load(logits + row * stride + token, mask=token < vocabulary, other=-float("inf")).to(tl.float32)
    score = logit * tl.div_rn(1.0, temperature) + _gumbel_bound(_words(seed, position, block, BLOCK // 4))
    top = tl.max(tl.max(tl.where(score == score, score, float("inf")), 1), 0)
    # The slack covers all roundings. Those of 1 / T, the product, two sums and the exact quotient add up to less than
    # 5e-7 times (|top| + 26), and those of the noise's bound to less than 2e-5. The bound is at least the lowest
    # float32, because the product may round to -inf when the quotient does not.
    top = tl.maximum(top, _LOWEST)
    top = tl.maximum(top * 1.000001, top * 0.999999) + 1e-4
    tl.store(bounds + row * blocks + block, _order(top))
    peak = tl.max(tl.max(logit, 1), 0)
    safe = tl.where(peak == -float("inf"), 0.0, peak)
    tl.store(peaks + row * blocks + block, peak)
    tl.store(sums + row * blocks + block, tl.sum(tl.sum(tl.exp(logit - safe), 1), 0))


@triton.jit
def _decide(
    logits, seeds, positions, claims, bounds, peaks, sums, tokens, margins, logprobs,
    temperature, stride, vocabulary, blocks, BLOCK: tl.constexpr, BLOCKS: tl.constexpr, CLAIMED: tl.constexpr,
):  # fmt: skip
    """Write the token, the margin and the log-probability of one row."""
    row = tl.program_id(0).to(tl.int64)
    line = logits + row * stride
    seed, position = tl.load(seeds + row), tl.load(positions + row).to(tl.uint32)
    index = tl.arange(0, BLOCKS)
    bound = tl.load(bounds + row * blocks + index, mask=index < blocks, other=_VISITED)
    # A key has the order of a score in its upper half, and the complement of the token in its lower half: ties go to
    # the lower token.
    best = tl.full((), _NOTHING, tl.int64)
    top = tl.max(bound, 0)
    while (top != _VISITED) & (top >= (best >> 32).to(tl.int32)):
        block = tl.min(tl.where(bound == top, index, BLOCKS), 0)
        token = _tokens(block, BLOCK)
        logit = tl.load(line + token, mask=token < vocabulary, other=0.0).to(tl.float32)
        score = _score(logit, _words(seed, position, block, BLOCK // 4), temperature)
        key = (_order(score).to(tl.int64) << 32) | (0x7FFFFFFF - token).to(tl.int64)
        best = tl.maximum(best, tl.max(tl.max(tl.where(token < vocabulary, key, _NOTHING), 1), 0))
        bound = tl.where(index == block, _VISITED, bound)
        top = tl.max(bound, 0)
    chosen = 0x7FFFFFFF - (best & 0x7FFFFFFF)
    tl.store(tokens + row, chosen)
    if CLAIMED:
        chosen = tl.load(claims + row)
    is_token = (chosen >= 0) & (chosen < vocabulary)
    logit = tl.load(line + chosen, mask=is_token, other=float("nan")).to(tl.float32)
    if CLAIMED:
        # One counter gives four words, of which the claimed token has one.
        words = tl.reshape(_words(seed, position, (chosen // 4).to(tl.int32), 1), (4,))
        scores = _score(logit + tl.zeros((4,), tl.float32), words, temperature)
        order = tl.max(tl.where(tl.arange(0, 4) == chosen % 4, _order(scores), _VISITED), 0)
        tl.store(margins + row, tl.where(is_token, _float((best >> 32).to(tl.int32)) - _float(order), float("nan")))
    peak = tl.load(peaks + row * blocks + index, mask=index < blocks, other=-float("inf"))
    total = tl.load(sums + row * blocks + index, mask=index < blocks, other=0.0)
    highest = tl.max(peak, 0)
    total = tl.sum(tl.where(total == 0, 0.0, total * tl.exp(peak - highest)), 0)
    tl.store(logprobs + row, logit - highest - tl.log(total))


@triton.jit
def _tokens(block, BLOCK: tl.constexpr):
    """Return the tokens of a block, int32[BLOCK / 4, 4]. In this form a thread loads four adjacent logits at once."""
    return block * BLOCK + 4 * tl.arange(0, BLOCK // 4)[:, None] + tl.arange(0, 4)[None, :]


@triton.jit
def _words(seed, position, block, N: tl.constexpr):
    """Return the words of `noise.philox_words` for the tokens from 4 * N * block on, uint32[N, 4].

    `tl.rand` has the same generator, but another counter.
    """
    c0 = (block * N + tl.arange(0, N)).to(tl.uint32)
    c1, c2, c3 = c0 * 0 + position, c0 * 0, c0 * 0
    k0, k1 = seed.to(tl.uint32), (seed >> 32).to(tl.uint32)
    for _ in tl.static_range(_ROUNDS):
        # One wide product gives both halves. `tl.umulhi` works too, but is slow in the interpreter.
        product_0, product_1 = c0.to(tl.uint64) * _MULTIPLIER_0, c2.to(tl.uint64) * _MULTIPLIER_1
        c0, c1 = (product_1 >> 32).to(tl.uint32) ^ c1 ^ k0, product_1.to(tl.uint32)
        c2, c3 = (product_0 >> 32).to(tl.uint32) ^ c3 ^ k1, product_0.to(tl.uint32)
        k0, k1 = k0 + _WEYL_0, k1 + _WEYL_1
    return tl.reshape(tl.join(tl.join(c0, c2), tl.join(c1, c3)), (N, 4))


@triton.jit
def _score(logit, words, temperature):
    # `/` of two float32 is an approximation in Triton, with an error of two units in the last place.
    return tl.div_rn(logit, temperature) + _gumbel(words)


@triton.jit
def _gumbel(words):
    """Return the noise of the words, float32. It equals that of `noise.gumbel` in every bit."""
    uniform = (words.to(tl.float64) + 0.5) * 2.3283064365386962890625e-10
    return (-_log(-_log(uniform))).to(tl.float32)


@triton.jit
def _gumbel_bound(words):
    """Return a float32 that is at least the noise minus 2e-5, and at most 2.6 above it. It takes no logarithm.

    With t = 1 - u, -log(u) = t + t^2/2 + t^3/3 + ... is at least e, the first three terms. With e = 2^k (1 + m),
    log2(e) is at least k + m, because log2 is concave, and the bits of a float32, read as an integer, are
    2^23 (k + m + 127). Both steps bound the noise -log(-log(u)) from above, where u > 1/2 by at most 0.1.
    """
    t = (words ^ 0xFFFFFFFF).to(tl.float32) * 2.3283064365386963e-10 + 1.1641532182693481e-10
    e = t * (t * (t * 0.3333333 + 0.5) + 1.0)
    return (e.to(tl.int32, bitcast=True) - 0x3F800000).to(tl.float32) * -8.262958294867817e-08


@triton.jit
def _log(x):
    """Return the logarithm of `noise_kernels._log`, operation by operation."""
    bits = x.to(tl.int64, bitcast=True) + (_ONE_BITS - _ROOT_HALF_BITS)
    k = ((bits >> 52).to(tl.int32) - 1023).to(tl.float64)
    f = ((bits & _FRACTION_BITS) + _ROOT_HALF_BITS).to(tl.float64, bitcast=True) - 1.0
    half = 0.5 * f * f
    s = f / (2.0 + f)
    z = s * s
    w = z * z
    even, odd = w * (_LG2 + w * (_LG4 + w * _LG6)), z * (_LG1 + w * (_LG3 + w * (_LG5 + w * _LG7)))
    return s * (half + (odd + even)) + k * _LN2_LOW - half + f + k * _LN2_HIGH


@triton.jit
def _order(x):
    """Map float32 to int32 in the same order. NaN becomes the largest value."""
    bits = x.to(tl.int32, bitcast=True)
    return tl.where(x != x, _NAN, bits ^ ((bits >> 31) & 0x7FFFFFFF))


@triton.jit
def _float(order):
    """Invert `_order`. The largest value becomes a NaN."""
    return (order ^ ((order >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)
