"""Signed links with which nodes upload the files of submissions, and validators and the trainer download them."""

from coordinator.context import Context
from coordinator.db.models import SubmissionRow
from covey.protocol.api.worker import UploadRequest
from covey.protocol.ids import Hash
from covey.protocol.object_keys import build_submission_key, build_upload_key

LINK_SECONDS = 300
"""Time in seconds for which a link is valid."""


def sign_upload(ctx: Context, request: UploadRequest) -> str:
    """Return a link with which a file of this size and hash can be uploaded once."""
    key = build_upload_key(ctx.config.pool, request.task, request.lease, request.work_key)
    return ctx.store.sign_link("PUT", key, now=ctx.clock(), seconds=LINK_SECONDS, size=request.size)


def sign_download(ctx: Context, row: SubmissionRow) -> str:
    """Return a link with which the file of a submission can be downloaded."""
    key = build_submission_key(ctx.config.pool, row.task, row.lease, Hash(row.work_key))
    return ctx.store.sign_link("GET", key, now=ctx.clock(), seconds=LINK_SECONDS)
