"""Fetches the files of a batch, checks them against the accepted hashes, and decodes them in a sandbox.

Submissions that cannot be used for training are skipped, and learning continues.
"""

import asyncio
from collections.abc import Callable, Sequence

from covey.errors import OperatorError, ProtocolError
from covey.protocol.api.trainer import BatchItem, BatchOrder
from covey.protocol.canonical import sha256
from covey.protocol.ids import Step
from covey.protocol.params import PoolParams
from covey.protocol.submission_file.rows import Rollout, is_whole
from covey.protocol.submission_file.sandbox_frames import pack_call, unpack_rows
from covey.runtime.log import get_logger
from covey.sandbox import SandboxError
from trainer.context import Context
from trainer.data.samples import AcceptedWork

DOWNLOADS = 8
"""Maximum number of concurrent downloads."""
WRONG_FILE = {"digest_mismatch", "oversized"}
"""Error codes of files that a retry cannot mend."""
TRIES = 2
"""Number of batch requests without a new file after which refused files count as lost.

One request is not enough, because a store refuses expired links in the same way.
"""


def require_order(order: BatchOrder, step: Step) -> None:
    """Raise OperatorError("wrong_batch") unless the coordinator's batch is for `step`, the step that was requested.

    This is not retried, because such a coordinator would always return a different step.
    """
    if order.step != step:
        raise OperatorError(
            "wrong_batch",
            f"the coordinator returned a batch for step {order.step}, but step {step} was claimed",
            fix="Set coordinator_url to the pool's coordinator, and check that both run the same release",
        )


def is_fresh(item: BatchItem, step: Step, params: PoolParams) -> bool:
    """Return whether a submission is neither too stale for `step` nor from a later policy. Log it if not."""
    if 0 <= step - item.policy_version <= params.max_staleness:
        return True
    get_logger().error(
        "submission skipped, its policy is too old or too new", task=item.task, policy=item.policy_version, step=step
    )
    return False


def read_work(
    item: BatchItem, file: bytes, params: PoolParams, *, vocabulary: int, decode: Callable[[bytes], bytes]
) -> AcceptedWork | None:
    """Return the rollouts of an accepted submission. None if its content cannot be used for training.

    `decode` is `codec.decode_framed` in a subprocess that may crash. Work that was accepted without a replay may still
    be hostile. It is skipped, and learning continues.

    Raises ProtocolError("digest_mismatch") if the file is not the accepted one.
    """
    if sha256(file) != item.work_key:
        raise ProtocolError(
            "digest_mismatch", f"the file for task {item.task} does not have the hash of the accepted submission"
        )
    try:
        rows = unpack_rows(decode(pack_call(file, params.build_budget())))
        _require_rows(rows, params, vocabulary)
    except (ProtocolError, SandboxError) as error:
        get_logger().warning("submission skipped", task=item.task, code=error.code, message=error.message)
        return None
    is_of_the_policy = item.replayed and params.model.temperature == 1  # workers claim those of the unmodified model
    return AcceptedWork(
        task=item.task, policy_version=item.policy_version, replayed=is_of_the_policy, rollouts=tuple(rows)
    )


def _require_rows(rows: Sequence[Rollout], params: PoolParams, vocabulary: int) -> None:
    if not is_whole(rows, groups=params.groups_per_task, group_size=params.group_size):
        raise ProtocolError("bad_batch", "the submission does not have exactly the rollouts of a complete task")
    # A token id beyond the embedding raises an exception on a CPU, but ends the process on a GPU.
    if max(token for row in rows for token in (*row.prompt, *row.tokens)) >= vocabulary:
        raise ProtocolError("bad_batch", f"a token id is outside the vocabulary, which has {vocabulary} tokens")


def read(ctx: Context, item: BatchItem, file: bytes) -> AcceptedWork | None:
    """Return the work in a file.

    None if it cannot be used for training. Work that no quorum replayed is graded again.
    """
    params, vocabulary = ctx.network.params, ctx.learner.vocabulary
    work = read_work(item, file, params, vocabulary=vocabulary, decode=ctx.decode)
    if work is not None and not item.replayed:
        work = ctx.regrader.regrade(item, work)
    if work is None:
        return None
    return ctx.regrader.name_types(item, ctx.regrader.count_answers(item, work))


async def fetch(ctx: Context, order: BatchOrder) -> list[AcceptedWork | None]:
    """Return the work of a batch, checked and decoded. None marks a stale, wrong or lost submission.

    If no file at all is available, the store is at fault and no submission counts as lost. Files that arrived are kept
    in `progress.fetched` and not fetched again.
    """
    params, client, progress = ctx.network.params, ctx.network.coordinator, ctx.progress
    require_order(order, progress.step)
    items = {item.task: item for item in order.items if is_fresh(item, order.step, params)}
    slots, refusals, fetched = asyncio.Semaphore(DOWNLOADS), list[ProtocolError](), progress.fetched
    before = len(fetched)

    async def fetch_one(item: BatchItem) -> None:
        try:
            async with slots:
                file = await client.get_object(item.url, max_bytes=params.max_submission_bytes)
            fetched[item.task] = await asyncio.to_thread(read, ctx, item, file)
        except ProtocolError as error:
            if error.code in WRONG_FILE:
                leave_out(item, error)
            else:
                refusals.append(error)  # the link may have expired: the next order has a new one

    def leave_out(item: BatchItem, error: ProtocolError) -> None:
        get_logger().error("submission skipped", task=item.task, code=error.code, message=error.message)
        fetched[item.task] = None

    try:
        async with asyncio.TaskGroup() as group:
            for item in items.values():
                if item.task not in fetched:
                    group.create_task(fetch_one(item))
    except ExceptionGroup as failed:  # the other downloads are cancelled and repeated later
        raise failed.exceptions[0] from None
    if refusals:
        progress.fruitless = 0 if len(fetched) > before or not any(fetched.values()) else progress.fruitless + 1
        if progress.fruitless < TRIES:
            raise refusals[0]
    for item in items.values():
        if item.task not in fetched:
            leave_out(item, refusals[0])
    return [*(fetched[task] for task in items), *[None] * (len(order.items) - len(items))]
