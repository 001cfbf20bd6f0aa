"""Honest work is accepted and every named cheat earns its reason, with a real model, real files and a real decoder."""

import dataclasses
import math
from collections.abc import Sequence
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from covey.devnet import deploy
from covey.engines.hf.engine import HuggingFaceEngine
from covey.environments.base import Grade, Reply
from covey.protocol import canonical
from covey.protocol.params import VerificationParams
from covey.protocol.verdict import Decision, Judgement, Reason, Severity
from covey.sandbox import Sandbox
from tests.cheats.base import Cheat, find
from tests.cheats.bombs import BOMBS
from tests.cheats.files import FILES
from tests.cheats.rows import JUDGED
from tests.fakes.cpu_unit import measure_cpu_unit
from tests.fakes.engines import Broken
from tests.fakes.grading import open_grading
from tests.fakes.pool import make_hash
from tests.fakes.tools import Work, Worker, build_claim, build_tools, make_model_params, make_task
from validator import checks, verdicts
from validator.checks import CHEAP_CHECKS, CHECKS, ROW_CHECKS, CheckTools, check_replay, count_live_groups

pytestmark = pytest.mark.unit
HARD = {"WRONG_PROMPT", "WRONG_SEED", "TOKEN_MARGIN", "PROOF", "LOGPROB", "FALSE_TERMINATION"}


def judge(work: Work, worker: Worker, tools: CheckTools, *, full: bool = True, drawn: tuple[int, ...] = ()):
    return verdicts.judge(build_claim(work, worker.sign(work), drawn=drawn), tools, full=full)


# -- honest


@pytest.mark.parametrize("task", [7, 8, 9])
def test_judge__honest_work__is_accepted_with_its_units(worker: Worker, tools: CheckTools, task: int):
    work = worker.work(make_task(task=task))
    judgement = judge(work, worker, tools)
    assert (judgement.decision, judgement.reason) == (Decision.ACCEPT, Reason.NONE)
    assert judgement.units == sum(len(row.tokens) for row in work.rollouts) == work.receipt.units


def test_judge__honest_siblings_with_equal_answers__are_accepted(worker: Worker, tools: CheckTools):
    """Short answers often agree, so equal tokens and equal proofs in two slots are not evidence of a cheat."""
    for task in range(100, 140):
        work = worker.work(make_task(task=task))
        answers = [(row.group, row.tokens, row.proofs) for row in work.rollouts]
        if len(set(answers)) < len(answers):
            break
    else:
        pytest.fail("no task had two equal siblings")
    assert judge(work, worker, tools).decision is Decision.ACCEPT


def test_judge__worker_with_another_batch_shape__is_accepted(worker: Worker, tools: CheckTools):
    alone = HuggingFaceEngine.from_model(worker.engine._require_model(), worker.engine.tokenizer, max_batch=3)
    work = Worker(worker.wallet, worker.params, alone).work()
    assert judge(work, worker, tools).decision is Decision.ACCEPT


def test_judge__undrawn__runs_the_cheap_checks_alone(worker: Worker, tools: CheckTools, honest: Work):
    forged = honest.with_each(lambda row: {"logprobs": tuple(p + 1 for p in row.logprobs)})
    assert judge(forged, worker, tools, full=False).decision is Decision.ACCEPT
    assert judge(forged, worker, tools).reason is Reason.LOGPROB
    assert CHECKS[: len(CHEAP_CHECKS)] == ROW_CHECKS[: len(CHEAP_CHECKS)] == CHEAP_CHECKS


def test_judge__row_that_cheats__is_found_if_it_is_drawn_and_only_then(worker: Worker, tools: CheckTools, honest: Work):
    forged = honest.with_one(5, logprobs=tuple(p + 0.002 for p in honest.rollouts[5].logprobs))
    for drawn in ((5,), (1, 5, 3), (0, 1, 2), (7, 6, 4, 3)):
        claim = build_claim(forged, worker.sign(forged), drawn=drawn)
        judgement = verdicts.judge(claim, tools, full=False)
        assert tuple(claim.distances) == drawn
        if 5 not in drawn:
            assert judgement.decision is Decision.ACCEPT
            continue
        row = forged.rollouts[5]
        assert judgement.reason is Reason.LOGPROB
        assert (judgement.details["group"], judgement.details["sibling"]) == (row.group, row.sibling)


