"""Pauses the assignment of new tasks, so that the escrow is not spent on a run that cannot learn.

The trainer pauses it with a report. The operator pauses and resumes it by request. Work that is leased, submitted or
accepted continues. The state is in facts, so it survives a restart of any role.
"""

from collections.abc import Collection
from enum import IntEnum
from typing import NamedTuple

from coordinator.db.repository import Repository
from covey.errors import ProtocolError
from covey.protocol.learning_signs import LearningSign, describe_signs

_SINCE, _BY, _STEPS = "paused_at", "paused_by", "paused_after_steps"
"""Names of facts: Unix time since which tasks are paused (0 if they are not), who paused them, and the largest number
of steps after which the trainer has requested a pause."""


class PausedBy(IntEnum):
    """Party that paused new tasks, or resumed them."""

    TRAINER = 1
    OPERATOR = 2


class Pause(NamedTuple):
    """A pause of new tasks. Example: Pause(since=1760000000, reason="its operator has paused it")."""

    since: int
    reason: str
    """Explanation that continues the sentence "the pool is paused: ..."."""


def record_report(
    repository: Repository, *, steps: int, signs: Collection[LearningSign], pause: bool, now: float
) -> bool:
    """Record the signs that the run cannot learn, and pause new tasks if the trainer requests it.

    Returns whether this report has paused the tasks. A request is ignored if an earlier one came after at least `steps`
    steps, because the operator may have resumed since. It is also ignored after the pool's end.
    """
    for sign in LearningSign:
        if (sign in signs) != repository.get_fact(_name_sign(sign)):
            repository.set_fact(_name_sign(sign), int(sign in signs))
    if not pause or steps <= repository.get_fact(_STEPS) or repository.get_fact("ended"):
        return False
    repository.set_fact(_STEPS, steps)
    return set_paused(repository, by=PausedBy.TRAINER, is_paused=True, now=now)


def set_paused(repository: Repository, *, by: PausedBy, is_paused: bool, now: float) -> bool:
    """Pause or resume new tasks, and return whether this changed anything.

    Raises ProtocolError("pool_ended") if the pool has ended, because it assigns no tasks in any case.
    """
    ended = repository.get_fact("ended")
    if ended:
        raise ProtocolError("pool_ended", f"the pool ended in block {ended}, so it has no new tasks", status=409)
    if is_paused == bool(repository.get_fact(_SINCE)):
        return False
    repository.set_fact(_SINCE, int(now) if is_paused else 0)
    repository.set_fact(_BY, by)
    return True


def is_paused(repository: Repository) -> bool:
    """Return whether new tasks are paused."""
    return bool(repository.get_fact(_SINCE))


def find_pause(repository: Repository) -> Pause | None:
    """Return the current pause, or None if tasks are assigned."""
    since = repository.get_fact(_SINCE)
    if not since:
        return None
    if repository.get_fact(_BY) == PausedBy.OPERATOR:
        return Pause(since, "its operator has paused it")
    why = describe_signs(list_signs(repository)) or "no group was live, or the gradient was exactly zero"
    steps = repository.get_fact(_STEPS)
    return Pause(since, f"its trainer has paused it after {steps} steps, because the run cannot learn ({why})")


def require_running(repository: Repository) -> None:
    """Raise ProtocolError("pool_paused") if new tasks are paused."""
    pause = find_pause(repository)
    if pause is not None:
        raise ProtocolError("pool_paused", f"the pool is paused: {pause.reason}", status=409)


def list_signs(repository: Repository) -> tuple[LearningSign, ...]:
    """Return the signs of the trainer's newest report."""
    return tuple(sign for sign in LearningSign if repository.get_fact(_name_sign(sign)))


def _name_sign(sign: LearningSign) -> str:
    return f"sign/{sign.value}"
