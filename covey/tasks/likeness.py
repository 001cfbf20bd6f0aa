"""Finds held-out prompts that are nearly the same as training prompts, in bounded memory.

A prompt is represented by the set of its word n-grams, as 64-bit hashes. Numbers are words, so arithmetic with
different numbers has different n-grams. Only the smallest hashes of each prompt are kept, because two prompts that
share most n-grams share most of these. Pairs that share enough of them are read again and compared exactly.

Generated prompts often differ only in their numbers. They are counted separately, by comparing the words with all
numbers masked. N-grams that many held-out prompts share, such as those of a template, do not produce pairs.
"""

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

WORDS = 5
"""Number of words in an n-gram. A shorter prompt is a single n-gram."""
SKETCH = 48
"""Number of n-gram hashes to keep per prompt: the smallest ones."""
MAX_HOLDERS = 8
"""Maximum number of held-out prompts that share an n-gram. A more frequent n-gram is ignored, because it says nothing
about a pair.
"""
MIN_SHARE = 0.8
"""Minimum fraction of common n-grams of near-duplicates, relative to the prompt with more n-grams."""
CANDIDATE_SHARE = 0.6
"""Minimum fraction of common hashes, relative to the held-out prompt, for which a pair is compared exactly.

It is below `MIN_SHARE`, because sketches are samples.
"""
_BATCH = 2048
"""Number of training prompts that are looked up at once."""
_MAX_WORDS = 1 << 20
"""Maximum number of words whose hashes are cached."""

Hashes = NDArray[np.uint64]
_WORD = re.compile(r"\w+")
_DIGIT = re.compile(r"\d")
_FACTORS = tuple(
    map(
        np.uint64,
        (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB, 0xD6E8FEB86659FD93, 0xA0761D6478BD642F),
    )
)
"""Odd factors for the words of an n-gram, one per position."""


@dataclass(frozen=True, slots=True)
class MinHashSignature:
    """The hashes by which a prompt is compared."""

    grams: Hashes
    """Distinct hashes of the prompt's n-grams, ascending."""
    mask: int
    """Hash of the prompt's words, with each word that contains a digit masked. Prompts that differ only in numbers have
    the same hash.
    """


class MinHasher:
    """Computes signatures. Equal strings have equal signatures in every process."""

    def __init__(self) -> None:
        self._words: dict[str, int] = {}

    def sign(self, text: str) -> MinHashSignature:
        """Compute the signature of a prompt."""
        words = _WORD.findall(text.casefold())
        if len(self._words) > _MAX_WORDS:
            self._words.clear()
        cached = [*map(self._words.get, words)]
        codes = np.array(
            [self._add(word) if code is None else code for word, code in zip(words, cached, strict=True)]
            if None in cached
            else cached,
            dtype=np.uint64,
        )
        mask = _hash(np.where(codes & np.uint64(1), codes, np.uint64(0)).tobytes())
        count = len(words) - WORDS + 1
        if count < 1:
            return MinHashSignature(np.array([_hash(codes.tobytes())], dtype=np.uint64), mask)
        mixed = codes[:count] * _FACTORS[0]
        for position in range(1, WORDS):
            mixed += codes[position : position + count] * _FACTORS[position]
        mixed ^= mixed >> np.uint64(29)
        mixed *= _FACTORS[1]
        mixed.sort()
        is_first = np.ones(count, dtype=bool)
        np.not_equal(mixed[1:], mixed[:-1], out=is_first[1:])
        return MinHashSignature(mixed[is_first], mask)

    def _add(self, word: str) -> int:
        """Compute and cache the code of a word. Its lowest bit is 0 if the word contains a digit, otherwise 1."""
        code = _hash(word.encode("utf-8", "surrogatepass"))
        self._words[word] = code & ~1 if _DIGIT.search(word) else code | 1
        return self._words[word]


