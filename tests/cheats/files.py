"""Rows 8, 12, 18 and 19 in the file itself: invalid Parquet, or valid Parquet with nonsense or an explosion."""

import io
import random
from dataclasses import asdict
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq

from covey.protocol.submission_file.parquet import SCHEMA
from covey.protocol.verdict import Reason
from tests.cheats.base import Cheat
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

    row = 12
    reason = Reason.MALFORMED
    schema: ClassVar[pa.Schema] = SCHEMA

    def cheat(self, worker: Worker) -> Work:
        work = worker.work()
        rows = [asdict(row) for row in work.rollouts]
        self.alter(rows, worker.rng)
        return work.with_file(write(pa.Table.from_pylist(rows, schema=self.schema)))

    def alter(self, rows: Rows, rng: random.Random) -> None:
        """Alter the rows in place."""


class NullToken(FileCheat):
    reason = Reason.SCHEMA
    schema = make_nullable(SCHEMA)

    def alter(self, rows: Rows, rng: random.Random) -> None:
        row = rng.choice(rows)
        row["tokens"] = [*row["tokens"][1:], None]


class NullReward(FileCheat):
    reason = Reason.SCHEMA
    schema = make_nullable(SCHEMA)

    def alter(self, rows: Rows, rng: random.Random) -> None:
        rng.choice(rows)["reward"] = None


class NullGroup(FileCheat):
    """Submits a group without a number, which belongs to no group or to every group."""

    reason = Reason.SCHEMA
    schema = make_nullable(SCHEMA)

    def alter(self, rows: Rows, rng: random.Random) -> None:
        rng.choice(rows)["group"] = None


class NanLogprob(FileCheat):
    def alter(self, rows: Rows, rng: random.Random) -> None:
        row = rng.choice(rows)
        row["logprobs"] = [float("nan")] * len(row["tokens"])


class NanReward(FileCheat):
    def alter(self, rows: Rows, rng: random.Random) -> None:
        rng.choice(rows)["reward"] = float("nan")


class InfiniteReward(FileCheat):
    def alter(self, rows: Rows, rng: random.Random) -> None:
        rng.choice(rows)["reward"] = rng.choice((1, -1)) * float("inf")


class NegativeGroup(FileCheat):
    def alter(self, rows: Rows, rng: random.Random) -> None:
        rng.choice(rows)["group"] = -rng.randint(1, 1 << 31)


class NegativeSibling(FileCheat):
    def alter(self, rows: Rows, rng: random.Random) -> None:
        rng.choice(rows)["sibling"] = -rng.randint(1, 1 << 31)


class NegativeToken(FileCheat):
    def alter(self, rows: Rows, rng: random.Random) -> None:
        row = rng.choice(rows)
        row["tokens"] = [-rng.randint(1, 1 << 31), *row["tokens"][1:]]


class NegativeSeed(FileCheat):
    def alter(self, rows: Rows, rng: random.Random) -> None:
        rng.choice(rows)["seed"] = -rng.randint(1, 1 << 63)


class LogprobTooMany(FileCheat):
    def alter(self, rows: Rows, rng: random.Random) -> None:
        row = rng.choice(rows)
        row["logprobs"] = [*row["logprobs"], -0.5]


class EmptyCompletion(FileCheat):
    reason = Reason.OVERSIZED

    def alter(self, rows: Rows, rng: random.Random) -> None:
        row = rng.choice(rows)
        row["tokens"], row["logprobs"] = [], []


class LongCompletion(FileCheat):
    """Uses a target length other than the pool's, for more units."""

    row, reason = 6, Reason.OVERSIZED

    def alter(self, rows: Rows, rng: random.Random) -> None:
        row, length = rng.choice(rows), rng.randint(9, 40)
        row["tokens"], row["logprobs"] = [3] * length, [-0.5] * length


class ExtraRows(FileCheat):
    reason = Reason.OVERSIZED

    def alter(self, rows: Rows, rng: random.Random) -> None:
        rows.extend(dict(rng.choice(rows)) for _ in range(rng.randint(1, len(rows))))


class ExtraColumn(FileCheat):
    row, reason = 19, Reason.SCHEMA
    schema = SCHEMA.append(pa.field("note", pa.string()))

    def alter(self, rows: Rows, rng: random.Random) -> None:
        for row in rows:
            row["note"] = "pay me"


class InventedAdvantage(FileCheat):
    """Adds advantages. The schema has no column for them, because they are computed from the rewards."""

    row, reason = 8, Reason.SCHEMA
    schema = SCHEMA.append(pa.field("advantage", pa.float64(), nullable=False))

    def alter(self, rows: Rows, rng: random.Random) -> None:
        for row in rows:
            row["advantage"] = rng.uniform(1, 100)


class MissingColumn(FileCheat):
    row, reason = 19, Reason.SCHEMA
    schema = SCHEMA.remove(SCHEMA.get_field_index("proofs"))


class WiderNumbers(FileCheat):
    row, reason = 19, Reason.SCHEMA
    schema = SCHEMA.set(0, pa.field("group", pa.int64(), nullable=False))


class NotParquet(Cheat):
    row, reason = 19, Reason.MALFORMED

    def cheat(self, worker: Worker) -> Work:
        return worker.work().with_file(b"PAR1" + worker.rng.randbytes(100) + b"PAR1")


class EmptyFile(Cheat):
    row, reason = 19, Reason.MALFORMED

    def cheat(self, worker: Worker) -> Work:
        return worker.work().with_file(b"")


class CutFile(Cheat):
    row, reason = 19, Reason.MALFORMED

    def cheat(self, worker: Worker) -> Work:
        work = worker.work()
        return work.with_file(work.file[: len(work.file) * 2 // 3])


class Oversized(Cheat):
    row, reason = 18, Reason.OVERSIZED

    def cheat(self, worker: Worker) -> Work:
        work = worker.work()
        return work.with_file(work.file + b"\x00" * worker.params.max_submission_bytes)


class AnotherFile(Cheat):
    """Uploads a file other than the one that it signed for."""

    row, reason = 12, Reason.MALFORMED

    def cheat(self, worker: Worker) -> Work:
        work = worker.work()
        i = worker.rng.randrange(len(work.file))
        file = work.file[:i] + bytes([work.file[i] ^ worker.rng.randint(1, 255)]) + work.file[i + 1 :]
        return Work(receipt=work.receipt, rollouts=work.rollouts, file=file)


FILES: tuple[type[Cheat], ...] = (
    NullToken, NullReward, NullGroup, NanLogprob, NanReward, InfiniteReward, NegativeGroup, NegativeSibling,
    NegativeToken, NegativeSeed, LogprobTooMany, EmptyCompletion, LongCompletion, ExtraRows, ExtraColumn,
    InventedAdvantage, MissingColumn, WiderNumbers, NotParquet, EmptyFile, CutFile, Oversized, AnotherFile,
)  # fmt: skip
