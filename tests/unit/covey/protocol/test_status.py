from itertools import product

import pytest

from covey.errors import ProtocolError
from covey.protocol import status
from covey.protocol.status import CaseState, StepState, SubmissionState, TaskState

pytestmark = pytest.mark.unit

TABLES = {
    TaskState: (
        status.TASK_MOVES,
        "PENDING>ASSIGNED PENDING>EXPIRED ASSIGNED>SUBMITTED ASSIGNED>EXPIRED",
        "SUBMITTED EXPIRED",
    ),
    SubmissionState: (
        status.SUBMISSION_MOVES,
        "SUBMITTED>ACCEPTED SUBMITTED>REJECTED SUBMITTED>VOID ACCEPTED>SUBMITTED ACCEPTED>SETTLED REJECTED>SETTLED"
        " VOID>SETTLED SETTLED>ACCEPTED",
        "",
    ),
    StepState: (status.STEP_MOVES, "OPEN>READY READY>TRAINED", "TRAINED"),
    CaseState: (status.CASE_MOVES, "LOCKED>VETOED LOCKED>LAPSED LOCKED>SLASHED", "VETOED LAPSED SLASHED"),
}


@pytest.mark.parametrize("kind", TABLES)
def test_moves__every_pair__allowed_exactly_as_in_the_design(kind):
    table, lawful, _ = TABLES[kind]
    assert set(table) == set(kind)
    for before, after in product(kind, kind):
        expected = f"{before}>{after}" in lawful.split()
        assert status.is_lawful(table, before, after) is expected
        if expected:
            assert status.require_move(table, before, after) is after
        else:
            with pytest.raises(
                ProtocolError, match=f"unlawful_move: the state {before} cannot change to {after}"
            ) as caught:
                status.require_move(table, before, after)
            assert caught.value.status == 409


@pytest.mark.parametrize("kind", TABLES)
def test_is_terminal__every_state__as_in_the_design(kind):
    table, _, terminal = TABLES[kind]
    assert {state for state in kind if status.is_terminal(table, state)} == set(terminal.split())


@pytest.mark.parametrize("kind", TABLES)
def test_table__cannot_be_changed(kind):
    table, _, _ = TABLES[kind]
    with pytest.raises(TypeError):
        table[next(iter(kind))] = frozenset()
