"""How work comes in: a link for the file, then the receipt, which is verified, recorded and countersigned.

Files are served by signed links too, to validators and the trainer.
"""

from collections.abc import Mapping

from coordinator.api import stake
from coordinator.context import Context
from coordinator.db.models import Submission
from coordinator.domain import canary_scores, epochs, nodes, submissions, tasks
from covey.chain.deterrence import compute_undrawn_limit
from covey.errors import ProtocolError, TransientError
from covey.protocol import canonical, eip712, messages
from covey.protocol.api.worker import SubmissionAnswer, SubmissionRequest, UploadGrant, UploadRequest
from covey.protocol.ids import Address, Hash, LeaseId, TaskId
from covey.runtime.log import get_logger

LINK_SECONDS = 300


def open_upload(ctx: Context, node: Address, body: UploadRequest) -> UploadGrant:
    """A link for the file of a lease that `node` holds, under a key of our choice; none once its receipt is recorded.

    Raises ProtocolError "oversized", and those of `service.require_lease`.
    """
    if body.size > ctx.params.max_submission_bytes:
        limit = ctx.params.max_submission_bytes
        raise ProtocolError("oversized", f"a file has at most {limit} bytes", status=413)
    with ctx.database.read() as repository:
        known = repository.find_submission(task=body.task, lease=body.lease)
        if known is not None and known.node == node:
            return UploadGrant(url=None)
        tasks.require_lease(repository, node=node, task=TaskId(body.task), lease=LeaseId(body.lease), now=ctx.clock())
    key = _build_key(ctx, "uploads", body.task, body.lease, body.work_key)
    link = ctx.store.sign_link("PUT", key, now=ctx.clock(), seconds=LINK_SECONDS, size=body.size)
    return UploadGrant(url=link)


def _build_key(ctx: Context, folder: str, task: int, lease: int, work_key: Hash) -> str:
    """Where a file lies: in "uploads" while its node may write it, in "submissions" from its receipt on."""
    return f"{folder}/{ctx.config.pool}/{task}-{lease}/{work_key}.parquet"


def get_object(ctx: Context, key: str, query: Mapping[str, str]) -> bytes:
    """The file behind a signed link to the local store."""
    ctx.store.require_link("GET", key, query, now=ctx.clock())
    return ctx.store.get(key, max_bytes=ctx.params.max_submission_bytes)


def require_upload(ctx: Context, key: str, query: Mapping[str, str]) -> int:
    """The size that a signed link allows; asked before the body is read."""
    return ctx.store.require_link("PUT", key, query, now=ctx.clock())


def put_object(ctx: Context, key: str, size: int, body: bytes) -> None:
    """Store a file under the hash that it has, or not at all."""
    if len(body) != size:
        raise ProtocolError("wrong_size", f"the link is for {size} bytes, not {len(body)}")
    if canonical.sha256(body) != key.rpartition("/")[2].removesuffix(".parquet"):
        raise ProtocolError("digest_mismatch", "the file does not have the hash that it was announced with")
    ctx.store.put_named_by_content(key, body)


def record_submission(ctx: Context, node: Address, body: SubmissionRequest) -> SubmissionAnswer:
    """Verify a receipt and its file, record it, countersign it; a recorded one is answered alike, without a file.

    Raises ProtocolError "missing", "oversized" or "digest_mismatch" for the file, and those of `backing.require_stake`
    and `service.record_submission`.
    """
    receipt = body.receipt.to_message()
    if receipt.node != node or receipt.pool != ctx.config.pool:
        raise ProtocolError("not_your_task", "the receipt names another node or pool", status=403)
    eip712.require_signer(receipt, ctx.receipt_domain, body.signature, node)
    with ctx.database.read() as repository:
        is_known = repository.find_submission(task=receipt.task, lease=receipt.lease) is not None
        contributor = Address(nodes.require_node(repository, node).contributor)
        if not is_known:  # before its file is kept, or what is refused would fill the store
            submissions.require_new(repository, ctx.params, receipt=receipt, now=ctx.clock())
    undrawn_limit = 0
    if not is_known:  # what was countersigned once is answered again, whatever became of the stake
        undrawn_limit = compute_undrawn_limit(ctx.terms, stake.require_stake(ctx, node, contributor))
        _keep_file(ctx, receipt)
    # A chain may be ahead of this clock: then its time counts, or the drawing block might exist already.
    signed_at = max(int(ctx.clock()), ctx.client.get_block("latest").timestamp)
    with ctx.database.write() as repository:
        latest_epoch = epochs.get_next_number(repository) + epochs.PROMISED_EPOCHS

        def countersign(receipt_hash: Hash) -> submissions.Countersigned:
            promise = messages.Countersignature(
                receipt_hash=receipt_hash, signed_at=signed_at, latest_epoch=latest_epoch
            )
            return submissions.Countersigned(
                message=promise, signature=eip712.sign(promise, ctx.ledger_domain, ctx.operator)
            )

        given = submissions.record_submission(
            repository,
            ctx.params,
            receipt=receipt,
            signature=body.signature,
            countersign=countersign,
            now=ctx.clock(),
            price=ctx.ledger.price,
            undrawn_limit=undrawn_limit,
            canary=canary_scores.get_kind(ctx.config, node),
        )
    _delete_upload(ctx, receipt)
    ctx.kicker.kick("dispatch_validation")
    promise = given.message
    return SubmissionAnswer(
        receipt_hash=promise.receipt_hash,
        signed_at=promise.signed_at,
        latest_epoch=promise.latest_epoch,
        signature=given.signature,
    )


def _keep_file(ctx: Context, receipt: messages.Receipt) -> None:
    """Check what the node uploaded, and store the bytes that were checked where no link lets it write.

    The store could copy the object itself, but a second copy, of what the node wrote meanwhile, could replace it.
    """
    place = receipt.task, receipt.lease, receipt.work_key
    data = ctx.store.get(_build_key(ctx, "uploads", *place), max_bytes=ctx.params.max_submission_bytes)
    if canonical.sha256(data) != receipt.work_key:
        raise ProtocolError("digest_mismatch", "the uploaded file does not have the receipt's hash; upload it again")
    ctx.store.put_named_by_content(_build_key(ctx, "submissions", *place), data)


def _delete_upload(ctx: Context, receipt: messages.Receipt) -> None:
    """Free the space; a store that does not answer now keeps an object that nobody reads any more."""
    key = _build_key(ctx, "uploads", receipt.task, receipt.lease, receipt.work_key)
    try:
        ctx.store.delete(key)
    except TransientError as error:
        get_logger().warning("an upload was not deleted", key=key, message=error.message)


def sign_download(ctx: Context, row: Submission) -> str:
    """A short-lived link to a submission's file."""
    key = _build_key(ctx, "submissions", row.task, row.lease, Hash(row.work_key))
    return ctx.store.sign_link("GET", key, now=ctx.clock(), seconds=LINK_SECONDS)
