"""Which files of submissions may be removed: those that no verdict, case or batch can rest on any more.

Epochs are taken in their order, some files at a time, so a crash repeats little.
"""

from dataclasses import dataclass

from coordinator.db.repository import Repository
from coordinator.domain.steps import get_oldest_version
from covey.chain.structs import PoolTerms
from covey.protocol.ids import Hash, LeaseId, TaskId
from covey.protocol.object_keys import build_submission_key
from covey.protocol.params import PoolParams

SLICE = 100
"""Maximum number of files that are removed at once, so that other jobs have their turn."""
DAY_SECONDS = 86_400.0
EPOCH, TASK = "pruned_epoch", "pruned_task"
"""Facts: the epoch whose files are removed next, and the task in it up to which they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outdated:
    """Files that may be removed, in `epoch` up to `task`."""

    epoch: int
    task: int
    keys: tuple[str, ...]
    """Keys in the store. Fewer than `SLICE` are the last ones of the epoch."""


def compute_keeping(days: float, terms: PoolTerms) -> float:
    """Return the seconds for which files are kept after their epoch is final, at least until no case can be opened.

    Validators sign verdicts for `unbond_window` and a day (`validator.app`), and a case needs valid ones.
    """
    return max(days * DAY_SECONDS, terms.unbond_window + DAY_SECONDS)


def find_outdated(repository: Repository, params: PoolParams, pool: int, *, final_before: float) -> Outdated | None:
    """Return the next files to remove, of an epoch that was final at a time of the chain. None if there are none.

    Files of an epoch stay while a case about any of its submissions is open, and while the trainer may still take any.
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
    """Note that files are removed, and go on to the next epoch after the last ones."""
    is_last = len(outdated.keys) < SLICE
    repository.set_fact(EPOCH, outdated.epoch + is_last)
    repository.set_fact(TASK, 0 if is_last else outdated.task)