def compute_share(left: Hashes, right: Hashes) -> float:
    """Return the number of common n-grams, divided by the number of n-grams of the prompt with more of them."""
    return len(np.intersect1d(left, right, assume_unique=True)) / max(len(left), len(right))


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidates:
    """Possible near-duplicates, and the number of held-out prompts whose masked words occur in training."""

    pairs: list[tuple[int, int]]
    """Pairs of numbers: of a held-out prompt and of a training prompt."""
    same_but_numbers: int
    """Number of held-out prompts for which a training prompt has the same words, apart from numbers."""


class Sketches:
    """Collects the prompts of both splits and finds possible near-duplicates."""

    def __init__(self) -> None:
        self._signer = MinHasher()
        self._hashes: dict[bool, list[Hashes]] = {False: [], True: []}
        self._masks: dict[bool, list[int]] = {False: [], True: []}
        self._numbers: dict[bool, list[int]] = {False: [], True: []}

    def add(self, number: int, text: str, *, is_held_out: bool) -> None:
        """Add a prompt. Pairs refer to it by `number`."""
        signature = self._signer.sign(text)
        self._hashes[is_held_out].append(signature.grams[:SKETCH].copy())  # a view would keep the whole array alive
        self._masks[is_held_out].append(signature.mask)
        self._numbers[is_held_out].append(number)

    def find_candidates(self, *, most: int) -> Candidates:
        """Return at most `most` pairs to compare, without those that differ only in numbers."""
        train, held_out = (np.array(self._masks[split], dtype=np.uint64) for split in (False, True))
        pairs = []
        for index, other in self._pair():
            if held_out[index] != train[other]:
                pairs.append((self._numbers[True][index], self._numbers[False][other]))
                if len(pairs) >= most:
                    break
        return Candidates(pairs=pairs, same_but_numbers=int(np.isin(held_out, train).sum()))

    def _pair(self) -> Iterator[tuple[int, int]]:
        """Yield the indexes of held-out and training prompts that share enough hashes."""
        hashes, owners = _flatten(self._hashes[True], 0)
        order = np.argsort(hashes, kind="stable")
        hashes, owners = hashes[order], owners[order]
        values, starts, counts = np.unique(hashes, return_index=True, return_counts=True)
        telling = counts <= MAX_HOLDERS
        values, starts, counts = values[telling], starts[telling], counts[telling]
        if not len(values):
            return
        weights = np.bincount(owners[_spread(starts, counts)], minlength=len(self._hashes[True]))
        for begin in range(0, len(self._hashes[False]), _BATCH):
            queries, askers = _flatten(self._hashes[False][begin : begin + _BATCH], begin)
            positions = np.minimum(np.searchsorted(values, queries), len(values) - 1)
            hits = values[positions] == queries
            positions, askers = positions[hits], askers[hits]
            holders = owners[_spread(starts[positions], counts[positions])]
            keys, shared = np.unique(
                (holders.astype(np.int64) << 32) | np.repeat(askers, counts[positions]), return_counts=True
            )
            enough = shared >= np.maximum(1, CANDIDATE_SHARE * weights[keys >> 32])
            for key in keys[enough].tolist():
                yield key >> 32, key & 0xFFFFFFFF


def _flatten(sketches: Sequence[Hashes], begin: int) -> tuple[Hashes, NDArray[np.int64]]:
    """Return all hashes of some prompts, and for each hash the index of its prompt, counted from `begin`."""
    if not sketches:
        return np.empty(0, dtype=np.uint64), np.empty(0, dtype=np.int64)
    lengths = [len(sketch) for sketch in sketches]
    return np.concatenate(sketches), np.repeat(np.arange(begin, begin + len(sketches), dtype=np.int64), lengths)


def _spread(starts: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the indexes start, start + 1, ... of all ranges, concatenated."""
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    return np.arange(total, dtype=np.int64) - np.repeat(ends - counts, counts) + np.repeat(starts, counts)


def _hash(data: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")