@pytest.mark.parametrize(("drawn", "named"), [((), 1), ((5, 2), 5), ((4, 1), 1), ((6, 7), 1)])
def test_judge__whole_replay__names_a_drawn_row_that_cheats(
    worker: Worker, tools: CheckTools, honest: Work, drawn: tuple[int, ...], named: int
):
    """Rows 1 and 5 cheat. A validator that replays the drawn rows and the quorum then name the same one."""
    rows = [
        dataclasses.replace(row, logprobs=tuple(p + 0.002 for p in row.logprobs)) if i in (1, 5) else row
        for i, row in enumerate(honest.rollouts)
    ]
    judgement = judge(honest.with_rollouts(rows), worker, tools, drawn=drawn)
    assert (judgement.details["group"], judgement.details["sibling"]) == (rows[named].group, rows[named].sibling)
    assert judgement.details["drawn"] == (named in drawn)


def test_judge__replay_of_drawn_rows_fails__is_unknown(worker: Worker, tools: CheckTools, honest: Work):
    broken = dataclasses.replace(tools, engine=Broken(tools.engine, RuntimeError("CUDA error")))
    assert judge(honest, worker, broken, full=False, drawn=(3,)).decision is Decision.UNKNOWN
    assert judge(honest, worker, broken, full=False).decision is Decision.ACCEPT


def test_judge__accepted__states_the_sums_of_the_replayed_rows(worker: Worker, tools: CheckTools, honest: Work):
    """Row 3 claims log-probabilities that are off by 1e-4, and row 4 by 2e-4. A submission allows more in sum."""
    off = {3: 1e-4, 4: 2e-4}
    rows = [
        dataclasses.replace(row, logprobs=tuple(p - off.get(i, 0.0) for p in row.logprobs))
        for i, row in enumerate(honest.rollouts)
    ]
    limits = {"thresholds": {"logprob": {"mean": 1e-3}}}
    params = worker.params.model_copy(update={"verification": VerificationParams.model_validate(limits)})
    wide, work = dataclasses.replace(tools, params=params), honest.with_rollouts(rows)
    for drawn, full in (((), True), ((6, 3), True), ((4, 3), False), ((6,), False)):
        replayed = range(len(rows)) if full else drawn
        sums = judge(work, worker, wide, full=full, drawn=drawn).sums
        tokens = sum(len(rows[i].tokens) for i in replayed)
        assert {name: each.items for name, each in sums.items()} == {
            "exponent": len(replayed),
            "mantissa": len(replayed),
            "lost": tokens,
            "margin": tokens,
            "logprob": tokens,
        }  # every row has one window
        expected = sum(off.get(i, 0.0) * len(rows[i].tokens) for i in replayed)
        assert sums["logprob"].total == pytest.approx(expected, abs=2e-6 * tokens)
        assert sums["lost"].total == 0


def test_judge__nothing_replayed_rejected_or_another_contract__states_no_sums(
    worker: Worker, tools: CheckTools, honest: Work
):
    assert judge(honest, worker, tools, full=False).sums == {}
    forged = honest.with_one(5, logprobs=tuple(p + 0.002 for p in honest.rollouts[5].logprobs))
    assert judge(forged, worker, tools).sums == {}
    claim = build_claim(honest, worker.sign(honest), contract=make_hash("another"))
    verdicts.judge(claim, tools, full=True)
    assert claim.sums == {}


def test_judge__unknown_after_a_replay__states_the_sums(worker: Worker, tools: CheckTools, honest: Work):
    unsteady = dataclasses.replace(tools, params=worker.params)
    claim = build_claim(honest, worker.sign(honest))
    with pytest.MonkeyPatch.context() as patch:
        unclear = (lambda *_: Judgement.unknown(what="limit"), check_replay)
        patch.setattr(verdicts, "CHECKS", (*CHEAP_CHECKS, *unclear))
        judgement = verdicts.judge(claim, unsteady, full=True)
    assert judgement.decision is Decision.UNKNOWN
    assert judgement.sums == claim.sums != {}


