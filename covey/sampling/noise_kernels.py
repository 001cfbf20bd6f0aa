"""The seeded noise compiled for one core, and a search for the sampled token that computes only a little noise.

Words equal those of `noise.philox_words`. The logarithm is implemented here, so that all kernels compute the same
float32 for a Gumbel value. Kernels release the GIL.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from covey.sampling import philox

Seeds = NDArray[np.uint64]
Words = NDArray[np.uint32]
Floats = NDArray[np.float32]
Longs = NDArray[np.int64]

_MAX_NOISE = 23.0
"""Upper bound of the noise. The largest word, 2**32 - 1, has a noise of 22.87."""
_WIDTH = 4 * philox.BLOCKS
"""Number of tokens per chunk."""
_SMALL = 1024
"""Maximum vocabulary size for which all noise is computed."""
# Constants of log(x) in FreeBSD's msun (e_log.c): x = 2**k (1 + f) with 1 + f from sqrt(1/2) to sqrt(2). The error is
# below one unit in the last place. The samplers for GPUs compute the same operations.
LN2_HIGH, LN2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10
LG1, LG2, LG3 = 6.666666666666735130e-01, 3.999999999940941908e-01, 2.857142874366239149e-01
LG4, LG5, LG6 = 2.222219843214978396e-01, 1.818357216161805012e-01, 1.531383769920937332e-01
LG7 = 1.479819860511658591e-01
ROOT_HALF_BITS = 0x3FE6A09E00000000
ONE_BITS = 0x3FF0000000000000
FRACTION_BITS = 0x000FFFFFFFFFFFFF


class Compiled(NamedTuple):
    """The compiled functions. Each is documented by the Python function with the same name and a leading underscore."""

    fill_words: Callable[[Seeds, Words, Words], None]
    fill_gumbel: Callable[[Seeds, Words, Floats], None]
    race: Callable[[Floats, np.float32, Seeds, Words, Longs, Floats], None]
    score_tokens: Callable[[Floats, np.float32, Seeds, Words, Longs, Floats], None]


@functools.cache
def compile_all() -> Compiled:
    """Return the kernels. The first call on a machine compiles them, and later calls load them from disk."""
    # Importing numba before vLLM starts crashes vLLM's start. It is therefore imported when noise is first needed.
    from numba import njit
    from numba.extending import register_jitable

    noise = (philox.fill_planes, _log, _gumbel, _compute_word, _fill_chunk)
    for function in (*noise, _order, _find_peaks, _find_special, _find_threshold, _run, _run_all):
        register_jitable(error_model="numpy")(function)
    compiler: Callable[[Callable[..., Any]], Any] = njit(cache=True, nogil=True, error_model="numpy")
    return Compiled(compiler(_fill_words), compiler(_fill_gumbel), compiler(_race), compiler(_score_tokens))


# The functions below only run compiled. Every operand is cast by hand, because numba widens mixed operands.


def _fill_words(seeds: Seeds, positions: Words, out: Words) -> None:
    """Write the words of `noise.philox_words` to `out`, uint32[n, vocabulary]."""
    n, vocabulary = out.shape
    planes = np.empty((4, philox.BLOCKS), np.uint32)
    for row in range(n):
        for first in range(0, vocabulary, _WIDTH):
            count = min(_WIDTH, vocabulary - first)
            philox.fill_planes(seeds[row], positions[row], first // 4, (count + 3) // 4, planes)
            for v in range(count):
                out[row, first + v] = planes[v & 3, v >> 2]


def _fill_gumbel(seeds: Seeds, positions: Words, out: Floats) -> None:
    """Write the noise of every word to `out`, float32[n, vocabulary]."""
    n, vocabulary = out.shape
    planes, noise = np.empty((4, philox.BLOCKS), np.uint32), np.empty((4, philox.BLOCKS), np.float32)
    for row in range(n):
        for first in range(0, vocabulary, _WIDTH):
            count = min(_WIDTH, vocabulary - first)
            _fill_chunk(seeds[row], positions[row], first, count, planes, noise)
            for v in range(count):
                out[row, first + v] = noise[v & 3, v >> 2]


def _race(
    logits: Floats, temperature: np.float32, seeds: Seeds, positions: Words, winners: Longs, scores: Floats
) -> None:
    """Write argmax and maximum of logits / T plus noise for each row. Ties go to the lower index, and NaN wins.

    The token with the largest logit is scored first. A chunk is skipped if its largest logit cannot reach the best
    score so far with any word. In the other chunks a token is scored only if its word would lift the chunk's largest
    logit to the best score.
    """
    n, vocabulary = logits.shape
    planes, noise = np.empty((4, philox.BLOCKS), np.uint32), np.empty((4, philox.BLOCKS), np.float32)
    peaks = np.empty((vocabulary + _WIDTH - 1) // _WIDTH, np.int32)
    for row in range(n):
        line, seed, position = logits[row], seeds[row], positions[row]
        winner, has_nan = _find_peaks(line.view(np.int32), peaks)
        best = np.float32(line[winner] / temperature)
        if has_nan or not np.isfinite(best):
            winner = _find_special(line, temperature, best, has_nan)
            best = np.float32(line[winner] / temperature)
        elif vocabulary <= _SMALL:
            best, winner = _run_all(line, temperature, seed, position, planes, noise)
        else:
            best = np.float32(best + _gumbel(_compute_word(seed, position, winner, planes)))
            for c in range(len(peaks)):
                reach = np.float64(np.int32(_order(peaks[c])).view(np.float32) / temperature)
                # Rounding to float32 moves a sum by far less than this slack.
                need = best - reach - 1e-6 * (abs(best) + abs(reach) + 32.0)
                if need <= _MAX_NOISE:
                    threshold, first = _find_threshold(need), c * _WIDTH
                    chunk = line[first : first + _WIDTH]
                    philox.fill_planes(seed, position, first // 4, (len(chunk) + 3) // 4, planes)
                    best, winner = _run(chunk, temperature, planes, threshold, first, best, winner)
        winners[row], scores[row] = winner, best


def _find_peaks(patterns: NDArray[np.int32], peaks: NDArray[np.int32]) -> tuple[int, bool]:
    """Write each chunk's maximum in the order of `_order`. Return the index of the largest one, and whether any is NaN.

    The bit patterns are compared as integers, because only an integer maximum compiles to a vector instruction.
    """
    largest, top = np.int32(0), 0
    for c in range(len(peaks)):
        chunk = patterns[c * _WIDTH : (c + 1) * _WIDTH]
        peak = np.int32(-(2**31))
        for v in range(len(chunk)):
            peak = max(_order(chunk[v]), peak)
            largest = max(np.int32(chunk[v] & 0x7FFFFFFF), largest)
        peaks[c] = peak
        if peak > peaks[top]:
            top = c
    start = top * _WIDTH
    while _order(patterns[start]) != peaks[top]:
        start += 1
    return start, bool(largest > 0x7F800000)


def _run(
    chunk: Floats,
    temperature: np.float32,
    planes: Words,
    threshold: np.uint32,
    first: int,
    best: np.float32,
    winner: int,
) -> tuple[np.float32, int]:
    """Return the best score and its token after a chunk. Only tokens whose word reaches the threshold are scored."""
    blocks = (len(chunk) + 3) // 4
    for plane in range(4):
        words, highest = planes[plane], np.uint32(0)
        for b in range(blocks):
            highest = max(words[b], highest)
        if highest < threshold:
            continue
        for b in range(blocks):
            v = 4 * b + plane
            if words[b] >= threshold and v < len(chunk):
                score = np.float32(np.float32(chunk[v] / temperature) + _gumbel(words[b]))
                if score > best or (score == best and first + v < winner):
                    best, winner = score, first + v
    return best, winner


def _run_all(
    line: Floats, temperature: np.float32, seed: np.uint64, position: np.uint32, planes: Words, noise: Floats
) -> tuple[np.float32, int]:
    """Return the best score and its token in a small vocabulary.

    All noise is computed, because skipping would cost more.
    """
    best, winner = np.float32(-np.inf), 0
    for first in range(0, len(line), _WIDTH):
        chunk = line[first : first + _WIDTH]
        _fill_chunk(seed, position, first, len(chunk), planes, noise)
        for v in range(len(chunk)):
            score = np.float32(np.float32(chunk[v] / temperature) + noise[v & 3, v >> 2])
            if score > best:
                best, winner = score, first + v
    return best, winner


def _fill_chunk(seed: np.uint64, position: np.uint32, first: int, count: int, planes: Words, noise: Floats) -> None:
    """Write the noise of token first + v to `noise`[v & 3, v >> 2], for each v below `count`."""
    blocks = (count + 3) // 4
    philox.fill_planes(seed, position, first // 4, blocks, planes)
    for plane in range(4):
        words, values = planes[plane], noise[plane]
        for b in range(blocks):
            values[b] = _gumbel(words[b])


def _score_tokens(
    logits: Floats, temperature: np.float32, seeds: Seeds, positions: Words, tokens: Longs, scores: Floats
) -> None:
    """For each row, write its token's score, logit / T plus noise, to `scores`."""
    planes = np.empty((4, philox.BLOCKS), np.uint32)
    for row in range(len(tokens)):
        word = _compute_word(seeds[row], positions[row], tokens[row], planes)
        scores[row] = np.float32(np.float32(logits[row, tokens[row]] / temperature) + _gumbel(word))


