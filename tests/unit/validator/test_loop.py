"""The validator's cycles: judge, commit, reveal, with lost messages, missing files and crashes between the steps."""

import asyncio
import dataclasses
import hashlib
import json
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from covey.demo.cheats import Wrapped
from covey.devnet import deploy
from covey.engines.base import Engine, Replay, ReplayRequest
from covey.errors import ProtocolError, TransientError
from covey.model.tiny import tiny_folder
from covey.network.policy_loader import PolicyLoader
from covey.protocol import eip712, messages
from covey.protocol.api.common import ReceiptBody, VerdictBody
from covey.protocol.api.validator import JudgeOrder, RevealOrder, RevealRequest
from covey.protocol.evidence import Bundle
from covey.protocol.ids import PoolId
from covey.protocol.seeding import draw_rows
from covey.protocol.verdict import Decision, Judgement, Reason
from covey.runtime.cycle import CycleResult
from tests.fakes.coordinator import FakeJudging
from tests.fakes.pool import make_contract, make_hash
from tests.fakes.tools import DOMAIN, MANIFEST, Work, Worker, make_model_params, make_task
from validator import loop
from validator.checks import CheckTools
from validator.context import Context
from validator.evidence_bundle import JudgingEnvironment, describe_engine
from validator.held_turns import HeldTurns
from validator.kept_epochs import KeptEpochs
from validator.own_verdicts import OwnVerdicts
from validator.pending_reveals import PendingReveals
from validator.replay import measure

pytestmark = pytest.mark.unit
URL = "http://coordinator/file"
VALIDATOR = deploy.derive_wallet("test", "validator-0")
VENUE = JudgingEnvironment(
    chain_id=DOMAIN.chain_id,
    court=DOMAIN.contract,
    pool=PoolId(1),
    params_hash=make_hash("params"),
    engine=describe_engine("hf", dtype="float32", batch=32, device="cpu"),
    isolation="bwrap",
)