@pytest.mark.parametrize(
    ("groups", "rewards", "live"),
    [
        ([0, 0, 1, 1], [1.0, 0.0, 0.5, 0.5], 1),
        ([0, 1, 0, 1], [1.0, 0.0, 1.0, 0.0], 0),
        ([1, 0, 0, 1], [0.0, -0.0, 0.0, 1e-12], 1),
        ([0, 0, 0, 2, 2, 2], [0.0, 0.0, 1.0, 1.0, 1.0, 0.9997], 2),
        ([], [], 0),
    ],
)
def test_count_live_groups__by_hand__counts_groups_whose_rewards_differ(
    groups: list[int], rewards: list[float], live: int
):
    assert count_live_groups(groups, rewards) == live


def test_judge__accepted__reports_live_groups_drawn_or_not(worker: Worker, tools: CheckTools):
    """The expected number is counted from the file by hand. A rejection reports none."""
    seen = set()
    for task in range(200, 230):
        work = worker.work(make_task(task=task))
        groups = {row.group: [r.reward for r in work.rollouts if r.group == row.group] for row in work.rollouts}
        live = sum(max(rewards) != min(rewards) for rewards in groups.values())
        assert judge(work, worker, tools, full=False).details == {"live_groups": live}
        if live not in seen:
            seen.add(live)
            assert judge(work, worker, tools).details == {"live_groups": live}
            forged = work.with_each(lambda row: {"reward": 1.0 - row.reward})
            assert "live_groups" not in judge(forged, worker, tools).details
        if seen == {0, 1, 2}:
            return
    pytest.fail(f"only {seen} live groups were seen")


@pytest.mark.parametrize("speck", [5e-324, 1e-300, 1e-10])
@pytest.mark.parametrize("full", [True, False])
def test_judge__tiny_difference_to_a_reward_of_zero__is_rejected(
    speck: float, full: bool, worker: Worker, tools: CheckTools
):
    """Advantages are scaled by the group's spread, so any difference, however small, would become a large one."""
    work, _ = find(worker, lambda row: row.reward == 0)
    chosen = next(row for row in work.rollouts if row.reward == 0)
    lied = work.with_each(lambda row: {"reward": speck} if row == chosen else {})
    judgement = judge(lied, worker, tools, full=full)
    assert (judgement.decision, judgement.reason, judgement.details["recomputed"]) == (
        Decision.REJECT,
        Reason.REWARD,
        0.0,
    )


# -- cheats


@pytest.mark.parametrize("cheat", [each for each in JUDGED if each not in FILES], ids=lambda c: c.__name__)
def test_judge__cheat__earns_its_reason(cheat: type[Cheat], worker: Worker, tools: CheckTools):
    judgement = judge(cheat().cheat(worker), worker, tools)
    assert (judgement.decision, judgement.reason) == (Decision.REJECT, cheat.reason)
    assert (judgement.reason.severity is Severity.HARD) == (cheat.reason.name in HARD)
    assert judgement.units == 0
    canonical.to_bytes(dict(judgement.details))  # raises unless all values are finite numbers or texts


@pytest.mark.parametrize("cheat", FILES, ids=lambda c: c.__name__)
def test_judge__file_of_nonsense__earns_its_reason_and_never_slashes(
    cheat: type[Cheat], worker: Worker, tools: CheckTools
):
    judgement = judge(cheat().cheat(worker), worker, tools)
    assert (judgement.decision, judgement.reason) == (Decision.REJECT, cheat.reason)
    assert judgement.reason.severity is Severity.SOFT


@pytest.mark.parametrize("cheat", BOMBS, ids=lambda c: c.__name__)
def test_judge__bomb__is_refused_at_once_and_the_next_is_judged(
    cheat: type[Cheat], worker: Worker, tools: CheckTools, decoder: Sandbox, honest: Work
):
    work = cheat().cheat(worker)
    assert len(work.file) < worker.params.max_submission_bytes
    judge(honest, worker, tools, full=False)  # the decoder is up
    before = decoder.cpu_seconds
    judgement = judge(work, worker, tools)
    assert (judgement.decision, judgement.reason) == (Decision.REJECT, cheat.reason)
    assert decoder.cpu_seconds - before < 100 * measure_cpu_unit()
    assert judge(honest, worker, tools, full=False).decision is Decision.ACCEPT


