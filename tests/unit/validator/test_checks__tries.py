"""Rows 7 to 10, 12 and 13 of docs/threats.md in many tries each, with other tasks, positions and amounts.

Every try must be caught. By default a hundredth of the tries runs; COVEY_FULL=1 runs all of them.
"""

import os

import pytest

from covey.devnet import deploy
from tests.cheats.base import Cheat
from tests.cheats.rows import ROWS
from tests.fakes.tools import Worker, build_claim
from validator import verdicts
from validator.checks import CheckTools

pytestmark = [pytest.mark.unit, pytest.mark.slow]
TRIES = 300
FIRST_TASK = 10_000
TRIED = (7, 8, 9, 10, 12, 13)


def count_tries() -> int:
    return TRIES if os.environ.get("COVEY_FULL") == "1" else TRIES // 100


@pytest.mark.parametrize("row", TRIED)
def test_judge__row_in_many_tries__every_one_earns_its_reason(row: int, worker: Worker, tools: CheckTools):
    cheats = [each for each in ROWS[row] if issubclass(each, Cheat)]
    counts: dict[tuple[str, str], int] = {}
    for number in range(FIRST_TASK, FIRST_TASK + count_tries()):
        for cheat in cheats:
            trier = worker.at(number)
            work = cheat().cheat(trier)
            judgement = verdicts.judge(build_claim(work, trier.sign(work)), tools, full=True)
            assert judgement.units == 0
            key = (cheat.__name__, f"{judgement.decision.name} {judgement.reason.name}")
            counts[key] = counts.get(key, 0) + 1
    print(f"row {row}:", ", ".join(f"{name} {count}" for (name, _), count in counts.items()))
    assert counts == {(cheat.__name__, f"REJECT {cheat.reason.name}"): count_tries() for cheat in cheats}


def test_judge__copier_and_victim__only_the_copier_is_flagged(worker: Worker, tools: CheckTools):
    """The order of judging does not matter: the seeds are right for the victim and wrong for the copier."""
    copier = Worker(deploy.derive_wallet("test", "copier"), worker.params, worker.engine)
    for number in range(FIRST_TASK, FIRST_TASK + count_tries()):
        owner, thief = worker.at(number), copier.at(number)
        work = owner.work()
        copy = thief.hand_in(work.rollouts)
        assert copy.file == work.file
        judged = [
            verdicts.judge(build_claim(w, by.sign(w)), tools, full=True) for w, by in ((copy, thief), (work, owner))
        ]
        assert [(j.decision.name, j.reason.name) for j in judged] == [("REJECT", "WRONG_PROMPT"), ("ACCEPT", "NONE")]
        assert [j.units for j in judged] == [0, work.receipt.units]
