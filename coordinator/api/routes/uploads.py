"""Routes for submitting work: the upload of a file, and the receipt that the operator records and countersigns."""

from fastapi import APIRouter

from coordinator.api.auth import Node, State
from coordinator.api.documented_answers import SIGNED, name_refusals
from coordinator.api.file_links import sign_upload
from coordinator.api.process.submission_intake import NewReceipt
from coordinator.context import Context
from coordinator.domain import canary_scores, promised_times
from coordinator.domain.submissions import Countersigned, VerifiedReceipt
from covey.errors import ProtocolError, TransientError
from covey.protocol import canonical, eip712, messages
from covey.protocol.api.worker import SubmissionRequest, SubmissionResponse, UploadGrant, UploadRequest
from covey.protocol.ids import LeaseId, TaskId
from covey.protocol.object_keys import build_submission_key, build_upload_key
from covey.runtime.log import get_logger

router = APIRouter(prefix="/v1", tags=["worker"], responses=SIGNED)


@router.post("/uploads", responses=name_refusals(404, 409))
async def open_upload(state: State, node: Node, body: UploadRequest) -> UploadGrant:
    """Return a link for uploading the file of a leased task. The link is null once the receipt is recorded.

    Raises ProtocolError("oversized"), and the errors of `tasks.require_lease`.
    """
    ctx = state.ctx
    _require_size(ctx, body.size)
    if await state.intake.is_recorded(node, TaskId(body.task), LeaseId(body.lease)):
        return UploadGrant(url=None)
    return UploadGrant(url=sign_upload(ctx, body))


@router.post("/submissions", responses=name_refusals(400, 404, 409))
async def submit(state: State, node: Node, body: SubmissionRequest) -> SubmissionResponse:
    """Submit a signed receipt. The response is the operator's countersignature.

    The response for a receipt that is already recorded is the same, without a file and whatever the present stake.
    Raises ProtocolError with the code "missing", "oversized" or "digest_mismatch" for the file, and the errors of
    `stakes.require_stake` and `submissions.check_receipts`.
    """
    ctx, receipt = state.ctx, body.receipt.to_message()
    if receipt.node != node or receipt.pool != ctx.config.pool:
        raise ProtocolError("not_your_task", "the receipt names another node or pool", status=403)
    eip712.require_signer(receipt, ctx.receipt_domain, body.signature, node)
    if body.file is not None:
        _require_file(ctx, body.file, receipt)
    promise = await state.intake.check(receipt)
    if isinstance(promise, NewReceipt):
        await ctx.store_executor.run(lambda: _keep_file(ctx, receipt, body.file))
        canary, consent = canary_scores.find_consent(ctx.config.canaries, receipt, ctx.receipt_domain)
        handed_in = VerifiedReceipt(
            receipt=receipt,
            signature=body.signature,
            promise=_countersign(ctx, receipt),
            undrawn_limit=promise.undrawn_limit,
            canary=canary,
            consent=consent,
        )
        promise = await state.intake.record(handed_in)
        receipt_hash = promise.message.receipt_hash
        get_logger().debug(
            "work was submitted", task=receipt.task, lease=receipt.lease, node=node, receipt=receipt_hash
        )
    if body.file is None:
        await ctx.store_executor.run(lambda: _delete_upload(ctx, receipt))
    return SubmissionResponse(
        receipt_hash=promise.message.receipt_hash,
        signed_at=promise.message.signed_at,
        due_by=promise.message.due_by,
        signature=promise.signature,
    )


def _countersign(ctx: Context, receipt: messages.Receipt) -> Countersigned:
    """Sign the operator's promise to settle a receipt.

    If the chain's clock is ahead of ours, its time is signed. Otherwise the drawing block might already exist.
    """
    signed_at = max(int(ctx.clock()), ctx.chain.estimate_time())
    promise = messages.Countersignature(
        receipt_hash=eip712.compute_struct_hash(receipt),
        signed_at=signed_at,
        due_by=signed_at + promised_times.compute_promise_seconds(ctx.params, ctx.ledger.epoch_length),
    )
    return Countersigned(message=promise, signature=eip712.sign(promise, ctx.ledger_domain, ctx.signer))


def _require_size(ctx: Context, size: int) -> None:
    limit = ctx.params.max_submission_bytes
    if size > limit:
        raise ProtocolError("oversized", f"a file has at most {limit} bytes, not {size}", status=413)


def _require_file(ctx: Context, file: bytes, receipt: messages.Receipt) -> None:
    """Raise ProtocolError("oversized") or ProtocolError("digest_mismatch") unless a file is the receipt's."""
    _require_size(ctx, len(file))
    if canonical.sha256(file) != receipt.work_key:
        raise ProtocolError("digest_mismatch", "the file does not have the receipt's hash; send it again")


def _keep_file(ctx: Context, receipt: messages.Receipt, file: bytes | None) -> None:
    """Store the checked bytes under a key to which no link gives access. If `file` is None, check the upload first.

    The store could copy the upload itself, but the node could change the upload between the check and the copy.
    """
    place = ctx.config.pool, receipt.task, receipt.lease, receipt.work_key
    if file is None:
        file = ctx.store.get(build_upload_key(*place), max_bytes=ctx.params.max_submission_bytes)
        _require_file(ctx, file, receipt)
    ctx.store.put_named_by_content(build_submission_key(*place), file)


def _delete_upload(ctx: Context, receipt: messages.Receipt) -> None:
    """Delete an upload to free its space. If the store does not answer, the upload stays, which is harmless."""
    key = build_upload_key(ctx.config.pool, receipt.task, receipt.lease, receipt.work_key)
    try:
        ctx.store.delete(key)
    except TransientError as error:
        get_logger().warning("an upload was not deleted", key=key, message=error.message)