def test_judge__signature_of_another__is_malformed(worker: Worker, tools: CheckTools, honest: Work):
    stranger = Worker(deploy.derive_wallet("test", "stranger"), worker.params, worker.engine)
    for signature in (stranger.sign(honest), "0x", "0x" + "zz" * 65, "0x" + "00" * 65):
        judgement = verdicts.judge(build_claim(honest, signature), tools, full=True)
        assert (judgement.reason, judgement.details["what"]) == (Reason.MALFORMED, "signature")


def test_judge__other_manifest__is_another_prompt(worker: Worker, tools: CheckTools, honest: Work):
    claim = build_claim(honest, worker.sign(honest), record_hash=make_hash("other"))
    assert verdicts.judge(claim, tools, full=True).reason is Reason.WRONG_PROMPT


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(position=st.floats(0, 1, exclude_max=True), bits=st.integers(1, 255))
def test_judge__any_changed_byte__is_rejected_or_leaves_the_rows_unchanged(
    worker: Worker, tools: CheckTools, honest: Work, position: float, bits: int
):
    """The file has one changed byte and a receipt that matches it. It is rejected, or it decodes to the same rows."""
    i = int(position * len(honest.file))
    file = honest.file[:i] + bytes([honest.file[i] ^ bits]) + honest.file[i + 1 :]
    claim = build_claim(work := honest.with_file(file), worker.sign(work))
    judgement = verdicts.judge(claim, tools, full=True)
    if judgement.decision is Decision.ACCEPT:
        strip = [dataclasses.replace(row, logprobs=()) for row in claim.rollouts]
        assert strip == [dataclasses.replace(row, logprobs=()) for row in honest.rollouts]
    else:
        assert judgement.decision is Decision.REJECT


# -- what could not be checked


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("CUDA error"),
        MemoryError(),
        OSError(5, "gone"),
        IndexError("x"),
        ValueError("x"),
        ZeroDivisionError(),
    ],
)
def test_judge__engine_fails__is_unknown_and_neither_pays_nor_slashes(
    worker: Worker, tools: CheckTools, honest: Work, error: Exception
):
    broken = dataclasses.replace(tools, engine=Broken(tools.engine, error))
    judgement = judge(honest, worker, broken)
    assert (judgement.decision, judgement.reason, judgement.units) == (Decision.UNKNOWN, Reason.NONE, 0)
    assert judgement.details == {"error": type(error).__name__}


def test_judge__engine_answers_nan__is_rejected_not_accepted(worker: Worker, tools: CheckTools, honest: Work):
    class Lost(Broken):
        def replay(self, sequences, **rest: object):
            return [
                dataclasses.replace(replay, margins=np.full_like(replay.margins, np.nan))
                for replay in self._engine.replay(sequences, **rest)
            ]

    judgement = judge(honest, worker, dataclasses.replace(tools, engine=Lost(tools.engine, ValueError())))
    assert (judgement.reason, judgement.details["margin"]) == (Reason.TOKEN_MARGIN, -1.0)


def test_judge__decoder_dies_on_the_input__is_the_inputs_fault(worker: Worker, tools: CheckTools, honest: Work):
    with Sandbox("tests.fakes.dying:build") as dying:
        judgement = judge(honest, worker, dataclasses.replace(tools, decode=dying.call))
    assert (judgement.decision, judgement.reason) == (Decision.REJECT, Reason.MALFORMED)
    assert judgement.details == {"what": "sandbox_died"}


def test_judge__grader_dies_on_a_completion__earns_nothing(worker: Worker, tools: CheckTools, honest: Work):
    with open_grading(tools.environment, factory="tests.fakes.dying:build") as dying:
        judged = dataclasses.replace(tools, grade=dying)
        work, _ = find(worker, lambda row: row.reward > 0)
        assert judge(work.with_each(lambda row: {"reward": 0.0}), worker, judged).decision is Decision.ACCEPT
        assert judge(work, worker, judged).reason is Reason.REWARD


