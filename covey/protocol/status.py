"""The states of tasks, submissions, steps and cases, and the moves that are allowed between them."""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import TypeVar

from covey.errors import ProtocolError


class TaskState(StrEnum):
    PENDING = "PENDING"
    ASSIGNED = "ASSIGNED"
    SUBMITTED = "SUBMITTED"
    EXPIRED = "EXPIRED"


class SubmissionState(StrEnum):
    SUBMITTED = "SUBMITTED"
    ACCEPTED = "ACCEPTED"
    REJECTED = "REJECTED"
    VOID = "VOID"
    SETTLED = "SETTLED"


class StepState(StrEnum):
    OPEN = "OPEN"
    READY = "READY"
    TRAINED = "TRAINED"


class CaseState(StrEnum):
    LOCKED = "LOCKED"
    VETOED = "VETOED"
    LAPSED = "LAPSED"
    SLASHED = "SLASHED"


State = TypeVar("State", TaskState, SubmissionState, StepState, CaseState)


def _table(moves: Mapping[State, set[State]]) -> Mapping[State, frozenset[State]]:
    return MappingProxyType({state: frozenset(after) for state, after in moves.items()})


TASK_MOVES = _table(
    {
        TaskState.PENDING: {TaskState.ASSIGNED, TaskState.EXPIRED},
        TaskState.ASSIGNED: {TaskState.SUBMITTED, TaskState.EXPIRED},
        TaskState.SUBMITTED: set(),
        TaskState.EXPIRED: set(),
    }
)
SUBMISSION_MOVES = _table(
    {
        SubmissionState.SUBMITTED: {SubmissionState.ACCEPTED, SubmissionState.REJECTED, SubmissionState.VOID},
        SubmissionState.ACCEPTED: {SubmissionState.SETTLED, SubmissionState.SUBMITTED},
        SubmissionState.REJECTED: {SubmissionState.SETTLED},
        SubmissionState.VOID: {SubmissionState.SETTLED},
        SubmissionState.SETTLED: {SubmissionState.ACCEPTED},  # The arbiter disabled its epoch.
    }
)
STEP_MOVES = _table(
    {
        StepState.OPEN: {StepState.READY},
        StepState.READY: {StepState.TRAINED},
        StepState.TRAINED: set(),
    }
)
CASE_MOVES = _table(
    {
        CaseState.LOCKED: {CaseState.VETOED, CaseState.LAPSED, CaseState.SLASHED},
        CaseState.VETOED: set(),
        CaseState.LAPSED: set(),
        CaseState.SLASHED: set(),
    }
)


def is_lawful(table: Mapping[State, frozenset[State]], before: State, after: State) -> bool:
    """Return whether `table` allows the move from `before` to `after`."""
    return after in table[before]


def is_terminal(table: Mapping[State, frozenset[State]], state: State) -> bool:
    """Return whether no state may follow `state`."""
    return not table[state]


def require_move(table: Mapping[State, frozenset[State]], before: State, after: State) -> State:
    """Return `after`. Raises ProtocolError("unlawful_move") if `table` does not allow the move."""
    if not is_lawful(table, before, after):
        raise ProtocolError("unlawful_move", f"the state {before} cannot change to {after}", status=409)
    return after
