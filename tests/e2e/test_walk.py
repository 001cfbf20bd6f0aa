"""docs/walk.md as code: one rollout from assignment to settlement, once honestly and once for every cheat."""

import asyncio
import json
from collections import Counter
from contextlib import closing

import httpx
import pytest
from typer.testing import CliRunner

import coordinator.pages.app
import trainer.loop
import validator.enforcement
import validator.loop
from coordinator.pages.pages_application import build_pages
from covey.chain.history import History
from covey.chain.structs import Accusation, BondKind
from covey.chain.structs import OnChainCaseState as ChainCase
from covey.cli import app
from covey.demo import cheats
from covey.demo.demo_network import POOL
from covey.demo.participants import CHALLENGE_SECONDS, MIN_STAKE, PRICE, VETO_SECONDS, DemoOptions
from covey.protocol import eip712, messages
from covey.protocol.policy_record import PolicyRecord
from covey.protocol.prices import compute_reward
from covey.protocol.status import CaseState, StepState, SubmissionState, TaskState
from covey.protocol.verdict import Reason
from tests.e2e.walk import Walk, open_walk, take_judgement
from tests.fakes.turn import take_turn

pytestmark = [pytest.mark.e2e]


async def publish_and_plan(walk: Walk) -> None:
    """Do stops 1 and 2."""
    await walk.publish()
    published = walk.network.contracts.policies.policy_of(POOL, 0)
    path = walk.network.participants.folder / f"origin/records/{published}.json"
    PolicyRecord.from_bytes(path.read_bytes(), published)
    await walk.follow()
    with walk.coordinator.database.read() as repository:
        tasks = repository.list_tasks(TaskState.PENDING)
        assert repository.get_step(0).state is StepState.OPEN
    # staleness 0: one batch of 16 groups, 4 per task
    assert [(task.id, task.policy_version, task.groups) for task in tasks] == [(n, 0, 4) for n in (1, 2, 3, 4)]


async def work(walk: Walk) -> None:
    """Do stops 3 to 9 for one task: the worker waits, a Celery job assigns, and the worker does the rest."""
    (ctx,) = walk.workers.values()
    await ctx.network.coordinator.register()
    before = len(list_submissions(walk))
    cycle = asyncio.create_task(take_turn(ctx))
    await walk.until(cycle.done, walk.run_jobs)
    await cycle
    assert len(list_submissions(walk)) == before + 1


def list_submissions(walk: Walk):
    with walk.coordinator.database.read() as repository:
        return list(reversed(repository.list_recent_submissions(100)))


async def judge(walk: Walk) -> None:
    """Do stops 10 and 11: every validator takes its turn until everything is decided."""

    async def turns() -> None:
        for ctx in walk.validators:
            await take_judgement(ctx)

    await walk.until(
        lambda: all(s.state is not SubmissionState.SUBMITTED for s in list_submissions(walk)), walk.run_jobs, turns
    )


async def require_same_sums(walk: Walk, name: str, earned: int) -> None:
    """Require that page, statement, `rewards show` and the chain say the same of a contributor that has claimed."""
    network, contributor = walk.network, walk.network.participants.get_address(name)
    chain = ("--deployment", str(network.participants.deployment), "--pool", str(POOL))
    options = (*chain, "--coordinator-url", network.url, "--json")
    statement = await asyncio.to_thread(
        CliRunner().invoke, app, ["rewards", "statement", str(contributor), *options], catch_exceptions=False
    )
    stated = Counter[int]()
    for line in map(json.loads, statement.stdout.splitlines()):
        stated[line["epoch"]] += line["units"]
    shown = await asyncio.to_thread(
        CliRunner().invoke,
        app,
        ["rewards", "show", "--contributor", str(contributor), *options],
        catch_exceptions=False,
    )
    values = json.loads(shown.stdout)
    ctx = await asyncio.to_thread(coordinator.pages.app.build, walk.coordinator.config)
    with closing(ctx.database):
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(app=build_pages(ctx)), base_url="http://pages"
        ) as client:
            page = (await client.get(f"/v1/addresses/{contributor}")).json()
    assert sum(compute_reward(units, PRICE) for units in stated.values()) == earned
    assert (values["earned"], values["claimed"], values["claimable"], values["accepted"]) == (earned, earned, 0, 0)
    assert int(page["settled"]) == earned
    assert network.contracts.ledger.claimed_of(POOL, contributor) == earned