class Recorded(Wrapped):
    """An engine that records the seeds of the rollouts of each replay."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.replayed: list[list[int]] = []

    def replay(self, sequences: Sequence[ReplayRequest], **rest: Any) -> list[Replay]:
        self.replayed.append([each.seed for each in sequences])
        return super().replay(sequences, **rest)


@pytest.fixture
def judging() -> FakeJudging:
    return FakeJudging()


@pytest.fixture
def start(judging: FakeJudging, tools: CheckTools, tmp_path: Path) -> Callable[..., Context]:
    """Return a function that builds a validator on the same disk, as a new process would."""

    async def require(version: int, *_: object, **__: object) -> Path:
        return tiny_folder()

    def build(**changes: object) -> Context:
        network = SimpleNamespace(
            pool=PoolId(1),
            params=make_model_params(),
            wallet=VALIDATOR,
            coordinator=judging,
            receipt_domain=DOMAIN,
            policies=SimpleNamespace(
                get_record_hash=lambda version: MANIFEST, require=require, get_trained_at=lambda folder: 0.0
            ),
        )
        values = {
            "config": SimpleNamespace(wait_seconds=0.1, verdict_seconds=60, batch=32),
            "network": network,
            "tools": tools,
            "venue": VENUE,
            "pending": PendingReveals(tmp_path / "pending"),
            "verdicts": OwnVerdicts(tmp_path / "verdicts.sqlite3"),
            "epochs": KeptEpochs(tmp_path / "epochs"),
            "turns": HeldTurns(2),
            "outbox": None,
            "sender": None,
            "stop": asyncio.Event(),
            "clock": lambda: 1000.0,
        }
        values |= changes
        loader = PolicyLoader(values["tools"].engine, values["network"].policies, values["network"].params.model)
        return Context(**({"loader": loader} | values))

    return build


@pytest.fixture
def order(worker: Worker, honest: Work, judging: FakeJudging) -> JudgeOrder:
    judging.files[URL] = honest.file
    return JudgeOrder(
        judgement=3,
        receipt=ReceiptBody.of(honest.receipt),
        signature=worker.sign(honest),
        url=URL,
        record_hash=MANIFEST,
        contract="",
        draw=make_hash("drawing block"),
        full=True,
        seconds_left=30.0,
    )


async def take_turn(ctx: Context) -> CycleResult:
    """Poll for one order and carry it out."""
    outcome = await loop.poll(ctx)
    return await loop.judge_next(ctx) if ctx.turns.held else outcome


async def judge(ctx: Context, order: JudgeOrder) -> Judgement:
    """Judge one turn without committing to the verdict."""
    ctx.turns.add(order)
    ((_, judgement),) = [each async for each in loop.judge(ctx, [order])]
    assert isinstance(judgement, Judgement)
    return judgement


def fail(moment: str, error: Exception) -> Callable[[str], None]:
    def raise_at(when: str) -> None:
        if when == moment:
            raise error

    return raise_at


async def test_take_turn__nothing_to_judge__is_idle(start):
    assert await take_turn(start()) is CycleResult.IDLE


async def test_poll__exact_lane__names_the_contract(start, judging, tools: CheckTools):
    contract = make_contract().digest
    await take_turn(start(tools=dataclasses.replace(tools, contract=contract)))
    assert judging.contracts == [contract]


async def test_take_turn__order__commits_to_a_signed_verdict_and_reveals_nothing(start, judging, order, honest: Work):
    ctx = start()
    judging.orders.append(order)
    assert await take_turn(ctx) is CycleResult.DONE
    request = ctx.pending.find(3)
    verdict = request.verdict.to_message()
    assert (verdict.outcome, verdict.units, verdict.deadline) == (Decision.ACCEPT, honest.receipt.units, 1060)
    eip712.require_signer(verdict, DOMAIN, request.signature, VALIDATOR.address)
    digest = eip712.compute_digest(verdict, DOMAIN)
    assert judging.commitments == {3: messages.compute_commitment(digest, request.salt)}
    assert judging.reveals == []


async def test_take_turn__not_drawn_whole__replays_the_rows_of_the_orders_block_and_names_them(
    start, judging, order, worker: Worker, honest: Work
):
    receipt_hash = eip712.compute_struct_hash(honest.receipt)
    draws = [make_hash(f"block {i}") for i in range(2)]
    rows = [draw_rows(receipt_hash, draw, count=3, rows=8) for draw in draws]
    ctx, engine = start(), Recorded(worker.engine)
    ctx = start(tools=dataclasses.replace(ctx.tools, engine=engine))
    judging.orders.extend(
        order.model_copy(update={"judgement": i, "draw": draw, "full": False}) for i, draw in enumerate(draws)
    )
    await take_turn(ctx)
    await take_turn(ctx)
    seeds = [[honest.rollouts[row].seed for row in sorted(drawn)] for drawn in rows]
    assert engine.replayed == seeds
    assert seeds[0] != seeds[1]
    bundles = [Bundle.from_bytes(ctx.pending.find(i).evidence.encode()) for i in range(2)]
    assert [(each.draw, each.rows, each.full) for each in bundles] == list(zip(draws, rows, [False] * 2, strict=True))


async def test_take_turn__reveal_after_a_crash__reveals_what_was_committed(start, judging, order):
    judging.orders.append(order)
    await take_turn(start())
    judging.orders.append(RevealOrder(judgement=3))
    again = start()
    assert await take_turn(again) is CycleResult.DONE
    (shown,) = judging.reveals
    digest = eip712.compute_digest(shown.verdict.to_message(), DOMAIN)
    assert messages.compute_commitment(digest, shown.salt) == judging.commitments[3]
    assert again.pending.find(3) is None


async def test_take_turn__salts__differ_and_verdicts_of_one_submission_cannot_be_guessed(start, judging, order):
    judging.orders.extend([order, order.model_copy(update={"judgement": 4})])
    ctx = start()
    await take_turn(ctx)
    await take_turn(ctx)
    assert ctx.pending.find(3).salt != ctx.pending.find(4).salt


async def test_take_turn__reveal_lost_on_the_way__is_kept_for_a_retry(start, judging, order):
    ctx = start()
    judging.orders.extend([order, RevealOrder(judgement=3)])
    await take_turn(ctx)
    judging.fail = fail("reveal", TransientError("coordinator_unreachable", "gone"))
    with pytest.raises(TransientError):
        await take_turn(ctx)
    assert ctx.pending.find(3) is not None


async def test_take_turn__reveal_of_a_lost_verdict__waits_before_the_next_poll(start, judging):
    judging.orders.append(RevealOrder(judgement=99))
    assert await take_turn(start()) is CycleResult.RETRY
    assert judging.reveals == []


async def test_poll__while_another_turn_is_judged__takes_the_next_one_and_reveals(start, judging, order):
    ctx = start()
    judging.orders.append(order)
    await take_turn(ctx)
    judging.orders.extend([order.model_copy(update={"judgement": n}) for n in (4, 5)] + [RevealOrder(judgement=3)])
    for _ in range(3):
        assert await loop.poll(ctx) is CycleResult.DONE
    assert [request.judgement for request in judging.reveals] == [3]
    assert (ctx.turns.held, ctx.turns.free) == ((4, 5), 0)
    assert judging.polls[-3:] == [((), 2), ((4,), 1), ((4, 5), 0)], "turns that it holds, and number of further turns"


async def test_poll__room_shrinks_while_turns_are_held__waits_for_the_order_to_reveal(start_many, judging, order):
    """Only turns of a slow engine are closed late. Then there is no room although a turn was released."""
    now = 1000.0
    ctx = start_many(turns=HeldTurns(8, clock=lambda: now))
    orders = [order.model_copy(update={"judgement": n, "full": False}) for n in range(3)]
    for each in orders:
        ctx.turns.add(each)
    now += 20
    ctx.turns.close(orders[0])
    assert ctx.turns.free == 0
    judging.pause = asyncio.Event()
    polling = asyncio.create_task(loop.poll(ctx))
    await judging.pause_begun.wait()
    judging.orders.append(RevealOrder(judgement=99))
    judging.pause.set()
    assert await asyncio.wait_for(polling, 60) is CycleResult.RETRY, "the verdict to reveal is not there"
    assert judging.orders == []


async def test_poll__full__ends_as_soon_as_there_is_room(start, judging, order):
    ctx = start()
    judging.orders.extend(order.model_copy(update={"judgement": n}) for n in (4, 5))
    await loop.poll(ctx)
    await loop.poll(ctx)
    judging.pause = asyncio.Event()
    polling = asyncio.create_task(loop.poll(ctx))
    await judging.pause_begun.wait()
    await loop.judge_next(ctx)
    assert await asyncio.wait_for(polling, 60) is CycleResult.IDLE
    assert ctx.turns.free == 1


async def test_judge_next__expired_turn__is_left_to_others(start, judging, order):
    now = 1000.0
    ctx = start(turns=HeldTurns(2, clock=lambda: now))
    judging.orders.append(order)
    await loop.poll(ctx)
    now = 1030.0
    assert await loop.judge_next(ctx) is CycleResult.RETRY
    assert (judging.commitments, ctx.turns.held) == ({}, ())


async def test_judge_next__commitment_that_fails__releases_the_turn_to_be_offered_again(start, judging, order):
    ctx = start()
    judging.orders.append(order)
    judging.fail = fail("commit", TransientError("coordinator_unreachable", "gone"))
    with pytest.raises(TransientError):
        await take_turn(ctx)
    assert ctx.turns.held == ()
    judging.fail = lambda _: None
    judging.orders.append(order)
    await take_turn(ctx)
    assert list(judging.commitments) == [3]


@pytest.fixture
def row_orders(worker: Worker, order: JudgeOrder, judging: FakeJudging) -> list[JudgeOrder]:
    """Turns 0 to 3 of drawn rows, each of another submission with its own file."""
    orders = []
    for judgement in range(4):
        work = worker.work(make_task(task=7 + judgement))
        judging.files[f"{URL}/{judgement}"] = work.file
        changes = {"receipt": ReceiptBody.of(work.receipt), "signature": worker.sign(work), "url": f"{URL}/{judgement}"}
        orders.append(order.model_copy(update={**changes, "judgement": judgement, "full": False}))
    return orders


def hold(ctx: Context, orders: Sequence[JudgeOrder]) -> Context:
    """Let a validator hold turns."""
    for order in orders:
        ctx.turns.add(order)
    return ctx


def read_decision(ctx: Context, judgement: int) -> Decision:
    return Decision(ctx.pending.find(judgement).verdict.outcome)


@pytest.fixture
def recorded(tools: CheckTools) -> Recorded:
    return Recorded(tools.engine)


@pytest.fixture
def start_many(start, tools: CheckTools, recorded: Recorded) -> Callable[..., Context]:
    """Return a function that builds a validator that may hold eight turns, with an engine that is recorded."""

    def build(**changes: object) -> Context:
        recording = dataclasses.replace(tools, engine=recorded)
        return start(**({"tools": recording, "turns": HeldTurns(8)} | changes))

    return build


async def test_judge_next__several_turns_of_rows__are_replayed_in_one_pass_and_committed_to_one_by_one(
    start_many, judging, row_orders, recorded
):
    ctx = hold(start_many(), row_orders)
    assert await loop.judge_next(ctx) is CycleResult.DONE
    drawn = [loop.draw_rows(ctx, order) for order in row_orders]
    assert [len(seeds) for seeds in recorded.replayed] == [sum(map(len, drawn))]
    assert [read_decision(ctx, judgement) for judgement in range(4)] == [Decision.ACCEPT] * 4
    assert len(set(judging.commitments.values())) == 4
    assert ctx.turns.held == ()
    bundles = [Bundle.from_bytes(ctx.pending.find(i).evidence.encode()) for i in range(4)]
    assert [each.rows for each in bundles] == drawn
    assert [each.receipt for each in bundles] == [order.receipt for order in row_orders]


async def test_judge_next__two_policies__are_judged_in_two_passes(start_many, judging, row_orders, recorded):
    later = [
        order.model_copy(update={"receipt": order.receipt.model_copy(update={"policy_version": 1})})
        for order in row_orders[2:]
    ]
    ctx = hold(start_many(), [*row_orders[:2], *later])
    await loop.judge_next(ctx)
    assert (sorted(judging.commitments), ctx.turns.held) == ([0, 1], (2, 3))
    await loop.judge_next(ctx)
    assert (sorted(judging.commitments), ctx.turns.held) == ([0, 1, 2, 3], ())


async def test_judge_next__more_rows_than_a_batch__are_judged_in_two_passes(start_many, judging, row_orders):
    config = SimpleNamespace(wait_seconds=0.1, verdict_seconds=60, batch=8)  # two turns of three rows
    ctx = hold(start_many(config=config), row_orders)
    await loop.judge_next(ctx)
    assert sorted(judging.commitments) == [0, 1]


async def test_judge_next__late_turn__is_skipped_and_does_not_delay_the_others(start_many, judging, row_orders):
    now = 1000.0
    orders = [row_orders[0].model_copy(update={"seconds_left": 5.0}), *row_orders[1:]]
    ctx = hold(start_many(turns=HeldTurns(8, clock=lambda: now)), orders)
    now += 6
    assert await loop.judge_next(ctx) is CycleResult.DONE
    assert sorted(judging.commitments) == [1, 2, 3]


async def test_judge_next__file_of_one_is_missing__only_that_one_is_unknown(start_many, judging, row_orders):
    del judging.files[row_orders[1].url]
    ctx = hold(start_many(), row_orders)
    await loop.judge_next(ctx)
    accept = Decision.ACCEPT
    assert [read_decision(ctx, judgement) for judgement in range(4)] == [accept, Decision.UNKNOWN, accept, accept]


@pytest.mark.parametrize(
    ("moment", "error"),
    [
        ("get", TransientError("store_unreachable", "gone")),
        ("commit", TransientError("coordinator_unreachable", "gone")),
        ("commit", ProtocolError("judgement_lapsed", "late", status=409)),
    ],
)
async def test_judge_next__one_of_several_fails__the_others_are_committed_to_and_its_error_is_raised(
    start_many, judging, row_orders, moment: str, error: Exception
):
    failures = iter([None, error, None, None])

    def fail_once(when: str) -> None:
        failure = next(failures) if when == moment else None
        if failure is not None:
            raise failure

    judging.fail = fail_once
    ctx = hold(start_many(), row_orders)
    with pytest.raises(type(error)) as caught:
        await loop.judge_next(ctx)
    assert caught.value is error
    assert (sorted(judging.commitments), ctx.turns.held) == ([0, 2, 3], ())


async def test_judge_next__work_of_another_pool_among_several__is_refused_alone(start_many, judging, row_orders):
    foreign = row_orders[2].model_copy(update={"receipt": row_orders[2].receipt.model_copy(update={"pool": 2})})
    ctx = hold(start_many(), [*row_orders[:2], foreign, row_orders[3]])
    await loop.judge_next(ctx)
    assert (sorted(judging.commitments), ctx.turns.held) == ([0, 1, 3], (2,))
    with pytest.raises(ProtocolError, match="wrong_pool"):
        await loop.judge_next(ctx)
    assert (sorted(judging.commitments), ctx.turns.held) == ([0, 1, 3], ())


async def test_judge_next__stop_in_the_middle__commits_to_what_was_begun_and_keeps_the_rest(
    start_many, judging, row_orders, recorded, tools: CheckTools
):
    """The coordinator offers what is held again after a restart, on the same clock."""
    graded = []

    def grade_and_stop(replies):
        graded.append(replies)
        if len(graded) == 2:
            ctx.stop.set()
        return tools.grade(replies)

    ctx = hold(
        start_many(tools=dataclasses.replace(tools, engine=recorded, grade=grade_and_stop)),
        row_orders,
    )
    await loop.judge_next(ctx)
    assert (sorted(judging.commitments), ctx.turns.held) == ([0, 1], (2, 3))
    assert len(recorded.replayed) == 1


async def test_judge_next__neighbor_whose_grading_is_slow__delays_nobody_beyond_the_deadline(
    start_many, judging, row_orders, tools: CheckTools
):
    """After a quarter of the time the pass takes no further submission, which is judged in the next one."""
    now, seconds = 1000.0, iter([1.0, 9.0, 1.0, 1.0])

    def grade_slowly(replies):
        nonlocal now
        now += next(seconds)
        return tools.grade(replies)

    ctx = hold(
        start_many(turns=HeldTurns(8, clock=lambda: now), tools=dataclasses.replace(tools, grade=grade_slowly)),
        row_orders,
    )
    await loop.judge_next(ctx)
    assert (sorted(judging.commitments), ctx.turns.held) == ([0, 1], (2, 3))
    await loop.judge_next(ctx)
    assert sorted(judging.commitments) == [0, 1, 2, 3]


async def test_judge_next__neighbor_whose_grading_does_not_end__is_awaited_after_the_commitments_to_the_others(
    start_many, judging, row_orders, tools: CheckTools
):
    """The third submission is graded only after the commitments to the first two, which would otherwise be late."""
    graded, committed = [], threading.Event()

    def grade_and_wait(replies):
        graded.append(replies)
        if len(graded) == 3:
            in_time.append(committed.wait(5))
        return tools.grade(replies)

    def note_commit(moment: str) -> None:
        commits.append(moment)
        if commits.count("commit") == 2:
            committed.set()

    in_time: list[bool] = []
    commits: list[str] = []
    judging.fail = note_commit
    orders = [order.model_copy(update={"seconds_left": 1.0}) for order in row_orders]
    ctx = hold(
        start_many(turns=HeldTurns(8, clock=lambda: 1000.0), tools=dataclasses.replace(tools, grade=grade_and_wait)),
        orders,
    )
    while ctx.turns.held:
        await loop.judge_next(ctx)
    assert in_time == [True]
    assert sorted(judging.commitments) == [0, 1, 2, 3]


async def test_judge_next__large_files__are_judged_in_several_passes(start_many, judging, row_orders, recorded):
    """The files of a pass are in memory together, so no further one is fetched after `max_submission_bytes` in all."""
    ctx = hold(start_many(), row_orders)
    size = sum(len(judging.files[order.url]) for order in row_orders[:2])
    ctx.network.params = ctx.network.params.model_copy(update={"max_submission_bytes": size})
    await loop.judge_next(ctx)
    assert (sorted(judging.commitments), ctx.turns.held) == ([0, 1], (2, 3))
    await loop.judge_next(ctx)
    assert (len(recorded.replayed), ctx.turns.held) == (2, ())


async def test_judge_next__several_failures__are_each_logged_with_their_task(start_many, judging, row_orders):
    failures = iter([TransientError("store_unreachable", "first"), None, TransientError("store_unreachable", "third")])

    def fail_some(moment: str) -> None:
        failure = next(failures, None) if moment == "get" else None
        if failure is not None:
            raise failure

    judging.fail = fail_some
    ctx = hold(start_many(), row_orders)
    with capture_logs() as lines, pytest.raises(TransientError, match="first"):
        await loop.judge_next(ctx)
    released = [(line["task"], line["message"]) for line in lines if line["event"].startswith("turn released")]
    assert released == [(row_orders[0].receipt.task, "first"), (row_orders[2].receipt.task, "third")]
    assert (sorted(judging.commitments), ctx.turns.held) == ([1, 3], ())


async def test_judge__file_that_is_missing__is_unknown(start, judging, order):
    judging.files.clear()
    judgement = await judge(start(), order)
    assert (judgement.decision, judgement.details) == (Decision.UNKNOWN, {"error": "missing"})


async def test_judge__manifest_that_is_not_the_chains__is_unknown(start, order):
    forged = order.model_copy(update={"record_hash": make_hash("forged")})
    judgement = await judge(start(), forged)
    assert (judgement.decision, judgement.details) == (Decision.UNKNOWN, {"error": "wrong_record"})


async def test_take_turn__work_of_another_pool__is_refused_and_nothing_signed(start, judging, order):
    """Under this pool's rules the work would look like fraud, and the other pool's court would hear the verdict."""
    foreign = order.receipt.model_copy(update={"pool": 2})
    judging.orders.append(order.model_copy(update={"receipt": foreign}))
    ctx = start()
    with pytest.raises(ProtocolError) as caught:
        await take_turn(ctx)
    assert caught.value.code == "wrong_pool"
    assert (ctx.pending.find(3), judging.commitments) == (None, {})


async def test_judge__machine_that_cannot_load_the_policy__is_unknown_and_loads_it_again(
    start, order, tools: CheckTools
):
    """After a failed load the engine may hold part of a policy, by which no work may be judged."""

    class Failing:
        policy_version = order.receipt.policy_version

        def load_policy(self, folder: Path, version: int) -> None:
            loads.append(version)
            raise MemoryError

    loads: list[int] = []
    ctx = start(tools=dataclasses.replace(tools, engine=Failing()))
    ctx.loader.folder = Path("an earlier one")
    for _ in range(2):
        judgement = await judge(ctx, order)
        assert (judgement.decision, judgement.details) == (Decision.UNKNOWN, {"error": "MemoryError"})
    assert (loads, ctx.loader.folder) == ([order.receipt.policy_version] * 2, None)


async def test_judge__policy_with_other_end_tokens_than_the_pool_s__is_unknown(start, order, tools: CheckTools):
    """Nobody is to blame for work of such a policy: the pool's rules can neither accept nor reject it."""
    ctx = start()
    model = ctx.network.params.model.model_copy(update={"end_tokens": (0, 1)})
    ctx.loader._params = model
    judgement = await judge(ctx, order)
    assert (judgement.decision, judgement.details) == (Decision.UNKNOWN, {"error": "policy_mismatch"})
    assert ctx.loader.folder is None


