"""Encodes the rows of a submission as Parquet, and decodes untrusted bytes.

`encode` is deterministic. `decode` checks sizes, schema and decoded size before it creates any row. Hostile
input may crash it, so `covey.sandbox` runs it in a separate process, through `build_decoder`. Importing this
module loads pyarrow, which takes memory. `rows` and `sandbox_frames` do not need pyarrow.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any

from covey.errors import ProtocolError
from covey.protocol.submission_file import parquet
from covey.protocol.submission_file.rows import CONTRACT_CHARACTERS, NAMES, Budget, Rollout
from covey.protocol.submission_file.sandbox_frames import pack_rows, unpack_call


def encode(rollouts: Iterable[Rollout]) -> bytes:
    """Encode rows as Parquet, sorted by (group, sibling). The same rows always give the same bytes."""
    rows = sorted(rollouts, key=lambda r: (r.group, r.sibling))
    return parquet.write({name: [getattr(row, name) for row in rows] for name in NAMES})


def decode(data: bytes, budget: Budget) -> list[Rollout]:
    """Decode untrusted bytes to rows. Raises ProtocolError with the code "oversized", "malformed" or "schema"."""
    if len(data) > budget.file_bytes:
        raise ProtocolError(
            "oversized", f"the rollout file has {len(data)} bytes, but at most {budget.file_bytes} are allowed"
        )
    return [_to_rollout(row, budget) for row in parquet.read(data, budget)]


def decode_framed(payload: bytes) -> bytes:
    """Decode a file inside a sandbox. The input comes from `pack_call`, and the output is for `unpack_rows`."""
    return pack_rows(decode(*unpack_call(payload)))


def build_decoder(setup: bytes) -> Callable[[bytes], bytes]:
    """Return `decode_framed`. This is the factory that a sandbox calls. `setup` is ignored."""
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
    if len(row["contract"]) > CONTRACT_CHARACTERS:
        raise ProtocolError("oversized", "the digest of a contract is too long")
    if min(row["group"], row["sibling"], row["seed"], *lists["prompt"], *lists["tokens"]) < 0:
        raise ProtocolError("malformed", "a number that must not be negative is negative")
    if not all(map(math.isfinite, (row["reward"], *lists["logprobs"]))):
        raise ProtocolError("malformed", "a reward or log-probability is NaN or Inf")
    return Rollout(**(row | {name: tuple(values) for name, values in lists.items()}))
