"""Cheats below the rows: files that are no honest Parquet, or honest Parquet that says nonsense or explodes."""

import io
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from covey.protocol.rollout import SCHEMA
from covey.protocol.verdict import Reason
from tests.cheats.content import Cheat
from tests.fakes.tools import Work, Worker

Rows = list[dict[str, Any]]


def write(table: pa.Table, **options: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, **({"compression": "zstd", "use_dictionary": False} | options))
    return sink.getvalue()


def make_nullable(schema: pa.Schema) -> pa.Schema:
    fields = []
    for field in schema:
        kind = field.type
        if pa.types.is_list(kind):
            kind = pa.list_(pa.field("element", kind.value_type, nullable=True))
        fields.append(pa.field(field.name, kind, nullable=True))
    return pa.schema(fields)


class FileCheat(Cheat):
    """Alters the rows as plain values and writes them with any schema."""

    reason = Reason.MALFORMED
    schema: ClassVar[pa.Schema] = SCHEMA

    def cheat(self, worker: Worker) -> Work:
        work = worker.work()
        rows = [asdict(row) for row in work.rollouts]
        self.alter(rows)
        return work.with_file(write(pa.Table.from_pylist(rows, schema=self.schema)))

    def alter(self, rows: Rows) -> None:
        """In place."""


class NullToken(FileCheat):
    reason = Reason.SCHEMA
    schema = make_nullable(SCHEMA)

    def alter(self, rows: Rows) -> None:
        rows[0]["tokens"] = [None, *rows[0]["tokens"][1:]]


class NullReward(FileCheat):
    reason = Reason.SCHEMA
    schema = make_nullable(SCHEMA)

    def alter(self, rows: Rows) -> None:
        rows[2]["reward"] = None


class NanLogprob(FileCheat):
    def alter(self, rows: Rows) -> None:
        rows[0]["logprobs"] = [float("nan")] * len(rows[0]["tokens"])


class InfiniteReward(FileCheat):
    def alter(self, rows: Rows) -> None:
        rows[0]["reward"] = float("inf")


class NegativeGroup(FileCheat):
    def alter(self, rows: Rows) -> None:
        rows[0]["group"] = -1


class NegativeToken(FileCheat):
    def alter(self, rows: Rows) -> None:
        rows[0]["tokens"] = [-1, *rows[0]["tokens"][1:]]


class NegativeSeed(FileCheat):
    def alter(self, rows: Rows) -> None:
        rows[0]["seed"] = -5


class LogprobTooMany(FileCheat):
    def alter(self, rows: Rows) -> None:
        rows[0]["logprobs"] = [*rows[0]["logprobs"], -0.5]


class EmptyCompletion(FileCheat):
    reason = Reason.OVERSIZED

    def alter(self, rows: Rows) -> None:
        rows[0]["tokens"], rows[0]["logprobs"] = [], []


class LongCompletion(FileCheat):
    reason = Reason.OVERSIZED

    def alter(self, rows: Rows) -> None:
        rows[0]["tokens"], rows[0]["logprobs"] = [3] * 9, [-0.5] * 9


class ExtraRows(FileCheat):
    reason = Reason.OVERSIZED

    def alter(self, rows: Rows) -> None:
        rows.extend(dict(row) for row in list(rows))


class ExtraColumn(FileCheat):
    reason = Reason.SCHEMA
    schema = SCHEMA.append(pa.field("note", pa.string()))

    def alter(self, rows: Rows) -> None:
        for row in rows:
            row["note"] = "pay me"


class MissingColumn(FileCheat):
    reason = Reason.SCHEMA
    schema = SCHEMA.remove(SCHEMA.get_field_index("proofs"))


class WiderNumbers(FileCheat):
    reason = Reason.SCHEMA
    schema = SCHEMA.set(0, pa.field("group", pa.int64(), nullable=False))


class NotParquet(Cheat):
    reason = Reason.MALFORMED

    def cheat(self, worker: Worker) -> Work:
        return worker.work().with_file(b"PAR1" + b"\x00" * 100 + b"PAR1")


class EmptyFile(Cheat):
    reason = Reason.MALFORMED

    def cheat(self, worker: Worker) -> Work:
        return worker.work().with_file(b"")


class CutFile(Cheat):
    reason = Reason.MALFORMED

    def cheat(self, worker: Worker) -> Work:
        work = worker.work()
        return work.with_file(work.file[: len(work.file) * 2 // 3])


class Oversized(Cheat):
    reason = Reason.OVERSIZED

    def cheat(self, worker: Worker) -> Work:
        work = worker.work()
        return work.with_file(work.file + b"\x00" * worker.params.max_submission_bytes)


class AnotherFile(Cheat):
    """Uploads something else than what it signed for."""

    reason = Reason.MALFORMED

    def cheat(self, worker: Worker) -> Work:
        work = worker.work()
        return Work(receipt=work.receipt, rollouts=work.rollouts, file=work.file[:-1] + b"\x00")


# -- bombs: a few kilobytes that decode to gigabytes


class RowBomb(Cheat):
    """A million rows of nothing in a few kilobytes."""

    reason = Reason.OVERSIZED

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
    """One row whose tokens are tens of millions of zeros, which run lengths hold in a few bytes."""

    reason = Reason.OVERSIZED
    values: ClassVar[int] = 30_000_000

    def cheat(self, worker: Worker) -> Work:
        return build_bomb(worker, "tokens", lambda kind: pa.array(np.zeros(self.values, np.int32)))


class ProofBomb(Cheat):
    """One value of a kilobyte, named a million times through a dictionary."""

    reason = Reason.OVERSIZED

    def cheat(self, worker: Worker) -> Work:
        indices = pa.array(np.zeros(1_000_000, np.int32))
        return build_bomb(worker, "proofs", lambda kind: pa.array([b"\x00" * 1000]).take(indices))


def build_bomb(worker: Worker, column: str, build: Callable[[pa.DataType], pa.Array]) -> Work:
    """Honest rows, but the list of one column of one row."""
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


FILES: tuple[type[Cheat], ...] = (
    NullToken, NullReward, NanLogprob, InfiniteReward, NegativeGroup, NegativeToken, NegativeSeed, LogprobTooMany,
    EmptyCompletion, LongCompletion, ExtraRows, ExtraColumn, MissingColumn, WiderNumbers, NotParquet, EmptyFile,
    CutFile, Oversized, AnotherFile,
)  # fmt: skip
BOMBS: tuple[type[Cheat], ...] = (RowBomb, ListBomb, ProofBomb)
