"""The exact lane: every difference is a cheat, unless a second replay shows that this machine was wrong."""

import dataclasses
from collections.abc import Sequence

import numpy as np
import pytest

from coordinator.domain.panel import BY_REPLAY
from covey.devnet import deploy
from covey.engines.base import Engine, Replay, ReplayRequest
from covey.engines.hf.engine import HuggingFaceEngine
from covey.protocol.submission_file.rows import Rollout
from covey.protocol.verdict import Decision, Judgement, Reason, Severity
from covey.sandbox import Sandbox
from covey.toploc.topk import Capture
from tests.cheats.base import Cheat
from tests.cheats.rows import JUDGED
from tests.fakes.engines import Alone, Broken, Replaying
from tests.fakes.pool import make_contract, make_exact
from tests.fakes.tools import Work, Worker, build_claim, build_tools, make_model_params
from validator import distance_limits, verdicts
from validator.checks import CheckTools

pytestmark = pytest.mark.unit
OURS, OTHER = make_contract(), make_contract(torch="1.0")
EXACT = make_model_params(verification=make_exact(OURS, OTHER))
BOTH = make_model_params(verification=make_exact(OURS, OTHER, mode="calibrated"))


@pytest.fixture(scope="module")
def exact_worker(engine: HuggingFaceEngine) -> Worker:
    return Worker(deploy.derive_wallet("test", "node"), EXACT, Replaying(Alone(engine)))


@pytest.fixture(scope="module")
def exact_tools(engine: HuggingFaceEngine, decoder: Sandbox) -> CheckTools:
    return dataclasses.replace(build_tools(EXACT, Alone(engine), decoder), contract=OURS.digest)


def sign(work: Work, contract: str = OURS.digest) -> Work:
    """Return the work with rows that name a contract."""
    return work.with_each(lambda row: {"contract": contract})


def judge(work: Work, worker: Worker, tools: CheckTools, *, order: str | None = None) -> Judgement:
    return verdicts.judge(build_claim(work, worker.sign(work), contract=order), tools, full=True)


def test_judge__honest_work__is_accepted(exact_worker: Worker, exact_tools: CheckTools) -> None:
    judgement = judge(sign(exact_worker.work()), exact_worker, exact_tools)
    assert (judgement.decision, judgement.sums) == (Decision.ACCEPT, {})


REPLAYED = [each for each in JUDGED if each.reason in BY_REPLAY]


@pytest.mark.parametrize("cheat", REPLAYED, ids=lambda cheat: cheat.__name__)
def test_judge__cheat_that_a_replay_finds__earns_a_hard_reason(
    cheat: type[Cheat], exact_worker: Worker, exact_tools: CheckTools
) -> None:
    judgement = judge(sign(cheat().cheat(exact_worker)), exact_worker, exact_tools)
    assert (judgement.decision, judgement.reason) == (Decision.REJECT, cheat.reason)
    assert judgement.reason.severity is Severity.HARD


def move_last_bit(row: Rollout) -> Rollout:
    first = float(np.nextafter(np.float32(row.logprobs[0]), np.float32(-9)))
    return dataclasses.replace(row, logprobs=(first, *row.logprobs[1:]))


