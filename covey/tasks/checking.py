"""Checks a whole data set: its hashes, its indexes and every row. Counts its contents and compares the two splits."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from covey.environments.base import Split
from covey.protocol.ids import Hash
from covey.tasks.dataset import DataSet, Folder, build_damaged, open_folder
from covey.tasks.dataset_row import TaskRecord
from covey.tasks.importing import describe_counts
from covey.tasks.likeness import MIN_SHARE, MinHasher, Sketches, compute_share
from covey.tasks.writing import ENTRY, ROWS_FILE

SHOWN = 20
"""Maximum number of near-duplicate pairs in a report."""
MAX_COMPARED = 20_000
"""Maximum number of pairs that are read again and compared exactly."""

Entries = NDArray[np.void]
_ENTRY = np.dtype([("offset", "<u8"), ("size", "<u4")])


@dataclass(frozen=True, kw_only=True, slots=True)
class Lengths:
    """Distribution of the lengths of all rows. Example: Lengths(median=120, p99=900, largest=4000)."""

    median: int
    """Median length."""
    p99: int
    """99th percentile of the lengths."""
    largest: int
    """Maximum length."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NearDuplicate:
    """A held-out prompt that is nearly the same as a training prompt."""

    held_out: str
    """problem_id of the held-out row."""
    train: str
    """problem_id of the training row."""
    share: float
    """Fraction of word n-grams that both prompts have, from 0 to 1."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckReport:
    """Contents of a data set, with its near-duplicates."""

    digest: Hash
    """Digest of the data set."""
    rows: dict[str, int]
    """Number of rows by split and task type. Example: {"train math": 7}."""
    bytes_of_rows: int
    """Size of all rows in bytes."""
    prompt_characters: Lengths
    """Lengths of the prompts in characters."""
    row_bytes: Lengths
    """Sizes of the rows in bytes."""
    without_solve_rates: int
    """Number of rows without a solve rate."""
    solve_rates: dict[str, int]
    """Number of rows with a solve rate, by model."""
    near_duplicates: int
    """Number of held-out prompts that share most of their text with a training prompt."""
    first_near_duplicates: tuple[NearDuplicate, ...]
    """The first `SHOWN` near-duplicates, each with the most similar training prompt."""
    same_but_numbers: int
    """Number of held-out prompts that have the words of a training prompt but different numbers.

    Generated prompts often do.
    """
    are_all_compared: bool
    """Whether all possible near-duplicates were compared exactly."""


def check_data_set(folder: Path, *, advance: Callable[[int], None] = lambda _: None) -> CheckReport:
    """Read, hash and check a whole data set, and return a report. `advance` is called with the number of bytes of
    each step.

    Raises OperatorError("bad_dataset") for the first error, with its location.
    """
    data_set = open_folder(folder)
    content = Folder(folder)
    for file in data_set.manifest.files:
        for number in range(len(file.pieces)):
            advance(len(content.read_piece(file, number)))
    return _check_rows(data_set, advance)


@dataclass(frozen=True, slots=True)
class _Group:
    split: Split
    task_type: str
    entries: Entries


def _check_rows(data_set: DataSet, advance: Callable[[int], None]) -> CheckReport:
    groups = [_Group(split, kind, _read_index(data_set, split, kind)) for split, kind in data_set.groups]
    entries = np.concatenate([group.entries for group in groups]) if groups else np.empty(0, dtype=_ENTRY)
    owners = np.repeat(np.arange(len(groups)), [len(group.entries) for group in groups])
    order = np.argsort(entries["offset"], kind="stable")
    entries, owners = entries[order], owners[order]
    _require_cover(data_set, entries)
    characters = np.zeros(len(entries), dtype=np.int64)
    bare, rates, sketches = 0, Counter[str](), Sketches()
    for number, row in enumerate(_read_rows(data_set, entries)):
        group = groups[owners[number]]
        if (row.split, row.task_type) != (group.split, group.task_type):
            index = f"{group.split}.{group.task_type}.index"
            raise build_damaged(
                f"{index} lists row {number}, which belongs to split {row.split} and type {row.task_type}"
            )
        characters[number] = len(row.prompt)
        bare += not row.solve_rates
        rates.update(row.solve_rates.keys())
        sketches.add(number, row.prompt, is_held_out=row.split == "held_out")
        advance(int(entries["size"][number]))
    candidates = sketches.find_candidates(most=MAX_COMPARED)
    pairs = _compare(data_set, entries, candidates.pairs)
    return CheckReport(
        digest=data_set.digest,
        rows=describe_counts(data_set.groups),
        bytes_of_rows=int(entries["size"].sum()),
        prompt_characters=_summarise(characters),
        row_bytes=_summarise(entries["size"].astype(np.int64)),
        without_solve_rates=bare,
        solve_rates=dict(sorted(rates.items())),
        near_duplicates=len(pairs),
        first_near_duplicates=tuple(pairs[:SHOWN]),
        same_but_numbers=candidates.same_but_numbers,
        are_all_compared=len(candidates.pairs) < MAX_COMPARED,
    )


def _read_index(data_set: DataSet, split: Split, task_type: str) -> Entries:
    data = data_set.read_index(split, task_type)
    if len(data) % ENTRY.size:
        raise build_damaged(
            f"{split}.{task_type}.index has {len(data)} bytes, which is not a multiple of its "
            f"entry size of {ENTRY.size} bytes"
        )
    return np.frombuffer(data, dtype=_ENTRY)


def _require_cover(data_set: DataSet, entries: Entries) -> None:
    """Check that the indexes list each row exactly once, without gaps between rows."""
    file = data_set.manifest.find_file(ROWS_FILE)
    size = 0 if file is None else file.size
    ends = entries["offset"] + entries["size"] + np.uint64(1)
    starts = np.concatenate([np.zeros(1, dtype=np.uint64), ends])
    wrong = np.flatnonzero(starts[:-1] != entries["offset"])
    if len(wrong) or int(starts[-1]) != size:
        location = f"row {wrong[0]}" if len(wrong) else f"the end of the file, at byte {int(starts[-1])} of {size}"
        raise build_damaged(
            f"the indexes do not list every row of {ROWS_FILE} exactly once; the first difference is at {location}"
        )


def _read_rows(data_set: DataSet, entries: Entries) -> Iterator[TaskRecord]:
    for number, (offset, size) in enumerate(entries.tolist()):
        location = f"row {number}"
        yield data_set.parse(data_set.read_line(offset, size, location), location)


def _compare(data_set: DataSet, entries: Entries, pairs: list[tuple[int, int]]) -> list[NearDuplicate]:
    """Return the near-duplicates among pairs: the most similar training prompt of each held-out prompt, in order."""
    signer, best = MinHasher(), dict[int, NearDuplicate]()
    for held_out, train in sorted(pairs):
        left, right = _read_rows(data_set, entries[[held_out, train]])
        share = compute_share(signer.sign(left.prompt).grams, signer.sign(right.prompt).grams)
        if share >= MIN_SHARE and (held_out not in best or share > best[held_out].share):
            best[held_out] = NearDuplicate(held_out=left.problem_id, train=right.problem_id, share=round(share, 3))
    return [best[number] for number in sorted(best)]


def _summarise(values: NDArray[np.int64]) -> Lengths:
    if not len(values):
        return Lengths(median=0, p99=0, largest=0)
    median, p99 = np.percentile(values, [50, 99], method="lower")
    return Lengths(median=int(median), p99=int(p99), largest=int(values.max()))
