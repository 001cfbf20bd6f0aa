"""Keys of the objects in a pool's object store. Coordinator, validators and auditors build and parse them here.

An upload is written by its node and may change. Every other object is immutable, because its key contains the
hash of its content.
"""

import re
from dataclasses import dataclass
from typing import Literal

from covey.protocol.ids import Hash, LeaseId, TaskId

_HASH = "0x[0-9a-f]{64}"
_PUBLIC = {
    "evidence": re.compile(rf"evidence/(?P<pool>[0-9]+)/(?P<hash>{_HASH})\.json"),
    "submissions": re.compile(
        rf"submissions/(?P<pool>[0-9]+)/(?P<task>[0-9]{{1,18}})-(?P<lease>[0-9]{{1,18}})/(?P<hash>{_HASH})\.parquet"
    ),
    "epochs": re.compile(rf"epochs/(?P<pool>[0-9]+)/(?P<hash>{_HASH})\.json"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicObjectKey:
    """The parts of the key of a public object. Example: PublicObjectKey(kind="epochs", pool="7", hash="0x...", ...)."""

    kind: Literal["evidence", "submissions", "epochs"]
    pool: str
    hash: Hash
    """Hash of the content."""
    task: TaskId
    """Task id of a submission. 0 for all other kinds."""
    lease: LeaseId
    """Lease id of a submission. 0 for all other kinds."""


def build_upload_key(pool: int, task: int, lease: int, work_key: Hash) -> str:
    """Return the key under which a node uploads the file of its lease, before the receipt is recorded."""
    return f"uploads/{pool}/{task}-{lease}/{work_key}.parquet"


def build_submission_key(pool: int, task: int, lease: int, work_key: Hash) -> str:
    """Return the key under which a submission's file is stored once its receipt is recorded."""
    return f"submissions/{pool}/{task}-{lease}/{work_key}.parquet"


def build_evidence_key(pool: int, evidence_hash: str) -> str:
    """Return the key of a verdict's evidence bundle."""
    return f"evidence/{pool}/{evidence_hash}.json"


def build_epoch_key(pool: int, data_hash: str) -> str:
    """Return the key of the file that contains an epoch's leaves and rewards."""
    return f"epochs/{pool}/{data_hash}.json"


def get_content_hash(key: str) -> str:
    """Return the hash that the key of an upload or a submission requires its file to have."""
    return key.rpartition("/")[2].removesuffix(".parquet")


def parse_public_key(key: str) -> PublicObjectKey | None:
    """Parse the key of evidence, a submission or an epoch. Return None for any other string."""
    for kind in ("evidence", "submissions", "epochs"):
        if match := _PUBLIC[kind].fullmatch(key):
            parts = match.groupdict()
            return PublicObjectKey(
                kind=kind,
                pool=parts["pool"],
                hash=Hash(parts["hash"]),
                task=TaskId(int(parts.get("task", 0))),
                lease=LeaseId(int(parts.get("lease", 0))),
            )
    return None
