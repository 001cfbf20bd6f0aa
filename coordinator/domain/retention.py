"""Finds files of submissions that may be deleted, because no verdict, case or batch can need them any more.

Epochs are processed in order, a few files at a time, so little is repeated after a crash.
"""

from dataclasses import dataclass

from coordinator.db.repository import Repository
from coordinator.domain.steps import get_oldest_version
from covey.chain.structs import PoolTerms
from covey.protocol.ids import Hash, LeaseId, TaskId
from covey.protocol.object_keys import build_submission_key
from covey.protocol.params import PoolParams

SLICE = 100
"""Maximum number of files that are deleted at once, so that other jobs can run in between."""
DAY_SECONDS = 86_400.0
EPOCH, TASK = "pruned_epoch", "pruned_task"
"""Names of facts: the epoch whose files are deleted next, and the last task in it whose file is deleted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outdated:
    """Files of an epoch, up to a task, that may be deleted."""

    epoch: int
    task: int
    keys: tuple[str, ...]
    """Keys in the object store. If there are fewer than `SLICE`, they are the last ones of the epoch."""


def compute_keeping(days: float, terms: PoolTerms) -> float:
    """Return the time in seconds for which files are kept after their epoch is final.

    It is at least the time in which a case can be opened. A case needs valid verdicts, which validators sign for
    `unbond_window` and a day (`validator.app`).
    """
    return max(days * DAY_SECONDS, terms.unbond_window + DAY_SECONDS)


def find_outdated(repository: Repository, params: PoolParams, pool: int, *, final_before: float) -> Outdated | None:
    """Return the next files to delete, of an epoch that was final before a chain time. None if there are none.

    The files of an epoch are kept while a case about any of its submissions is open, and while the trainer may still
    need any of them.
    """
    number, after = repository.get_fact(EPOCH), repository.get_fact(TASK)
    epoch = repository.get_epoch(number)
    if epoch is None or epoch.final_at is None or epoch.final_at > final_before:
        return None
    if not epoch.disabled and repository.is_needed(number, oldest_version=get_oldest_version(repository, params)):
        return None
    files = repository.list_files(number, after_task=after, limit=SLICE)
    keys = tuple(build_submission_key(pool, TaskId(task), LeaseId(lease), Hash(key)) for task, lease, key in files)
    return Outdated(epoch=number, task=files[-1][0] if files else after, keys=keys)


def record_pruned(repository: Repository, outdated: Outdated) -> None:
    """Record that files are deleted. After the last files of an epoch, the next epoch follows."""
    is_last = len(outdated.keys) < SLICE
    repository.set_fact(EPOCH, outdated.epoch + is_last)
    repository.set_fact(TASK, 0 if is_last else outdated.task)