def _compute_word(seed: np.uint64, position: np.uint32, token: int, planes: Words) -> np.uint32:
    philox.fill_planes(seed, position, token // 4, 1, planes)
    return np.uint32(planes[token & 3, 0])


def _order(pattern: np.int32) -> np.int32:
    """Map float32 bits to integers with the same order as the floats. The function is its own inverse."""
    return np.int32(pattern ^ ((pattern >> 31) & 0x7FFFFFFF))


def _find_special(line: Floats, temperature: np.float32, peak: np.float32, has_nan: bool) -> int:
    """Return the index of the first NaN. Without a NaN, return the first index at which the scaled logit equals the
    infinite peak.
    """
    for v in range(len(line)):
        if np.isnan(line[v]) or (not has_nan and np.float32(line[v] / temperature) == peak):
            return v
    return 0


def _find_threshold(need: float) -> np.uint32:
    """Return a word for which every smaller word has noise below `need`.

    It is the word of u = exp(-exp(-need)), minus two for rounding.
    """
    word = math.exp(-math.exp(-need)) * 4294967296.0 - 2.5 if need > -4.0 else 0.0
    return np.uint32(max(word, 0.0))


def _gumbel(word: np.uint32) -> np.float32:
    """Return -log(-log(u)) with u = (word + 0.5) / 2**32."""
    return np.float32(-_log(-_log((np.float64(word) + 0.5) * 2.0**-32)))


def _log(x: np.float64) -> np.float64:
    """Return the logarithm of a positive normal number.

    It has no branches, so that the loop over words is vectorised.
    """
    bits = np.float64(x).view(np.int64) + (ONE_BITS - ROOT_HALF_BITS)
    k = np.float64((bits >> 52) - 1023)
    f = np.int64((bits & FRACTION_BITS) + ROOT_HALF_BITS).view(np.float64) - 1.0
    half = 0.5 * f * f
    s = f / (2.0 + f)
    z = s * s
    w = z * z
    even, odd = w * (LG2 + w * (LG4 + w * LG6)), z * (LG1 + w * (LG3 + w * (LG5 + w * LG7)))
    return s * (half + (odd + even)) + k * LN2_LOW - half + f + k * LN2_HIGH
