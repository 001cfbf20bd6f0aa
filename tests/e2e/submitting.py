"""Turns of a walk with several workers: a submission, honest or of a cheat, and judging until it is decided."""

import asyncio
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest import mock

import worker.context
import worker.loop
from coordinator.db.models import SubmissionRow
from covey.demo.participants import Participants
from covey.protocol import eip712
from covey.protocol.api.worker import TaskOrder
from covey.protocol.ids import Address
from covey.protocol.status import SubmissionState
from covey.rollouts import Draft
from tests.cheats.base import Cheat
from tests.e2e.walk import Walk, take_judgement
from tests.fakes.tools import Work, Worker
from tests.fakes.turn import take_turn
from worker.leases import GeneratedTask
from worker.submission_store import SignedSubmission


class ShortParticipants(Participants):
    """The demo with completions of at most five tokens: some end with the end token, and some are cut."""

    def _write(self, name: str, values: Mapping[str, Any]) -> Any:
        if name == "pool":
            values["params"]["model"]["max_completion_tokens"] = 5
        return super()._write(name, values)


@contextmanager
def cheating(cheat: Cheat) -> Iterator[None]:
    """Replace the honest worker's rollouts with the cheat's work, which is signed and stored like honest work."""
    works: dict[int, Work] = {}

    def roll_out(ctx: worker.context.Context, task: TaskOrder) -> list[Draft]:
        hand = Worker(
            ctx.network.wallet,
            ctx.network.params,
            ctx.engine,
            task=task,
            contributor=ctx.contributor,
            now=time.time(),
            leased=True,
        )
        works[task.lease] = cheat.cheat(hand)
        return []

    def sign(ctx: worker.context.Context, generated: GeneratedTask) -> None:
        network, work = ctx.network, works.pop(generated.order.lease)
        parcel = SignedSubmission(
            receipt=work.receipt,
            signature=eip712.sign(work.receipt, network.receipt_domain, network.wallet),
            file=work.file,
            first_time=network.chain.get_block("latest").timestamp,
        )
        ctx.submissions.add(parcel)

    with mock.patch.multiple(worker.loop, roll_out=roll_out, sign=sign):
        yield


def list_submissions(walk: Walk) -> list[SubmissionRow]:
    with walk.coordinator.database.read() as repository:
        return list(reversed(repository.list_recent_submissions(100)))


async def hand_in(walk: Walk, name: str, cheat: Cheat | None = None) -> Address:
    """Run one turn of a worker, from registration to countersigned submission, and return the node's address.

    A worker's process tries again while the relay has not yet seen the newest policy, and so does this turn.
    """
    ctx = walk.workers[name]
    await ctx.network.coordinator.register()
    newest = ctx.network.contracts.policies.steps_of(ctx.network.pool) - 1
    await walk.until(lambda: newest in ctx.loader.fetched, lambda: worker.loop.fetch(ctx))
    before = len(list_submissions(walk))
    with nullcontext() if cheat is None else cheating(cheat):
        cycle = asyncio.create_task(take_turn(ctx))
        await walk.until(cycle.done, walk.run_jobs)
        await cycle
    rows = list_submissions(walk)
    assert len(rows) == before + 1
    address: Address = ctx.network.wallet.address
    assert address in {row.node for row in rows}
    return address


async def judge_all(walk: Walk) -> dict[str, SubmissionRow]:
    """Let every validator take its turns until everything is decided, and return the submissions by node."""

    async def turns() -> None:
        for ctx in walk.validators:
            await take_judgement(ctx)

    def is_decided() -> bool:
        return all(row.state is not SubmissionState.SUBMITTED for row in list_submissions(walk))

    await walk.until(is_decided, walk.run_jobs, turns)
    return {row.node: row for row in list_submissions(walk)}
