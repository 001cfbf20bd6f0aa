"""Submissions whose drawn rows are replayed in one pass get the judgements that each would get alone."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from covey.demo.cheats import Wrapped
from covey.engines.base import Engine, Replay, ReplayRequest
from covey.errors import ProtocolError, TransientError
from covey.protocol.verdict import Decision, Judgement, Reason
from tests.fakes.engines import Alone
from tests.fakes.pool import make_contract
from tests.fakes.tools import Work, Worker, build_claim, make_task
from validator import checks, verdicts
from validator.checks import CheckTools, SubmissionClaim

pytestmark = pytest.mark.unit
DRAWN = (5, 0, 3)


class Recorded(Wrapped):
    """An engine that records the seeds of each replay, and fails with an error if one of them is `poison`."""

    def __init__(self, engine: Engine, *, poison: int | None = None, error: Exception | None = None) -> None:
        super().__init__(engine)
        self.replayed: list[list[int]] = []
        self.poison, self.error = poison, error

    def replay(self, sequences: Sequence[ReplayRequest], **rest: Any) -> list[Replay]:
        self.replayed.append([each.seed for each in sequences])
        if self.error is not None and self.poison in self.replayed[-1]:
            raise self.error
        return super().replay(sequences, **rest)


@pytest.fixture(scope="module")
def works(worker: Worker) -> list[Work]:
    """Four honest submissions."""
    return [worker.work(make_task(task=task)) for task in (7, 8, 9, 10)]


def make_claims(worker: Worker, works: Sequence[Work], drawn: tuple[int, ...] = DRAWN) -> list[SubmissionClaim]:
    return [build_claim(work, worker.sign(work), drawn=drawn) for work in works]


def list_seeds(work: Work) -> list[int]:
    return [work.rollouts[row].seed for row in sorted(DRAWN)]


def judge_together(claims: Sequence[SubmissionClaim], tools: CheckTools) -> list[Judgement]:
    return verdicts.replay_together([(claim, verdicts.check_cheaply(claim, tools)) for claim in claims], tools)


def judge_both(
    worker: Worker, tools: CheckTools, works: Sequence[Work], **engine: Any
) -> tuple[list[Judgement], list[Judgement], Recorded]:
    """Return the judgements together and alone, and the engine of those together."""
    alone, together = (Recorded(Alone(tools.engine), **engine) for _ in range(2))
    expected = [
        verdicts.judge(claim, dataclasses.replace(tools, engine=alone), full=False)
        for claim in make_claims(worker, works)
    ]
    found = judge_together(make_claims(worker, works), dataclasses.replace(tools, engine=together))
    return found, expected, together


def test_replay_together__honest__are_replayed_in_one_pass(
    worker: Worker, tools: CheckTools, works: list[Work]
) -> None:
    found, expected, engine = judge_both(worker, tools, works)
    assert found == expected
    assert {each.decision for each in found} == {Decision.ACCEPT}
    assert engine.replayed == [[seed for work in works for seed in list_seeds(work)]]


def forge(row: int) -> Callable[[Work], Work]:
    return lambda work: work.with_one(row, logprobs=tuple(p + 0.002 for p in work.rollouts[row].logprobs))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (forge(3), Reason.LOGPROB),
        (forge(4), Reason.NONE),  # it is not drawn
        (lambda work: work.with_file(b"junk"), Reason.MALFORMED),
        (lambda work: work.with_one(1, seed=5), Reason.WRONG_SEED),
        (lambda work: work.with_one(1, tokens=(-1, 10**6)), Reason.MALFORMED),
        (lambda work: work.with_rollouts(work.rollouts[:-1]), Reason.MISSING),
    ],
)
def test_replay_together__hostile_neighbor__changes_no_other_judgement(
    worker: Worker, tools: CheckTools, works: list[Work], change: Callable[[Work], Work], reason: Reason
) -> None:
    hostile = change(works[1])
    found, expected, engine = judge_both(worker, tools, [works[0], hostile, *works[2:]])
    assert found == expected
    assert [each.reason for each in found] == [Reason.NONE, reason, Reason.NONE, Reason.NONE]
    assert len(engine.replayed) == 1
    is_replayed = reason in (Reason.LOGPROB, Reason.NONE)
    assert set(list_seeds(works[1])) & set(engine.replayed[0]) == (set(list_seeds(works[1])) if is_replayed else set())


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("CUDA error"),
        MemoryError(),
        TransientError("engine_died", "it took too long"),
        ProtocolError("malformed_tokens", "no"),
        IndexError("x"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_replay_together__pass_fails__each_is_replayed_alone_and_only_one_is_unknown(
    worker: Worker, tools: CheckTools, works: list[Work], error: Exception
) -> None:
    found, expected, engine = judge_both(worker, tools, works, poison=works[2].rollouts[3].seed, error=error)
    assert found == expected
    accept = Decision.ACCEPT
    assert [each.decision for each in found] == [accept, accept, Decision.UNKNOWN, accept]
    assert engine.replayed[1:] == [list_seeds(work) for work in works]


def test_replay_together__cheap_check_is_unclear__the_row_still_decides(
    worker: Worker, tools: CheckTools, works: list[Work], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Faked work whose grading hits a limit must not evade the replay in a common pass either."""

    def doubt(claim: SubmissionClaim, _: CheckTools) -> Judgement:
        return Judgement.unknown(what="limit")

    monkeypatch.setattr(verdicts, "CHEAP_CHECKS", (*checks.CHEAP_CHECKS, doubt))
    found = judge_together(make_claims(worker, [forge(0)(works[0]), works[1]]), tools)
    assert [(each.decision, each.reason) for each in found] == [
        (Decision.REJECT, Reason.LOGPROB),
        (Decision.UNKNOWN, Reason.NONE),
    ]


def test_replay_together__contract_of_another_engine__is_not_replayed(
    worker: Worker, tools: CheckTools, works: list[Work]
) -> None:
    engine, other = Recorded(tools.engine), make_contract(torch="1.0").digest
    claims = make_claims(worker, works[:3])
    for claim, work in zip(claims, works, strict=False):
        claim.rollouts, claim.contract = work.rollouts, "" if work is works[0] else other
    checks.measure_drawn(claims, dataclasses.replace(tools, engine=engine))
    assert engine.replayed == [list_seeds(works[0])]
    assert [tuple(claim.distances) for claim in claims] == [tuple(sorted(DRAWN)), (), ()]


def test_replay_together__no_rows_are_drawn__nothing_is_replayed(
    worker: Worker, tools: CheckTools, works: list[Work]
) -> None:
    engine = Recorded(tools.engine)
    found = judge_together(make_claims(worker, works, drawn=()), dataclasses.replace(tools, engine=engine))
    assert [each.decision for each in found] == [Decision.ACCEPT] * 4
    assert engine.replayed == []
