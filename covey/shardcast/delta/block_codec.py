"""Binary format of one delta block of bfloat16 values: a header, rANS states and words, and raw bits.

    lengths   3 x u32: bytes of the header, number of words, bytes of the raw bits
    states    4 x u32
    header    varints: number of classes with changes; for each of them, the distance from the previous one and the
              number of changes; for each context and each half of a pair, the number of frequencies and the frequencies
    words     u16 each
    bits      the bits below the leading ones, lowest bit first

All numbers are little endian. A context is a pair of frequency tables. A class with at least `OWN_TABLE` changes has
its own context, and all other classes share one.
"""

import struct

import numpy as np
from numpy.typing import NDArray

from covey.errors import ProtocolError
from covey.shardcast.delta import rans
from covey.shardcast.delta.class_gaps import CLASSES, Bits, Numbers
from covey.shardcast.delta.kernels import compile_all

BLOCK_VALUES = 1 << 22
"""Maximum number of values in a block. Each block is decoded independently of the others."""
OWN_TABLE = 256
"""Minimum number of changes for which a class has its own context. With fewer changes, its tables cost more bytes than
they save.
"""
_LENGTHS, _STATES = struct.Struct("<3I"), struct.Struct("<4I")
_FIXED = _LENGTHS.size + _STATES.size
_MAX_HEADER = 1 << 20
"""Maximum size of a header in bytes. A valid header has less than half of it, even with one context per class."""


def encode(parent: Bits, child: Bits) -> bytes:
    """Return the encoded changes from parent to child. Both are uint16[n], with n up to BLOCK_VALUES."""
    kernels = compile_all()
    size = kernels.count_changes(parent, child)
    classes, unsorted = np.empty(size, np.uint8), np.empty((2, size), np.int64)
    kernels.find_changes(parent, child, classes, unsorted[0], unsorted[1])
    counts = np.bincount(classes, minlength=CLASSES).astype(np.int64)
    gaps, differences = np.empty(size, np.int64), np.empty(size, np.int64)
    kernels.sort_by_class(classes, unsorted[0], counts, gaps)
    kernels.sort_by_class(classes, unsorted[1], counts, differences)
    contexts, number = _assign_contexts(counts)
    tables = _build_tables(gaps, differences, counts, contexts, number)
    words, states = np.empty(2 * size, np.uint16), np.empty(rans.STATES, np.int64)
    place = kernels.encode_pairs(gaps, differences, counts, contexts, tables, words, states)
    bits = np.empty(6 * size + 1, np.uint8)
    length = kernels.write_bits(gaps, differences, bits)
    header = _write_header(counts, tables)
    return b"".join(
        (
            _LENGTHS.pack(len(header), size * 2 - place, length),
            _STATES.pack(*states.tolist()),
            header,
            words[place:].astype("<u2").tobytes(),
            bits[:length].tobytes(),
        )
    )


def decode(parent: Bits, data: bytes | memoryview, child: Bits) -> None:
    """Write the child that `encode` received to `child`, uint16[n]. `data` may be hostile.

    Raises ProtocolError("bad_delta") if `data` is not a valid encoding for this parent. The content of `child` is then
    undefined.
    """
    if len(data) < _FIXED:
        raise _refuse(f"a block has {len(data)} bytes, fewer than its fixed part of {_FIXED}")
    header_size, word_count, bit_size = _LENGTHS.unpack_from(data)
    if header_size > _MAX_HEADER or _FIXED + header_size + 2 * word_count + bit_size != len(data):
        raise _refuse(f"the lengths in a block do not add up to its {len(data)} bytes")
    start = _FIXED + header_size
    counts, tables = _read_header(bytes(data[_FIXED:start]), len(parent))
    contexts, _ = _assign_contexts(counts)
    words = np.frombuffer(data, "<u2", word_count, start).astype(np.uint16, copy=False)
    bits = np.frombuffer(data, np.uint8, bit_size, start + 2 * word_count)
    states = np.array(_STATES.unpack_from(data, _LENGTHS.size), np.int64)
    size = int(counts.sum())
    gaps, differences = np.empty(size, np.int64), np.empty(size, np.int64)
    kernels = compile_all()
    if not kernels.decode_symbols(words, states, counts, contexts, tables, gaps, differences):
        raise _refuse("a block has too few or too many words")
    if not kernels.read_bits(bits, gaps, differences):
        raise _refuse("a block has too few or too many raw bits")
    if kernels.apply_changes(parent, gaps, differences, counts, child) != size:
        raise _refuse("a change lies outside its block or outside the range of bfloat16")


