"""Canonical JSON: each value has exactly one encoding, so that all parties compute the same hashes."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from covey.protocol.ids import Hash, hash_from_bytes


def to_bytes(value: Mapping[str, Any]) -> bytes:
    """Encode a value as UTF-8 JSON with sorted keys and no whitespace. Raises ValueError for NaN or Inf."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def sha256(data: bytes) -> Hash:
    """Return the SHA-256 of `data`. It identifies files, manifests and evidence."""
    return hash_from_bytes(hashlib.sha256(data).digest())
