"""Repairs a database that was restored from a backup.

Leases and tasks that were created after the backup are lost, so `jump` skips their numbers. A node that got the same
lease number twice would sign two receipts for it, which costs stake. Epochs that were posted after the backup are
imported from their files (`import_epoch`).
"""

import json
from typing import Any

from coordinator.db.models import NodeRow, SubmissionRow, TaskRow
from coordinator.db.repository import Repository
from covey.errors import ProtocolError
from covey.protocol import canonical
from covey.protocol.epochs import EpochHeader
from covey.protocol.ids import Address
from covey.protocol.status import SubmissionState, TaskState
from covey.protocol.verdict import Decision, Reason, Severity

MARGIN = 1_000_000
"""Maximum number of tasks, and of leases, that may have been created after the backup."""


def jump(repository: Repository, *, margin: int = MARGIN) -> int:
    """End all tasks, raise the next numbers of tasks and leases by `margin`, and have the chain read again.

    Returns the number of the next lease.
    """
    for task in repository.list_tasks(TaskState.PENDING, TaskState.ASSIGNED):
        task.state = TaskState.EXPIRED
    repository.replace_blocks([])
    latest = repository.get_latest_step()
    if latest is not None:  # New ids follow the highest one, so an expired task marks the end of the gap.
        last = max((repository.get_last_task() or 0), 0)
        gap = TaskRow(id=last + margin, policy_version=latest.number, groups=1, state=TaskState.EXPIRED)
        repository.add(gap)
        repository.number_tasks_from(gap.id + 1)
    repository.set_fact("lease", repository.get_fact("lease") + margin)
    return repository.get_fact("lease") + 1


def import_epoch(repository: Repository, header: EpochHeader, data: bytes, *, now: float) -> None:
    """Update the rows from the file of an epoch on chain.

    Unknown submissions get rows with the contents of their leaves. Their receipts are lost, so challenges of them
    cannot be answered. Raises ProtocolError("bad_epoch_file") if the file does not have the hash in the header.
    """
    file = _read(header, data)
    _clear(repository, header)
    row = repository.require_epoch(header.epoch, closed_at=now)
    row.work_root, row.reward_root, row.data_hash = header.work_root, header.reward_root, header.data_hash
    row.previous_hash, row.leaf_count, row.units = header.previous_hash, header.leaf_count, header.units
    row.verdicts = header.verdicts
    repository.flush()
    for leaf in file["leaves"]:
        _import_leaf(repository, header.epoch, leaf, now=now)
    rewards = {Address(who): int(amount) for who, amount in file["rewards"].items()}
    repository.add_rewards(header.epoch, rewards, file.get("verdicts", {}))


def _read(header: EpochHeader, data: bytes) -> Any:
    if canonical.sha256(data) != header.data_hash:
        raise ProtocolError(
            "bad_epoch_file", f"the file of epoch {header.epoch} does not have the hash {header.data_hash}"
        )
    return json.loads(data)


def _clear(repository: Repository, header: EpochHeader) -> None:
    """Release the submissions that this database has put into the epoch, or into later epochs that are not on chain."""
    for row in repository.list_unposted():
        if row.number >= header.epoch:
            repository.release_from_epoch(row.number)
            repository.clear_rewards(row.number)
            if row.number > header.epoch:
                repository.delete_epoch(row.number)


def _import_leaf(repository: Repository, epoch: int, leaf: dict[str, Any], *, now: float) -> None:
    row = repository.get_submission(leaf["receipt_hash"]) or _add_unknown(repository, epoch, leaf)
    reason, step = Reason(leaf["reason"]), repository.get_step(leaf["policy_version"])
    is_accepted = leaf["outcome"] == Decision.ACCEPT
    if step is not None:
        step.accepted_groups += row.groups * (is_accepted - (row.decision is Decision.ACCEPT))
    row.epoch, row.decision, row.reason = epoch, Decision(leaf["outcome"]), reason
    row.units, row.evidence_hash = leaf["units"], leaf["evidence_hash"]
    row.decided_at = row.decided_at or now
    hard = reason.severity is Severity.HARD
    row.state = SubmissionState.ACCEPTED if is_accepted else SubmissionState.REJECTED if hard else SubmissionState.VOID


def _add_unknown(repository: Repository, epoch: int, leaf: dict[str, Any]) -> SubmissionRow:
    if repository.get_node(leaf["node"]) is None:
        repository.require_contributor(Address(leaf["contributor"]))
        repository.add(NodeRow(address=leaf["node"], contributor=leaf["contributor"], removed=True))
    task = repository.get_task(leaf["task"])
    if task is None:
        task = TaskRow(id=leaf["task"], policy_version=leaf["policy_version"], groups=1)
    task.state = TaskState.SUBMITTED
    repository.add(task)
    row = SubmissionRow(
        receipt_hash=leaf["receipt_hash"],
        task=leaf["task"],
        lease=0,
        node=leaf["node"],
        contributor=leaf["contributor"],
        policy_version=leaf["policy_version"],
        work_key=leaf["work_key"],
        groups=0,
        units=leaf["units"],
        receipt_units=leaf["units"],
        deadline=0,
        signature="",
        signed_at=leaf["signed_at"],
        due_by=0,
        countersignature="",
        audited=False,
    )
    repository.add(row)
    return row
