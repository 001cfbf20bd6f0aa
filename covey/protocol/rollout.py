"""The file of a submission: one row per rollout, Parquet, written by workers and read by strangers.

`encode` is deterministic.  `decode` is for hostile bytes: it checks sizes, schema and decoded size before any row is
materialised, and belongs into a process that may die (`covey.sandbox` with `columns.decode_json`).
"""

import json
import math
import struct
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import accumulate, pairwise
from typing import Any

from covey.errors import ProtocolError
from covey.protocol.ids import GroupId


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """One row: a completion with its proofs and reward.

    Example: Rollout(group=0, sibling=3, seed=17, prompt=(2, 40), tokens=(41, 1), logprobs=(-0.1, -0.2),
    proofs=(b"...",), finished=True, reward=1.0).
    """

    group: GroupId
    sibling: int
    seed: int
    """The slot's 63-bit sampling seed."""
    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    """Completion tokens, with the end token where there is one."""
    logprobs: tuple[float, ...]
    """float32, of the unmodified model, one a token."""
    proofs: tuple[bytes, ...]
    """One TOPLOC proof per window of the pool's `proof_window` tokens, the last may be short."""
    finished: bool
    """Whether the last token is the end token."""
    reward: float


NAMES = tuple(field.name for field in fields(Rollout))
"""Of the columns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What a file may hold.  Decoded bytes are estimated from the metadata and enforced batch by batch."""

    file_bytes: int
    rows: int
    prompt_tokens: int
    completion_tokens: int
    proof_bytes: int = 258
    proof_window: int = 32
    """Tokens per proof."""

    @property
    def column_values(self) -> int:
        """Upper bound of the leaf values of any column of a lawful file."""
        return self.rows * max(self.prompt_tokens, self.completion_tokens)

    @property
    def decoded_bytes(self) -> int:
        """Upper bound of the Arrow size of a lawful file."""
        per_row = 64 + 4 * self.prompt_tokens + 8 * self.completion_tokens
        proofs = 1 + self.completion_tokens // self.proof_window
        return 4096 + self.rows * (per_row + (self.proof_bytes + 4) * proofs)


def encode(rollouts: Iterable[Rollout]) -> bytes:
    """Rows in order of (group, sibling) -> Parquet bytes; equal rows give equal bytes."""
    from covey.protocol import columns  # late: who only handles rows needs no Parquet, which is 40 MB of memory

    rows = sorted(rollouts, key=lambda r: (r.group, r.sibling))
    return columns.write({name: [getattr(row, name) for row in rows] for name in NAMES})


def decode(data: bytes, budget: Budget) -> list[Rollout]:
    """Hostile bytes -> rows; raise ProtocolError "oversized", "malformed" or "schema"."""
    if len(data) > budget.file_bytes:
        raise ProtocolError("oversized", f"the file has {len(data)} bytes, over {budget.file_bytes}")
    from covey.protocol import columns

    return [_to_rollout(row, budget) for row in columns.read(data, budget)]


def pack_call(data: bytes, budget: Budget) -> bytes:
    """Arguments of `columns.decode_json`: 4-byte length, budget as JSON, file."""
    return _frame(asdict(budget), data)


def unpack_call(payload: bytes) -> tuple[bytes, Budget]:
    """What `pack_call` was given."""
    budget, data = _unframe(payload)
    return data, Budget(**budget)


def pack_answer(rows: Sequence[Rollout]) -> bytes:
    """4-byte length, what is no list and the sizes of the lists as JSON, lists of all rows: exact, and fast to read."""
    plain = [
        {name: getattr(row, name) for name in _PLAIN}
        | {"sizes": [len(row.prompt), len(row.tokens), *map(len, row.proofs)]}
        for row in rows
    ]
    return _frame(plain, b"".join(map(_pack_lists, rows)))


def unpack_answer(answer: bytes) -> list[Rollout]:
    """The rows of `pack_answer`."""
    plain, lists = _unframe(answer)
    rows, start = [], 0
    for row in plain:
        prompt, tokens, *proofs = row.pop("sizes")
        numbers = struct.unpack_from(_spell(prompt, tokens), lists, start)
        ends = list(accumulate(proofs, initial=start + 4 * len(numbers)))
        start = ends[-1]
        rows.append(
            Rollout(
                **row,
                prompt=numbers[:prompt],
                tokens=numbers[prompt : prompt + tokens],
                logprobs=numbers[prompt + tokens :],
                proofs=tuple(lists[first:last] for first, last in pairwise(ends)),
            )
        )
    return rows


def count_units(rollouts: Sequence[Rollout]) -> int:
    """Work units of rows: their completion tokens."""
    return sum(len(rollout.tokens) for rollout in rollouts)


def _to_rollout(row: dict[str, Any], budget: Budget) -> Rollout:
    lists: dict[str, list[Any]] = {name: row[name] for name in ("prompt", "tokens", "logprobs", "proofs")}
    if not 0 < len(lists["prompt"]) <= budget.prompt_tokens:
        raise ProtocolError("oversized", "a prompt is empty or too long")
    if not 0 < len(lists["tokens"]) <= budget.completion_tokens:
        raise ProtocolError("oversized", "a completion is empty or too long")
    if len(lists["logprobs"]) != len(lists["tokens"]):
        raise ProtocolError("malformed", "one log-probability a token is due")
    if any(len(proof) > budget.proof_bytes for proof in lists["proofs"]):
        raise ProtocolError("oversized", "a proof is too long")
    if min(row["group"], row["sibling"], row["seed"], *lists["prompt"], *lists["tokens"]) < 0:
        raise ProtocolError("malformed", "a number is negative")
    if not all(map(math.isfinite, (row["reward"], *lists["logprobs"]))):
        raise ProtocolError("malformed", "a number is not finite")
    return Rollout(**(row | {name: tuple(values) for name, values in lists.items()}))


_PLAIN = ("group", "sibling", "seed", "finished", "reward")


def _pack_lists(row: Rollout) -> bytes:
    numbers = struct.pack(_spell(len(row.prompt), len(row.tokens)), *row.prompt, *row.tokens, *row.logprobs)
    return numbers + b"".join(row.proofs)


def _spell(prompt: int, tokens: int) -> str:
    """For `struct`: prompt, tokens, log-probabilities."""
    return f"<{prompt + tokens}i{tokens}f"


def _frame(head: object, body: bytes) -> bytes:
    text = json.dumps(head).encode()
    return len(text).to_bytes(4, "big") + text + body


def _unframe(frame: bytes) -> tuple[Any, bytes]:
    size = 4 + int.from_bytes(frame[:4], "big")
    return json.loads(frame[4:size]), frame[size:]
