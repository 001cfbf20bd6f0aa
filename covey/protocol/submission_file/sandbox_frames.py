"""Messages between a role and its decoding sandbox: a file with its budget, and the decoded rows."""

import json
import struct
from collections.abc import Sequence
from dataclasses import asdict
from itertools import accumulate, pairwise
from typing import Any

from covey.protocol.submission_file.rows import Budget, Rollout


def pack_call(data: bytes, budget: Budget) -> bytes:
    """Pack the arguments of `codec.decode_framed`: a 4-byte length, the budget as JSON, and the file."""
    return _frame(asdict(budget), data)


def unpack_call(payload: bytes) -> tuple[bytes, Budget]:
    """Return the arguments that `pack_call` packed."""
    budget, data = _unframe(payload)
    return data, Budget(**budget)


def pack_rows(rows: Sequence[Rollout]) -> bytes:
    """Pack rows in a format that is lossless and fast to parse.

    It consists of a 4-byte length, then JSON with the scalar values and the list lengths, then the lists of all
    rows.
    """
    plain = [
        {name: getattr(row, name) for name in _PLAIN}
        | {"sizes": [len(row.prompt), len(row.tokens), *map(len, row.proofs)]}
        for row in rows
    ]
    return _frame(plain, b"".join(map(_pack_lists, rows)))


def unpack_rows(answer: bytes) -> list[Rollout]:
    """Return the rows that `pack_rows` packed."""
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


_PLAIN = ("group", "sibling", "seed", "finished", "reward", "contract")


def _pack_lists(row: Rollout) -> bytes:
    numbers = struct.pack(_spell(len(row.prompt), len(row.tokens)), *row.prompt, *row.tokens, *row.logprobs)
    return numbers + b"".join(row.proofs)


def _spell(prompt: int, tokens: int) -> str:
    """Return the `struct` format of a row's prompt, tokens and log-probabilities."""
    return f"<{prompt + tokens}i{tokens}f"


def _frame(head: object, body: bytes) -> bytes:
    text = json.dumps(head).encode()
    return len(text).to_bytes(4, "big") + text + body


def _unframe(frame: bytes) -> tuple[Any, bytes]:
    size = 4 + int.from_bytes(frame[:4], "big")
    return json.loads(frame[4:size]), frame[size:]
