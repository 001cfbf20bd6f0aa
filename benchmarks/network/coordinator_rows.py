"""Writes the rows of a large pool into the database of a coordinator, without its routes."""

import hashlib
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from eth_utils.address import to_checksum_address
from sqlalchemy import insert

from coordinator.db.database import Database
from coordinator.db.models import (
    Base,
    ContributorRow,
    EpochRow,
    NodeRow,
    RewardRow,
    StepRow,
    SubmissionRow,
    TaskRow,
    TurnRow,
)
from covey.protocol.ids import Address, Hash
from covey.protocol.messages import Verdict
from covey.protocol.status import StepState, SubmissionState, TaskState
from covey.protocol.verdict import Decision

_PART = 10_000
"""Number of rows in one statement."""
_SIGNATURE = "0x" + "11" * 65


@dataclass(frozen=True, kw_only=True)
class Crowd:
    """Sizes of a pool. Example: Crowd(submissions=10**6, unsettled=50_000, nodes=10_000)."""

    submissions: int
    unsettled: int
    """Number of the last submissions that no epoch holds."""
    nodes: int
    leaves: int = 10_000
    """Leaves of each epoch that is posted."""
    per_step: int = 4_000
    """Submissions of each step."""

    @property
    def contributors(self) -> int:
        """Number of contributors. Each has ten nodes."""
        return max(1, self.nodes // 10)

    @property
    def epochs(self) -> int:
        """Number of epochs that are posted."""
        return (self.submissions - self.unsettled) // self.leaves

    @property
    def open_leaves(self) -> int:
        """Number of submissions that no epoch holds."""
        return self.submissions - self.epochs * self.leaves

    def find_epoch(self, number: int) -> int | None:
        """Return the epoch of a submission."""
        epoch = number // self.leaves
        return epoch if epoch < self.epochs else None


def fill(database: Database, crowd: Crowd) -> list[str]:
    """Write all rows. Returns the paths of all public pages."""
    _insert(database, ContributorRow, ({"address": _address(f"c{i}"), "strikes": 0} for i in range(crowd.contributors)))
    _insert(database, NodeRow, _list_nodes(crowd))
    steps = range(1, crowd.submissions // crowd.per_step + 1)
    _insert(database, StepRow, ({"number": i, "record_hash": _hash(f"p{i}"), "block_number": 1} | _OPEN for i in steps))
    _insert(database, EpochRow, _list_epochs(crowd))
    _insert(database, RewardRow, _list_rewards(crowd))
    _insert(database, TaskRow, _list_tasks(crowd))
    _insert(database, SubmissionRow, _list_submissions(crowd))
    _insert(database, TurnRow, _list_judgements(crowd))
    with database.write() as rows:
        rows.set_fact("lease", crowd.submissions)
    node, contributor, receipt = _address("n0"), _address("c0"), _hash("r7")
    return [
        "/v1/pool",
        "/v1/status",
        "/v1/submissions?limit=100",
        f"/v1/submissions?contributor={contributor}",
        f"/v1/submissions?node={node}",
        "/v1/submissions?state=REJECTED",
        f"/v1/submissions/{receipt}",
        f"/v1/nodes/{node}",
        f"/v1/rewards/{contributor}?epoch={crowd.epochs - 1}",
    ]


_OPEN = {"state": StepState.READY, "packed_groups": 4000, "packed_live_groups": 3000}


def _insert(database: Database, model: type[Base], rows: Iterable[dict[str, Any]]) -> None:
    remaining = iter(rows)
    while part := list(islice(remaining, _PART)):
        with database.write() as repository:
            repository.session.execute(insert(model), part)


def _list_nodes(crowd: Crowd) -> Iterator[dict[str, Any]]:
    now = time.time()
    for i in range(crowd.nodes):
        about = {"address": _address(f"n{i}"), "contributor": _address(f"c{i % crowd.contributors}")}
        yield about | {"accepted": 100, "seen_at": now, "waiting_until": now + 3600, "free_slots": 4}


def _list_epochs(crowd: Crowd) -> Iterator[dict[str, Any]]:
    for i in range(crowd.epochs):
        hashes = {name: _hash(f"{name} {i}") for name in ("work_root", "reward_root", "data_hash", "header_hash")}
        yield hashes | {
            "number": i,
            "previous_hash": _hash("before"),
            "leaf_count": crowd.leaves,
            "units": 8 * crowd.leaves,
            "closed_at": 0.0,
            "final_at": 1,
            "posted_block": 1,
            "reward": "1",
            "cumulative": "1",
            "disabled": False,
        }


def _list_rewards(crowd: Crowd) -> Iterator[dict[str, Any]]:
    """Rewards of the last epoch. Those of earlier ones lie under other keys."""
    for i in range(crowd.contributors):
        yield {"epoch": crowd.epochs - 1, "contributor": _address(f"c{i}"), "cumulative": str(1000 + i)}


def _list_tasks(crowd: Crowd) -> Iterator[dict[str, Any]]:
    for i in range(crowd.submissions):
        about = {"id": 10**6 + i, "policy_version": i // crowd.per_step, "groups": 1}
        yield about | {"state": TaskState.SUBMITTED, "node": _address(f"n{i % crowd.nodes}"), "lease": i + 1}


def _list_submissions(crowd: Crowd) -> Iterator[dict[str, Any]]:
    for i in range(crowd.submissions):
        epoch, is_rejected = crowd.find_epoch(i), i % 1000 == 999
        state = SubmissionState.REJECTED if is_rejected else SubmissionState.ACCEPTED
        yield {
            "receipt_hash": _hash(f"r{i}"),
            "task": 10**6 + i,
            "lease": i + 1,
            "node": _address(f"n{i % crowd.nodes}"),
            "contributor": _address(f"c{i % crowd.nodes % crowd.contributors}"),
            "policy_version": i // crowd.per_step,
            "work_key": _hash(f"w{i}"),
            "groups": 1,
            "units": 0 if is_rejected else 8,
            "receipt_units": 8,
            "live_groups": 1,
            "deadline": 2 * 10**9,
            "signature": _SIGNATURE,
            "countersignature": _SIGNATURE,
            "signed_at": 1_700_000_000 + i,
            "due_by": 10**6,
            "state": state if epoch is None else SubmissionState.SETTLED,
            "draw": _hash("block"),
            "audited": False,
            "decision": Decision.REJECT if is_rejected else Decision.ACCEPT,
            "reason": 5 if is_rejected else 0,
            "evidence_hash": _hash("evidence"),
            "decided_at": 1_700_000_000.0,
            "step": i // crowd.per_step,
            "epoch": epoch,
        }


def _list_judgements(crowd: Crowd) -> Iterator[dict[str, Any]]:
    for i in range(crowd.submissions):
        validator = _address(f"v{i % 3}")
        verdict = Verdict(
            pool=1,  # type: ignore[arg-type]
            receipt_hash=_hash(f"r{i}"),
            work_key=_hash(f"w{i}"),
            validator=validator,
            outcome=1,
            reason=0,
            severity=0,
            units=8,
            evidence_hash=_hash("evidence"),
            deadline=2 * 10**9,
        )
        about = {"receipt_hash": verdict.receipt_hash, "validator": validator, "full": False, "opened_at": 0.0}
        yield about | {"commitment": _hash("commitment"), "verdict": verdict, "signature": _SIGNATURE}


def _hash(text: str) -> Hash:
    return Hash("0x" + hashlib.sha256(text.encode()).hexdigest())


_KNOWN: dict[str, Address] = {}


def _address(text: str) -> Address:
    if text not in _KNOWN:
        _KNOWN[text] = Address(to_checksum_address("0x" + hashlib.sha256(text.encode()).hexdigest()[:40]))
    return _KNOWN[text]
