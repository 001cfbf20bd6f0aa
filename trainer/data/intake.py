"""The files of a batch: fetched, compared with what was accepted, decoded in a sandbox, and checked.

What cannot be trained on is left out, and learning goes on.
"""

import asyncio
from collections.abc import Callable, Sequence

from covey.errors import OperatorError, ProtocolError
from covey.protocol.api.trainer import BatchItem, BatchOrder
from covey.protocol.canonical import sha256
from covey.protocol.ids import Step
from covey.protocol.params import PoolParams
from covey.protocol.submission_file.rows import Rollout, is_whole
from covey.protocol.submission_file.sandbox_frames import pack_call, unpack_answer
from covey.runtime.log import get_logger
from covey.sandbox import SandboxError
from trainer.context import Context
from trainer.data.samples import AcceptedWork

DOWNLOADS = 8
WRONG_FILE = {"digest_mismatch", "oversized"}
"""What no repetition mends."""
TRIES = 2
"""Orders of which no file was new, after which the files that are refused are taken for lost: a store says so for links
that ran out too."""


def require_order(order: BatchOrder, step: Step) -> None:
    """The order is for `step`, which the claim named; raise OperatorError: whoever answers otherwise would for ever."""
    if order.step != step:
        raise OperatorError(
            "wrong_batch",
            f"the coordinator answers the claim for step {step} with a batch of step {order.step}",
            fix="See that coordinator_url names the pool's coordinator, and that it runs the trainer's release",
        )


def is_fresh(item: BatchItem, step: Step, params: PoolParams) -> bool:
    """Whether a submission is neither too old for `step` nor of a policy to come; one that is gets logged."""
    if 0 <= step - item.policy_version <= params.max_staleness:
        return True
    get_logger().error("submission left out, it is stale", task=item.task, policy=item.policy_version, step=step)
    return False


def read_work(
    item: BatchItem, file: bytes, params: PoolParams, *, vocabulary: int, decode: Callable[[bytes], bytes]
) -> AcceptedWork | None:
    """The rollouts of an accepted submission; None for content that cannot be trained on.

    `decode` is `codec.decode_framed` in a process that may die.  Raises ProtocolError("digest_mismatch") when the file
    is not the accepted one.  What was accepted unreplayed may still be hostile: it is left out, and learning goes on.
    """
    if sha256(file) != item.work_key:
        raise ProtocolError("digest_mismatch", f"the file of task {item.task} is not the accepted one")
    try:
        rows = unpack_answer(decode(pack_call(file, params.build_budget())))
        _require_rows(rows, params, vocabulary)
    except (ProtocolError, SandboxError) as error:
        get_logger().warning("submission left out", task=item.task, code=error.code, message=error.message)
        return None
    is_of_the_policy = item.replayed and params.model.temperature == 1  # claims are of the unmodified model
    return AcceptedWork(
        task=item.task, policy_version=item.policy_version, replayed=is_of_the_policy, rollouts=tuple(rows)
    )


def _require_rows(rows: Sequence[Rollout], params: PoolParams, vocabulary: int) -> None:
    if not is_whole(rows, groups=params.groups_per_task, group_size=params.group_size):
        raise ProtocolError("bad_batch", "its rows are not those of a task")
    # An index beyond the embedding is an exception on a CPU and the end of the process on a GPU.
    if max(token for row in rows for token in (*row.prompt, *row.tokens)) >= vocabulary:
        raise ProtocolError("bad_batch", f"a token is outside the vocabulary of {vocabulary}")


def read(ctx: Context, item: BatchItem, file: bytes) -> AcceptedWork | None:
    """The content of a file; None for what cannot be trained on.  What no quorum replayed is graded again."""
    params, vocabulary = ctx.network.params, ctx.learner.vocabulary
    work = read_work(item, file, params, vocabulary=vocabulary, decode=ctx.decode)
    return work if work is None or item.replayed else ctx.regrader.regrade(item, work)


async def fetch(ctx: Context, order: BatchOrder) -> list[AcceptedWork | None]:
    """The files of a batch, checked and decoded; None for what is stale, wrong or lost for good, which is left out.

    Where no file is to be had none is lost: the store is not as it should be.  What was had is not fetched again.
    """
    params, client, progress = ctx.network.params, ctx.network.coordinator, ctx.progress
    require_order(order, progress.step)
    items = {item.task: item for item in order.items if is_fresh(item, order.step, params)}
    slots, refusals, found = asyncio.Semaphore(DOWNLOADS), list[ProtocolError](), progress.fetched
    before = len(found)

    async def fetch_one(item: BatchItem) -> None:
        try:
            async with slots:
                file = await client.get_object(item.url, max_bytes=params.max_submission_bytes)
            found[item.task] = await asyncio.to_thread(read, ctx, item, file)
        except ProtocolError as error:
            if error.code in WRONG_FILE:
                leave_out(item, error)
            else:
                refusals.append(error)  # of a link that ran out, perhaps: the next order has another

    def leave_out(item: BatchItem, error: ProtocolError) -> None:
        get_logger().error("submission left out", task=item.task, code=error.code, message=error.message)
        found[item.task] = None

    try:
        async with asyncio.TaskGroup() as group:
            for item in items.values():
                if item.task not in found:
                    group.create_task(fetch_one(item))
    except ExceptionGroup as failed:  # the others are cut off, and asked for again
        raise failed.exceptions[0] from None
    if refusals:
        progress.fruitless = 0 if len(found) > before or not any(found.values()) else progress.fruitless + 1
        if progress.fruitless < TRIES:
            raise refusals[0]
    for item in items.values():
        if item.task not in found:
            leave_out(item, refusals[0])
    return [*(found[task] for task in items), *[None] * (len(order.items) - len(items))]