async def test_walk__honest__fifteen_stops(tmp_path):
    async with open_walk(tmp_path / "net", DemoOptions(steps=1, workers=1, cheats=0, max_staleness=0)) as walk:
        (ctx,) = walk.workers.values()
        await publish_and_plan(walk)  # 1, 2

        await work(walk)  # 3 to 9
        (row,) = list_submissions(walk)
        assert row.state is SubmissionState.SUBMITTED
        assert ctx.engine.policy_version == 0
        with walk.coordinator.database.read() as repository:
            task = repository.get_task(row.task)
        assert (task.state, task.node) == (TaskState.SUBMITTED, ctx.network.wallet.address)
        folder = ctx.submissions._root
        assert list(folder.glob("*.parquet")) == []  # countersigned: nothing waits to be sent
        assert [path.name for path in (folder / "sent").iterdir()] == [f"{row.task}-{row.lease}.json"]

        await judge(walk)  # 10, 11
        (row,) = list_submissions(walk)
        assert row.state is SubmissionState.ACCEPTED
        assert row.units == row.receipt_units > 0
        with walk.coordinator.database.read() as repository:
            verdicts = [j.verdict for j in repository.get_submission(row.receipt_hash).turns]
        assert len(verdicts) == 2  # a quorum of two, of three validators
        assert len({verdict.validator for verdict in verdicts}) == 2

        for _ in range(3):
            await work(walk)
        await judge(walk)
        with walk.coordinator.database.read() as repository:
            assert repository.get_step(0).state is StepState.READY  # 12
            assert [s.task for s in repository.list_batch(0)] == [1, 2, 3, 4]
            sums = repository.get_running_sums(ctx.network.wallet.address)
        stated = [each["logprob"] for each in sums.by_validator.values()]
        assert (sums.submissions, sums.above) == (4, "")
        assert sum(each.items for each in stated) == 2 * sum(row.units for row in list_submissions(walk))
        assert 0 < sum(each.total for each in stated) < 2e-5 * sum(each.items for each in stated)

        await trainer.loop.cycle(walk.trainer)  # 13: claim, pack, update
        assert walk.trainer.progress.step == 1
        await walk.publish()
        await walk.follow()
        with walk.coordinator.database.read() as repository:
            assert repository.get_step(0).state is StepState.TRAINED
            assert repository.get_step(1).state is StepState.OPEN
            assert repository.list_tasks(TaskState.PENDING) == []  # max_steps: nothing could be trained on it

        walk.network.command("pool", "end", "--yes", key="operator")  # 14
        await walk.follow()
        settled = {SubmissionState.SETTLED}
        await walk.until(
            lambda: {r.state for r in list_submissions(walk)} == settled, walk.run_jobs, walk.sign_epochs, walk.follow
        )
        rows = list_submissions(walk)
        units = sum(r.units for r in rows)
        assert walk.network.contracts.ledger.get_settlement(POOL).posted == compute_reward(units, PRICE)
        walk.network.advance_clock(CHALLENGE_SECONDS + VETO_SECONDS + 1)
        worker = walk.network.participants.workers[0]
        claimed = await asyncio.to_thread(
            walk.network.command, "rewards", "claim", "--coordinator-url", walk.network.url, key=worker.contributor
        )
        assert claimed["claimed"] == compute_reward(units, PRICE)
        await require_same_sums(walk, worker.contributor, compute_reward(units, PRICE))
        await validator.enforcement.cycle(walk.validators[0])  # 15: nobody to slash
        contributor = walk.network.participants.get_address(worker.contributor)
        assert walk.network.contracts.stakes.stake_of(POOL, BondKind.CONTRIBUTOR, contributor) == 2 * MIN_STAKE


CHEATS = {
    "quantized": (cheats.get_cheat("quantized"), Reason.PROOF),
    "best-of-n": (cheats.get_cheat("best-of-n"), Reason.TOKEN_MARGIN),
}


@pytest.mark.parametrize("name", ["quantized", pytest.param("best-of-n", marks=pytest.mark.full)])
async def test_walk__cheat__is_slashed_and_unpaid(tmp_path, name):
    cheat, reason = CHEATS[name]
    options = DemoOptions(steps=1, workers=1, cheats=0, max_staleness=0)
    async with open_walk(tmp_path / "net", options, cheat=cheat) as walk:
        (ctx,) = walk.workers.values()
        await publish_and_plan(walk)
        await work(walk)
        await judge(walk)
        (row,) = list_submissions(walk)
        assert (row.state, row.reason, row.units) == (SubmissionState.REJECTED, reason, 0)
        with walk.coordinator.database.read() as repository:
            node = repository.get_node(ctx.network.wallet.address)
            assert node.suspended == "rejected"
            assert sum(task.groups for task in repository.list_tasks(TaskState.PENDING)) == 16  # planned again

        for context in walk.validators:  # 15: the second validator finds it done
            await validator.enforcement.cycle(context)
        await walk.follow()
        with walk.coordinator.database.read() as repository:
            (case,) = repository.list_cases()
        assert (case.state, case.receipt_hash) == (CaseState.LOCKED, row.receipt_hash)
        worker = walk.network.participants.workers[0]
        contributor = walk.network.participants.get_address(worker.contributor)
        assert walk.network.contracts.stakes.locked_of(POOL, contributor) == MIN_STAKE

        walk.network.advance_clock(VETO_SECONDS + 1)
        for context in walk.validators:
            await validator.enforcement.cycle(context)
        await walk.follow()
        with walk.coordinator.database.read() as repository:
            (case,) = repository.list_cases()
        assert case.state is CaseState.SLASHED
        history = History(client=walk.network.chain, contracts=walk.network.contracts)
        accusation = history.find_accusation(case.receipt_hash)
        assert accusation == Accusation(
            receipt_hash=row.receipt_hash, pool=POOL, node=ctx.network.wallet.address, contributor=contributor
        )
        assert walk.network.contracts.court.get_case(accusation).state is ChainCase.SLASHED
        assert walk.network.contracts.stakes.stake_of(POOL, BondKind.CONTRIBUTOR, contributor) == MIN_STAKE

        walk.network.command("pool", "end", "--yes", key="operator")
        await walk.follow()
        await walk.until(
            lambda: walk.network.contracts.ledger.epochs_of(POOL) == 1, walk.run_jobs, walk.sign_epochs, walk.follow
        )
        assert walk.network.contracts.ledger.get_settlement(POOL).posted == 0
        (row,) = list_submissions(walk)
        assert (
            eip712.compute_struct_hash(
                messages.Receipt(
                    pool=POOL,
                    task=row.task,
                    lease=row.lease,
                    node=row.node,
                    contributor=row.contributor,
                    policy_version=0,
                    work_key=row.work_key,
                    groups=4,
                    units=row.receipt_units,
                    deadline=row.deadline,
                )
            )
            == row.receipt_hash
        )  # a rejected receipt keeps its leaf: it can be proven
        assert row.epoch == 0