def test_judge__last_bit_of_one_logprob__is_hard_and_of_many_windows_one_fault(
    exact_worker: Worker, exact_tools: CheckTools, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = sign(exact_worker.work())
    forged = honest.with_rollouts([move_last_bit(honest.rollouts[0]), *honest.rollouts[1:]])
    judgement = judge(forged, exact_worker, exact_tools)
    assert (judgement.reason, judgement.details["differing"], judgement.details["windows"]) == (Reason.LOGPROB, 1, 8)
    assert (judgement.details["group"], judgement.details["sibling"]) == (0, 0)
    monkeypatch.setattr(distance_limits, "WINDOWS_PER_CHANGED", 8)
    judgement = judge(forged, exact_worker, exact_tools)
    assert (judgement.reason, judgement.reason.severity) == (Reason.INEXACT, Severity.SOFT)


@pytest.mark.parametrize(("drawn", "reason"), [((3, 0), Reason.LOGPROB), ((3, 1), Reason.NONE)])
def test_judge__last_bit_of_one_logprob__is_found_if_its_row_is_drawn(
    exact_worker: Worker, exact_tools: CheckTools, drawn: tuple[int, ...], reason: Reason
) -> None:
    honest = sign(exact_worker.work())
    forged = honest.with_rollouts([move_last_bit(honest.rollouts[0]), *honest.rollouts[1:]])
    claim = build_claim(forged, exact_worker.sign(forged), drawn=drawn)
    judgement = verdicts.judge(claim, exact_tools, full=False)
    assert (judgement.reason, list(claim.distances)) == (reason, list(drawn))
    if reason is not Reason.NONE:
        assert (judgement.details["group"], judgement.details["sibling"], judgement.details["windows"]) == (0, 0, 2)


@pytest.mark.parametrize(
    ("named", "decision", "reason"),
    [
        ("", Decision.REJECT, Reason.SCHEMA),
        (make_contract(torch="2.0").digest, Decision.REJECT, Reason.SCHEMA),
        (OTHER.digest, Decision.UNKNOWN, Reason.NONE),
        ("x" * 67, Decision.REJECT, Reason.OVERSIZED),
    ],
)
def test_check_contract__exact_pool__names_the_contract_of_the_validator(
    exact_worker: Worker, exact_tools: CheckTools, named: str, decision: Decision, reason: Reason
) -> None:
    judgement = judge(sign(exact_worker.work(), named), exact_worker, exact_tools)
    assert (judgement.decision, judgement.reason) == (decision, reason)


def test_check_contract__rows_of_two_lanes__are_refused(exact_worker: Worker, exact_tools: CheckTools) -> None:
    first, *others = sign(exact_worker.work()).rollouts
    work = exact_worker.work().with_rollouts([dataclasses.replace(first, contract=OTHER.digest), *others])
    assert judge(work, exact_worker, exact_tools).reason is Reason.SCHEMA


@pytest.mark.parametrize("ours", ["", OURS.digest])
@pytest.mark.parametrize(
    ("order", "named"),
    [
        ("", OURS.digest),
        ("", OTHER.digest),
        (OURS.digest, ""),
        (OTHER.digest, OURS.digest),
        (OURS.digest, OTHER.digest),
    ],
)
def test_check_contract__rows_name_another_contract_than_the_order__every_validator_rejects(
    engine: HuggingFaceEngine, decoder: Sandbox, exact_worker: Worker, order: str, named: str, ours: str
) -> None:
    tools = dataclasses.replace(build_tools(BOTH, Alone(engine), decoder), contract=ours)
    judgement = judge(sign(exact_worker.work(), named), exact_worker, tools, order=order)
    assert (judgement.decision, judgement.reason, judgement.details) == (
        Decision.REJECT,
        Reason.SCHEMA,
        {"what": "contract", "contract": named, "order": order},
    )


@pytest.mark.parametrize("contract", ["", OURS.digest])
def test_judge__pool_with_both_lanes__limits_hold_for_work_without_a_contract(
    engine: HuggingFaceEngine, decoder: Sandbox, exact_worker: Worker, contract: str
) -> None:
    tools = dataclasses.replace(build_tools(BOTH, Alone(engine), decoder), contract=OURS.digest)
    honest = sign(exact_worker.work(), contract)
    near = honest.with_rollouts([move_last_bit(honest.rollouts[0]), *honest.rollouts[1:]])
    judgement = judge(near, exact_worker, tools)
    assert judgement.reason is (Reason.LOGPROB if contract else Reason.NONE)


class Faulty(Broken):
    """An engine whose first `faults` replays have one wrong log-probability, each another one."""

    def __init__(self, engine: Engine, faults: int) -> None:
        super().__init__(engine, RuntimeError())
        self.faults, self.calls = faults, 0

    def replay(self, sequences: Sequence[ReplayRequest], *, temperature: float, capture: Capture) -> list[Replay]:
        self.calls += 1
        first, *others = self._engine.replay(sequences, temperature=temperature, capture=capture)
        if self.calls > self.faults:
            return [first, *others]
        logprobs = first.logprobs.copy()
        logprobs[0] += self.calls
        return [dataclasses.replace(first, logprobs=logprobs), *others]


@pytest.mark.parametrize(("faults", "decision"), [(1, Decision.ACCEPT), (2, Decision.UNKNOWN)])
def test_check_replay__fault_of_this_machine__never_rejects(
    engine: HuggingFaceEngine, exact_worker: Worker, exact_tools: CheckTools, faults: int, decision: Decision
) -> None:
    faulty = Faulty(Alone(engine), faults)
    tools = dataclasses.replace(exact_tools, engine=faulty)
    assert judge(sign(exact_worker.work()), exact_worker, tools).decision is decision
    assert faulty.calls == 2
