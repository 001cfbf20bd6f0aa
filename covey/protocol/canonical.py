"""Canonical JSON: one byte string for one value, so that everyone computes the same hashes."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from covey.protocol.ids import Hash, hash_from_bytes


def to_bytes(value: Mapping[str, Any]) -> bytes:
    """UTF-8 JSON with sorted keys, no blanks, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def sha256(data: bytes) -> Hash:
    """SHA-256 of `data`: names files, manifests, evidence."""
    return hash_from_bytes(hashlib.sha256(data).digest())