@pytest.mark.parametrize(
    ("claimed", "limit", "cpu_seconds", "decision"),
    [
        (0.0, "", 2.4, Decision.REJECT),
        (0.0, "", 2.5, Decision.UNKNOWN),  # a quarter of the worker's 10 s, because its machine may be that much slower
        (0.5, "", 30.0, Decision.REJECT),  # no grader gives this reward
        (0.5, "sandbox_cpu", 40.0, Decision.UNKNOWN),
    ],
)
def test_judge__reward_that_a_limit_explains__is_unknown_and_costs_no_strike(
    worker: Worker, tools: CheckTools, claimed: float, limit: str, cpu_seconds: float, decision: Decision
):
    def grade(replies: Sequence[Reply]) -> list[Grade]:
        grades = [dataclasses.replace(grade, cpu_seconds=cpu_seconds) for grade in tools.grade(replies)]
        first = next(i for i, grade in enumerate(grades) if grade.reward > 0)
        grades[first] = dataclasses.replace(grades[first], limit=limit, reward=0.0 if limit else grades[first].reward)
        return grades

    work, _ = find(worker, lambda row: row.reward > 0)
    first = next(i for i, row in enumerate(work.rollouts) if row.reward > 0)
    rows = [dataclasses.replace(row, reward=claimed) if i == first else row for i, row in enumerate(work.rollouts)]
    judgement = judge(work.with_rollouts(rows), worker, dataclasses.replace(tools, grade=grade))
    assert judgement.decision is decision
    assert judgement.reason is (Reason.REWARD if decision is Decision.REJECT else Reason.NONE)


class UnsteadyGrader:
    """A grader that gives the first reply another reward each time, as a program with random numbers earns."""

    def __init__(self, tools: CheckTools, *rewards: float) -> None:
        self.tools, self.rewards = tools, list(rewards)
        self.asked: list[Sequence[Reply]] = []

    def __call__(self, replies: Sequence[Reply]) -> list[Grade]:
        self.asked.append(replies)
        return [
            dataclasses.replace(grade, reward=self.rewards.pop(0)) if reply is self.asked[0][0] else grade
            for reply, grade in zip(replies, self.tools.grade(replies), strict=True)
        ]


@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize(
    ("rewards", "decision"),
    [((7.0, 7.0), Decision.REJECT), ((7.0, 0.0), Decision.UNKNOWN), ((7.0, 8.0), Decision.UNKNOWN)],
)
def test_judge__wrong_reward__is_graded_twice_and_unknown_if_the_grader_disagrees_with_itself(
    worker: Worker, tools: CheckTools, honest: Work, rewards: tuple[float, ...], decision: Decision, full: bool
):
    grader = UnsteadyGrader(tools, *rewards)
    judgement = judge(honest, worker, dataclasses.replace(tools, grade=grader), full=full)
    assert judgement.decision is decision
    assert judgement.reason is (Reason.REWARD if decision is Decision.REJECT else Reason.NONE)
    assert [len(replies) for replies in grader.asked] == [len(honest.rollouts), 1]
    if decision is Decision.UNKNOWN:
        assert (judgement.details["what"], judgement.details["again"]) == ("unsteady grade", rewards[1])


def test_judge__faked_work_with_an_unsteady_grade__is_rejected(worker: Worker, tools: CheckTools, honest: Work):
    """A program with random numbers must not keep the work from being replayed, nor hide a lie about another row."""
    faked = honest.with_each(lambda row: {"logprobs": tuple(value - 1.0 for value in row.logprobs)})
    lied = honest.with_rollouts([*honest.rollouts[:-1], dataclasses.replace(honest.rollouts[-1], reward=0.25)])
    for work, reason in ((faked, Reason.LOGPROB), (lied, Reason.REWARD)):
        unsteady = dataclasses.replace(tools, grade=UnsteadyGrader(tools, 7.0, 8.0))
        assert judge(work, worker, unsteady).reason is reason


