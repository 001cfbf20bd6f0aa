"""Entropy coding of pairs of non-negative numbers with static frequencies: range asymmetric numeral systems (rANS).

A number below 8 is its own symbol. The symbol of a larger number gives its length and its three leading bits, and the
lower bits are stored raw. Each pair uses the frequencies of its context. Four interleaved states let a core process
several symbols in parallel. `kernels` compiles these functions.

Source: Duda, "Asymmetric numeral systems" (arXiv 1311.2540), in the form with 32-bit states and 16-bit words.
"""

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]
Words = NDArray[np.uint16]
Bytes = NDArray[np.uint8]

PRECISION = 12
"""Number of bits of a frequency. The frequencies of a context sum to 2**12."""
SYMBOLS = 96
"""Number of symbols. They cover every number below 2**24."""
STATES = 4
"""Number of interleaved states: two for the first numbers of pairs and two for the second numbers."""
LOWEST = 1 << 16
"""Initial value of a state, and its minimum between two symbols."""
TOTAL = 1 << PRECISION


def split(value: int) -> tuple[int, int]:
    """Return the symbol of a number and the number of its raw bits."""
    extra, top = 0, value
    while top >= 8:
        top >>= 1
        extra += 1
    return (top + 4 * extra, extra) if extra else (value, 0)


def count_symbols(values: Numbers, counts: Numbers) -> None:
    """Add the number of occurrences of each symbol in `values` to `counts`, int64[SYMBOLS]."""
    for i in range(len(values)):
        symbol, _ = split(values[i])
        counts[symbol] += 1


def scale(counts: Numbers, frequencies: Numbers) -> None:
    """Write frequencies in proportion to `counts`. They sum to TOTAL, and each symbol that occurs has at least 1."""
    total, left = np.int64(0), np.int64(TOTAL)
    for s in range(SYMBOLS):
        total += counts[s]
    for s in range(SYMBOLS):
        frequencies[s] = 0
        if counts[s] > 0:
            frequencies[s] = max(1, (counts[s] * TOTAL + total // 2) // total)
        left -= frequencies[s]
    while left != 0:
        largest = 0
        for s in range(SYMBOLS):
            if frequencies[s] > frequencies[largest]:
                largest = s
        step = left if left > 0 else -min(-left, frequencies[largest] // 2)
        frequencies[largest] += step
        left -= step


def add_up(frequencies: Numbers, starts: Numbers) -> None:
    """Write the sum of the frequencies of all smaller symbols for each symbol. Both are int64[contexts, SYMBOLS]."""
    for k in range(len(frequencies)):
        total = np.int64(0)
        for s in range(SYMBOLS):
            starts[k, s] = total
            total += frequencies[k, s]


def encode_pairs(
    first: Numbers, second: Numbers, counts: Numbers, contexts: Numbers, tables: Numbers, words: Words, states: Numbers
) -> int:
    """Fill `words` backward from its end, write the final states, and return the index of the first word.

    `counts` has the number of pairs of each class, and `contexts` the context of each class. `tables`, int64[2,
    contexts, SYMBOLS], has the frequencies of first and second numbers. `words` must have room for two words per pair.
    """
    starts = np.zeros(tables.shape, np.int64)
    add_up(tables[0], starts[0])
    add_up(tables[1], starts[1])
    for j in range(STATES):
        states[j] = LOWEST
    place, i = len(words), len(first)
    for kind in range(len(counts) - 1, -1, -1):
        context = contexts[kind]
        for _ in range(counts[kind]):
            i -= 1
            for half in range(1, -1, -1):
                symbol, _ = split(second[i] if half else first[i])
                frequency, lane = tables[half, context, symbol], 2 * (i & 1) + half
                state = states[lane]
                if state >= frequency << (32 - PRECISION):
                    place -= 1
                    words[place] = state & 0xFFFF
                    state >>= 16
                states[lane] = ((state // frequency) << PRECISION) + state % frequency + starts[half, context, symbol]
    return place


def write_bits(first: Numbers, second: Numbers, out: Bytes) -> int:
    """Write the raw bits of all pairs, lowest bit first. Return the number of bytes, at most 6 per pair."""
    pending, held, size = np.uint64(0), 0, 0
    for i in range(len(first)):
        for half in range(2):
            value = second[i] if half else first[i]
            _, extra = split(value)
            if extra:
                pending |= np.uint64(value & ((1 << extra) - 1)) << np.uint64(held)
                held += extra
                while held >= 8:
                    out[size] = pending & np.uint64(255)
                    pending >>= np.uint64(8)
                    size += 1
                    held -= 8
    if held > 0:
        out[size] = pending & np.uint64(255)
        size += 1
    return size


def decode_symbols(
    words: Words, states: Numbers, counts: Numbers, contexts: Numbers, tables: Numbers, first: Numbers, second: Numbers
) -> bool:
    """Write the symbols of all pairs. Return whether words and states end exactly with the last symbol.

    The frequencies of each context must sum to TOTAL. Words and states may be hostile.
    """
    starts, symbols = np.zeros(tables.shape, np.int64), np.zeros((2, tables.shape[1], TOTAL), np.uint8)
    for half in range(2):
        add_up(tables[half], starts[half])
        for k in range(tables.shape[1]):
            for s in range(SYMBOLS):
                symbols[half, k, starts[half, k, s] : starts[half, k, s] + tables[half, k, s]] = s
    place, i = 0, 0
    for kind in range(len(counts)):
        context = contexts[kind]
        for _ in range(counts[kind]):
            for half in range(2):
                lane = 2 * (i & 1) + half
                state = states[lane]
                slot = state & (TOTAL - 1)
                symbol = np.int64(symbols[half, context, slot])
                state = tables[half, context, symbol] * (state >> PRECISION) + slot - starts[half, context, symbol]
                if state < LOWEST:
                    if place >= len(words):
                        return False
                    state = (state << 16) | np.int64(words[place])
                    place += 1
                states[lane] = state
                if half:
                    second[i] = symbol
                else:
                    first[i] = symbol
            i += 1
    is_whole = place == len(words)
    for j in range(STATES):
        is_whole = is_whole and states[j] == LOWEST
    return bool(is_whole)


def read_bits(bits: Bytes, first: Numbers, second: Numbers) -> bool:
    """Replace all symbols by their numbers. Return whether the raw bits end exactly with the last number."""
    byte, held, pending = 0, np.int64(0), np.uint64(0)
    for i in range(len(first)):
        for half in range(2):
            symbol = second[i] if half else first[i]
            if symbol >= 8:
                extra = (symbol - 4) // 4
                while held < extra:
                    if byte >= len(bits):
                        return False
                    pending |= np.uint64(bits[byte]) << np.uint64(held)
                    byte += 1
                    held += 8
                number = ((4 + symbol % 4) << extra) + np.int64(pending & np.uint64((1 << extra) - 1))
                pending >>= np.uint64(extra)
                held -= extra
                if half:
                    second[i] = number
                else:
                    first[i] = number
    return byte == len(bits) and pending == 0