def _assign_contexts(counts: Numbers) -> tuple[Numbers, int]:
    """Return the context of each class, and the number of contexts."""
    has_own = counts >= OWN_TABLE
    own = int(has_own.sum())
    contexts = np.where(has_own, np.cumsum(has_own) - 1, own).astype(np.int64)
    return contexts, own + bool(((counts > 0) & ~has_own).any())


def _build_tables(gaps: Numbers, differences: Numbers, counts: Numbers, contexts: Numbers, number: int) -> Numbers:
    kernels = compile_all()
    seen = np.zeros((2, number, rans.SYMBOLS), np.int64)
    first = 0
    for kind in np.flatnonzero(counts):
        last = first + counts[kind]
        kernels.count_symbols(gaps[first:last], seen[0, contexts[kind]])
        kernels.count_symbols(differences[first:last], seen[1, contexts[kind]])
        first = last
    tables = np.zeros_like(seen)
    for half in range(2):
        for context in range(number):
            kernels.scale(seen[half, context], tables[half, context])
    return tables


def _write_header(counts: Numbers, tables: Numbers) -> bytes:
    numbers, previous = [int((counts > 0).sum())], -1
    for kind in np.flatnonzero(counts).tolist():
        numbers += [kind - previous - 1, int(counts[kind])]
        previous = kind
    for context in range(tables.shape[1]):
        for half in range(2):
            frequencies = np.trim_zeros(tables[half, context], "b").tolist()
            numbers += [len(frequencies), *frequencies]
    return _encode_varints(numbers)


def _encode_varints(numbers: list[int]) -> bytes:
    data = bytearray()
    for number in numbers:
        rest = number
        while rest > 127:
            data.append(rest & 127 | 128)
            rest >>= 7
        data.append(rest)
    return bytes(data)


def _read_header(header: bytes, length: int) -> tuple[Numbers, Numbers]:
    """Return the number of changes of each class, and the frequency tables, of a block of `length` values."""
    numbers = iter(_read_varints(header))
    counts = np.zeros(CLASSES, np.int64)
    try:
        kind = -1
        for _ in range(next(numbers)):
            kind += 1 + next(numbers)
            if kind >= CLASSES:
                raise _refuse(f"a block has changes of class {kind}, but there are {CLASSES} classes")
            counts[kind] = next(numbers)
            if not 0 < counts[kind] <= length:
                raise _refuse(f"a block of {length} values has {counts[kind]} changes of one class")
        if counts.sum() > length:
            raise _refuse(f"a block of {length} values has {counts.sum()} changes")
        _, number = _assign_contexts(counts)
        tables = np.zeros((2, number, rans.SYMBOLS), np.int64)
        for context in range(number):
            for half in range(2):
                size = next(numbers)
                if size > rans.SYMBOLS:
                    raise _refuse(f"a table of a block has {size} frequencies")
                tables[half, context, :size] = [next(numbers) for _ in range(size)]
    except StopIteration:
        raise _refuse("the header of a block has too few numbers") from None
    if next(numbers, None) is not None:
        raise _refuse("the header of a block has too many numbers")
    if (tables.sum(axis=2) != rans.TOTAL).any():
        raise _refuse(f"the frequencies of a table do not sum to {rans.TOTAL}")
    return counts, tables


def _read_varints(data: bytes) -> list[int]:
    """Return the decoded varints, which have at most four bytes each."""
    octets: NDArray[np.uint8] = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(octets < 128)
    if not len(ends) or ends[-1] != len(octets) - 1:
        raise _refuse("the header of a block ends inside a number")
    starts = np.concatenate(([0], ends[:-1] + 1))
    sizes = ends - starts + 1
    if sizes.max() > 4:
        raise _refuse("a number in the header of a block has more than four bytes")
    numbers = np.zeros(len(ends), np.int64)
    for i in range(4):
        has = sizes > i
        numbers[has] |= (octets[starts[has] + i].astype(np.int64) & 127) << (7 * i)
    return numbers.tolist()


def _refuse(message: str) -> ProtocolError:
    return ProtocolError("bad_delta", message)