async def test_load_policy__chain_that_changes_meanwhile__loads_the_policy_that_the_order_was_checked_against(
    start, order
):
    asked: list[tuple[object, ...]] = []

    async def require(*policy: object, **_: object) -> Path:
        asked.append(policy)
        return tiny_folder()

    ctx = start()
    ctx.network.policies.require = require
    await loop.load_policy(ctx, order)
    assert asked == [(order.receipt.policy_version, order.record_hash)]


async def test_load_policy__reorganisation__loads_the_new_policy_and_no_policy_twice(start, order, tmp_path: Path):
    """The new policy has the same version. Judging by the old weights would slash honest nodes."""
    loads: list[tuple[Path, int]] = []
    engine = SimpleNamespace(policy_version=None, load_pause=0.0, tokenizer=None, end_tokens=frozenset({1}))

    def load(folder: Path, version: int) -> None:
        engine.policy_version = version
        loads.append((folder, version))

    engine.load_policy = load
    folders = [tmp_path / "old", tmp_path / "old", tmp_path / "new"]

    async def require(version: int, *_: object, **__: object) -> Path:
        return folders.pop(0)

    ctx = start(tools=SimpleNamespace(engine=engine))
    ctx.network.policies.require = require
    for _ in range(3):
        await loop.load_policy(ctx, order)
    assert loads == [(tmp_path / "old", order.receipt.policy_version), (tmp_path / "new", order.receipt.policy_version)]


