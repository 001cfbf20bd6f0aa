"""Routes for public objects of the store: evidence of decided submissions, and the files of epochs.

The rows decide whether a key is public. A completion is private until its epoch closes. Keys are never listed.
"""

from fastapi import APIRouter, Response

from coordinator.api.auth import Ctx
from coordinator.api.documented_answers import name_content, name_refusals
from coordinator.context import Context
from coordinator.db.repository import Repository
from coordinator.domain.epoch_closing import is_closing
from covey.errors import ProtocolError
from covey.protocol import eip712
from covey.protocol.api.common import MAX_EPOCH_BYTES, MAX_EVIDENCE_BYTES
from covey.protocol.evidence import Bundle
from covey.protocol.object_keys import PublicObjectKey, parse_public_key
from covey.protocol.status import SubmissionState

IMMUTABLE = {"cache-control": "public, max-age=31536000, immutable"}
_ANSWERS = name_content("application/octet-stream") | name_refusals(404)
router = APIRouter(prefix="/v1", tags=["public"])


@router.get("/public/{key:path}", response_class=Response, responses=_ANSWERS)
def get_public(ctx: Ctx, key: str) -> Response:
    """Download the evidence of a decided submission or, once its epoch is closed, its file or the epoch's file."""
    return Response(read_public(ctx, key), media_type="application/octet-stream", headers=IMMUTABLE)


def read_public(ctx: Context, key: str) -> bytes:
    """Return a public object of the pool. Raises ProtocolError("not_public") if it is not public or does not exist."""
    parts = parse_public_key(key)
    if parts is None or parts.pool != str(ctx.config.pool):
        raise _refuse(key)
    if parts.kind == "evidence":
        return _get_evidence(ctx, key, parts.hash)
    with ctx.database.read() as repository:
        is_submission = parts.kind == "submissions"
        is_public = _is_settled(repository, parts) if is_submission else repository.has_epoch_file(parts.hash)
    if not is_public:
        raise _refuse(key)
    return _read(ctx, key, ctx.params.max_submission_bytes if is_submission else MAX_EPOCH_BYTES)


def _get_evidence(ctx: Context, key: str, evidence_hash: str) -> bytes:
    """Return an evidence bundle if its submission is decided and one of its verdicts names the bundle."""
    data = _read(ctx, key, MAX_EVIDENCE_BYTES)
    try:
        receipt_hash = eip712.compute_struct_hash(Bundle.from_bytes(data).receipt.to_message())
    except ProtocolError as error:
        raise _refuse(key) from error
    with ctx.database.read() as repository:
        row = repository.get_submission(receipt_hash)
        if row is None or row.state is SubmissionState.SUBMITTED:
            raise _refuse(key)
        named = {judgement.verdict.evidence_hash for judgement in row.turns if judgement.verdict is not None}
    if evidence_hash not in named:
        raise _refuse(key)
    return data


def _is_settled(repository: Repository, parts: PublicObjectKey) -> bool:
    """Return whether a file is that of a submission whose epoch is closed."""
    row = repository.find_submission(task=parts.task, lease=parts.lease)
    epoch = None if row is None or row.work_key != parts.hash or row.epoch is None else repository.get_epoch(row.epoch)
    return epoch is not None and not is_closing(epoch)


def _read(ctx: Context, key: str, max_bytes: int) -> bytes:
    try:
        return ctx.store.get(key, max_bytes=max_bytes)
    except ProtocolError as error:
        raise _refuse(key) from error


def _refuse(key: str) -> ProtocolError:
    return ProtocolError("not_public", f"there is no public object {key[:160]}", status=404)
