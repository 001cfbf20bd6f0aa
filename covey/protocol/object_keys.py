"""Names of the objects in a pool's store.  Coordinator, validators and auditors build and read them here.

An upload may be written by its node; every other object has a key that names the hash of its content.
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
class PublicKey:
    """The parts of a key that anybody may ask for.  Example: PublicKey(kind="epochs", pool="7", hash="0x...")."""

    kind: Literal["evidence", "submissions", "epochs"]
    pool: str
    hash: Hash
    """Hash of the content."""
    task: TaskId
    """Task of a submission; 0 for other kinds."""
    lease: LeaseId
    """Lease of a submission; 0 for other kinds."""


def build_upload_key(pool: int, task: int, lease: int, work_key: Hash) -> str:
    """Where a node writes the file of its lease, until the receipt is recorded."""
    return f"uploads/{pool}/{task}-{lease}/{work_key}.parquet"


def build_submission_key(pool: int, task: int, lease: int, work_key: Hash) -> str:
    """Where the file of a recorded receipt is kept."""
    return f"submissions/{pool}/{task}-{lease}/{work_key}.parquet"


def build_evidence_key(pool: int, evidence_hash: str) -> str:
    """Where the evidence bundle of a verdict is kept."""
    return f"evidence/{pool}/{evidence_hash}.json"


def build_epoch_key(pool: int, data_hash: str) -> str:
    """Where the leaves and rewards of an epoch are kept."""
    return f"epochs/{pool}/{data_hash}.json"


def get_content_hash(key: str) -> str:
    """The hash that the file of an upload or a submission must have."""
    return key.rpartition("/")[2].removesuffix(".parquet")


def parse_public_key(key: str) -> PublicKey | None:
    """The parts of a key of evidence, a submission or an epoch; None for every other text."""
    for kind in ("evidence", "submissions", "epochs"):
        if match := _PUBLIC[kind].fullmatch(key):
            parts = match.groupdict()
            return PublicKey(
                kind=kind,
                pool=parts["pool"],
                hash=Hash(parts["hash"]),
                task=TaskId(int(parts.get("task", 0))),
                lease=LeaseId(int(parts.get("lease", 0))),
            )
    return None