async def test_judge__unreachable_coordinator__is_retried_and_nothing_is_committed(start, judging, order):
    judging.orders.append(order)
    judging.fail = fail("get", TransientError("coordinator_unreachable", "gone"))
    with pytest.raises(TransientError):
        await take_turn(start())
    assert judging.commitments == {}


async def test_take_turn__cheat__is_committed_with_its_reason_and_evidence(start, judging, order, worker, honest: Work):
    cheat = honest.with_each(lambda row: {"logprobs": tuple(p + 1 for p in row.logprobs)})
    judging.files[URL] = cheat.file
    body = {"receipt": ReceiptBody.of(cheat.receipt), "signature": worker.sign(cheat)}
    judging.orders.append(order.model_copy(update=body))
    ctx = start()
    await take_turn(ctx)
    request = ctx.pending.find(3)
    assert (request.verdict.outcome, request.verdict.reason) == (Decision.REJECT, Reason.LOGPROB)
    evidence = json.loads(request.evidence)
    assert evidence["details"]["deviation"] == pytest.approx(1.0, abs=1e-3)
    assert (evidence["decision"], evidence["reason"], evidence["full"]) == (2, 6, True)
    assert evidence["receipt"]["work_key"] == cheat.receipt.work_key
    assert request.verdict.evidence_hash == "0x" + hashlib.sha256(request.evidence.encode()).hexdigest()


