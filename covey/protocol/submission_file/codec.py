"""Encodes the rows of a submission as Parquet, and decodes bytes from strangers.

`encode` is deterministic. `decode` checks sizes, schema and decoded size before it makes any row. It must run in a
process that may die, so `covey.sandbox` runs `build_decoder`. Importing this module loads Parquet, which takes memory;
`rows` and `sandbox_frames` do not need it.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any

from covey.errors import ProtocolError
from covey.protocol.submission_file import parquet
from covey.protocol.submission_file.rows import NAMES, Budget, Rollout
from covey.protocol.submission_file.sandbox_frames import pack_answer, unpack_call


def encode(rollouts: Iterable[Rollout]) -> bytes:
    """Encode rows as Parquet, in order of (group, sibling). Equal rows give equal bytes."""
    rows = sorted(rollouts, key=lambda r: (r.group, r.sibling))
    return parquet.write({name: [getattr(row, name) for row in rows] for name in NAMES})


def decode(data: bytes, budget: Budget) -> list[Rollout]:
    """Decode hostile bytes to rows. Raises ProtocolError with code "oversized", "malformed" or "schema"."""
    if len(data) > budget.file_bytes:
        raise ProtocolError(
            "oversized", f"the rollout file has {len(data)} bytes, but at most {budget.file_bytes} are allowed"
        )
    return [_to_rollout(row, budget) for row in parquet.read(data, budget)]


def decode_framed(payload: bytes) -> bytes:
    """Decode in a sandbox. `pack_call` packs the arguments, and `unpack_answer` reads the rows."""
    return pack_answer(decode(*unpack_call(payload)))


def build_decoder(setup: bytes) -> Callable[[bytes], bytes]:
    """Return `decode_framed` for a sandbox. `setup` is ignored."""
    return decode_framed


def _to_rollout(row: dict[str, Any], budget: Budget) -> Rollout:
    lists: dict[str, list[Any]] = {name: row[name] for name in ("prompt", "tokens", "logprobs", "proofs")}
    if not 0 < len(lists["prompt"]) <= budget.prompt_tokens:
        raise ProtocolError("oversized", "a prompt is empty or too long")
    if not 0 < len(lists["tokens"]) <= budget.completion_tokens:
        raise ProtocolError("oversized", "a completion is empty or too long")
    if len(lists["logprobs"]) != len(lists["tokens"]):
        raise ProtocolError(
            "malformed", "the number of log-probabilities of a completion differs from its number of tokens"
        )
    if any(len(proof) > budget.proof_bytes for proof in lists["proofs"]):
        raise ProtocolError("oversized", "a proof is too long")
    if min(row["group"], row["sibling"], row["seed"], *lists["prompt"], *lists["tokens"]) < 0:
        raise ProtocolError("malformed", "a number that must not be negative is negative")
    if not all(map(math.isfinite, (row["reward"], *lists["logprobs"]))):
        raise ProtocolError("malformed", "a reward or log-probability is NaN or Inf")
    return Rollout(**(row | {name: tuple(values) for name, values in lists.items()}))