def test_judge__faked_work_with_a_reward_that_a_limit_explains__is_rejected(
    worker: Worker, tools: CheckTools, honest: Work
):
    """An answer that makes its grading hit a limit must not keep the work from being replayed."""

    def grade(replies: Sequence[Reply]) -> list[Grade]:
        return [dataclasses.replace(each, reward=7.0, limit="sandbox_cpu") for each in tools.grade(replies)]

    limited = dataclasses.replace(tools, grade=grade)
    faked = honest.with_each(lambda row: {"logprobs": tuple(value - 1.0 for value in row.logprobs)})
    assert judge(honest, worker, limited).decision is Decision.UNKNOWN
    assert judge(faked, worker, limited).reason is Reason.LOGPROB
    assert judge(faked, worker, limited, full=False).decision is Decision.UNKNOWN


@pytest.mark.parametrize(("seconds", "due"), [(30.0, math.inf), (6.0, 10.0)])
def test_judge__grades_that_take_half_of_the_time_for_a_judgement__are_unknown(
    worker: Worker, tools: CheckTools, honest: Work, monkeypatch: pytest.MonkeyPatch, seconds: float, due: float
):
    """A turn may have waited for others. Then grading has half of what is left, four seconds after the first six."""
    clock, asked = [0.0], []

    def grade(replies: Sequence[Reply]) -> list[Grade]:
        clock[0] += seconds
        asked.append(len(replies))
        return list(tools.grade(replies))

    monkeypatch.setattr(checks, "GRADED_TOGETHER", 3)
    monkeypatch.setattr(checks, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    claim = build_claim(honest, worker.sign(honest))
    claim.due = due
    judgement = verdicts.judge(claim, dataclasses.replace(tools, grade=grade), full=True)
    assert (judgement.decision, judgement.details["what"]) == (Decision.UNKNOWN, "slow grades")
    assert asked == [3, 3]


def test_judge__lie_after_a_reward_that_a_limit_explains__is_rejected(worker: Worker, tools: CheckTools, honest: Work):
    limited: list[Reply] = []

    def grade(replies: Sequence[Reply]) -> list[Grade]:
        limited.extend(replies[:1])
        return [
            dataclasses.replace(grade, reward=7.0, limit="sandbox_cpu") if reply is limited[0] else grade
            for reply, grade in zip(replies, tools.grade(replies), strict=True)
        ]

    rows = [*honest.rollouts[:-1], dataclasses.replace(honest.rollouts[-1], reward=0.25)]
    judgement = judge(honest.with_rollouts(rows), worker, dataclasses.replace(tools, grade=grade))
    assert (judgement.reason, judgement.details["claimed"]) == (Reason.REWARD, 0.25)


def test_judge__short_proof_window__honest_file_is_within_its_budget(engine, decoder: Sandbox, worker: Worker):
    """Five tokens in windows of one take five proofs per row. A budget for windows of 32 would allow one."""
    params = make_model_params(verification={"audit_rate": 1.0, "proof_window": 1})
    short = Worker(worker.wallet, params, engine)
    work = short.work()
    assert max(len(row.proofs) for row in work.rollouts) == 5
    assert judge(work, short, build_tools(params, engine, decoder)).decision is Decision.ACCEPT


# -- the verdict


def test_build_verdict__rejection__carries_reason_severity_and_no_units(worker: Worker, honest: Work):
    judgement = Judgement.reject(Reason.PROOF, window=3, exponent=40)
    who, digest = worker.wallet.address, make_hash("bundle")
    verdict = verdicts.build_verdict(
        judgement, honest.receipt, evidence_hash=digest, validator=who, now=1000.9, seconds=60, is_whole=True
    )
    assert (verdict.outcome, verdict.reason, verdict.severity, verdict.units) == (2, 5, 2, 0)
    assert (verdict.deadline, verdict.work_key, verdict.pool) == (1060, honest.receipt.work_key, 1)
    assert (verdict.evidence_hash, verdict.validator) == (digest, who)


def test_judge__receipt_of_another_number_of_groups__is_not_a_task_of_the_pool(
    worker: Worker, engine, decoder: Sandbox, honest: Work
):
    """Otherwise the receipt could choose its own budget of rows."""
    for groups in (1, 4, 1 << 31):
        work = dataclasses.replace(honest, receipt=dataclasses.replace(honest.receipt, groups=groups))
        judgement = judge(work, worker, build_tools(worker.params, engine, decoder))
        assert (judgement.reason, judgement.details["groups"]) == (Reason.NOT_YOUR_TASK, groups)