def test_pending__several__are_kept_apart(tmp_path: Path):
    pending = PendingReveals(tmp_path)
    assert pending.find(1) is None
    verdict = VerdictBody(
        pool=1, receipt_hash=make_hash("r"), work_key=make_hash("w"), validator=VALIDATOR.address, outcome=1, reason=0,
        severity=0, units=5, evidence_hash=make_hash("e"), deadline=2**62,
    )  # fmt: skip
    requests = [
        RevealRequest(judgement=i, verdict=verdict, signature="0x" + "1b" * 65, salt=make_hash(f"{i}"), evidence=f"{i}")
        for i in (1, 12)
    ]
    for request in requests:
        pending.add(request)
    pending.remove(12)
    assert PendingReveals(tmp_path).find(1) == requests[0]
    assert pending.find(12) is None
    pending.remove(12)


def test_replay__distances__are_those_of_the_worst_token(worker: Worker, honest: Work, tools: CheckTools):
    """Claims are changed by known amounts, which the distances must show."""
    row = honest.rollouts[0]
    moved = dataclasses.replace(row, logprobs=(row.logprobs[0] - 0.5, *row.logprobs[1:]))
    honest_one, moved_one = measure([row, moved], tools.engine, tools.params)
    assert honest_one.logprob_max < 1e-4
    assert moved_one.logprob_max == pytest.approx(0.5, abs=1e-4)
    assert moved_one.deviations.sum() - honest_one.deviations.sum() == pytest.approx(0.5, abs=1e-4)
    assert (honest_one.tokens, len(honest_one.windows)) == (len(row.tokens), 1)
    assert honest_one.windows[0].sign_exponent_mismatches == 0
    with pytest.raises(ProtocolError):
        measure([dataclasses.replace(row, tokens=())], tools.engine, tools.params)
