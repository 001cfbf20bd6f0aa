"""Row 18: a few kilobytes that decode to much more than a validator takes. tests/fuzz/bombs.py has larger ones."""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from covey.protocol.submission_file.parquet import SCHEMA
from covey.protocol.verdict import Reason
from tests.cheats.base import Cheat
from tests.cheats.files import write
from tests.fakes.tools import Work, Worker


class RowBomb(Cheat):
    """A million empty rows in a few kilobytes."""

    row, reason = 18, Reason.OVERSIZED

    def cheat(self, worker: Worker) -> Work:
        count = 1_000_000
        zeros = np.zeros(count, np.int32)
        lists = pa.ListArray.from_arrays(np.zeros(count + 1, np.int32), pa.array([], pa.int32()))
        columns = {field.name: _constant(field.type, zeros, lists, count) for field in SCHEMA}
        arrays = [columns[field.name] for field in SCHEMA]
        return worker.work().with_file(write(pa.Table.from_arrays(arrays, schema=SCHEMA), use_dictionary=True))


def _constant(kind: pa.DataType, zeros: Any, lists: pa.ListArray, count: int) -> pa.Array:
    if pa.types.is_list(kind):
        return pa.ListArray.from_arrays(lists.offsets, pa.array([], kind.value_type), type=kind)
    if pa.types.is_boolean(kind):
        return pa.array(np.zeros(count, bool))
    return pa.array(zeros).cast(kind)


class ListBomb(Cheat):
    """One row whose tokens are ten million zeros, which run-length encoding stores in a few bytes."""

    row, reason = 18, Reason.OVERSIZED
    values: ClassVar[int] = 10_000_000

    def cheat(self, worker: Worker) -> Work:
        return build_bomb(worker, "tokens", lambda kind: pa.array(np.zeros(self.values, np.int32)))


class ProofBomb(Cheat):
    """One value of a kilobyte, repeated a hundred thousand times by dictionary encoding."""

    row, reason = 18, Reason.OVERSIZED

    def cheat(self, worker: Worker) -> Work:
        indices = pa.array(np.zeros(100_000, np.int32))
        return build_bomb(worker, "proofs", lambda kind: pa.array([b"\x00" * 1000]).take(indices))


def build_bomb(worker: Worker, column: str, build: Callable[[pa.DataType], pa.Array]) -> Work:
    """Return honest rows, except for the list in one column of one row."""
    work = worker.work()
    row = asdict(work.rollouts[0])
    arrays = []
    for field in SCHEMA:
        if field.name == column:
            values = build(field.type.value_type)
            offsets = pa.array([0, len(values)], pa.int32())
            arrays.append(pa.ListArray.from_arrays(offsets, values, type=field.type))
        else:
            arrays.append(pa.array([row[field.name]], field.type))
    return work.with_file(write(pa.Table.from_arrays(arrays, schema=SCHEMA), use_dictionary=True))


BOMBS: tuple[type[Cheat], ...] = (RowBomb, ListBomb, ProofBomb)
