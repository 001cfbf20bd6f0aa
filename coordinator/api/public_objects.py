"""What anybody may read of the store, called by `api`: evidence of what is decided, files of what an epoch holds.

Whether a key is public follows from the rows: until its epoch closes, a completion is private.  Nothing is listed.
"""

import re

from coordinator.context import Context
from coordinator.db.repository import Repository
from covey.errors import ProtocolError
from covey.protocol import eip712
from covey.protocol.api.common import MAX_EPOCH_BYTES, MAX_EVIDENCE_BYTES
from covey.protocol.evidence import Bundle
from covey.protocol.status import SubmissionState

_HASH = "0x[0-9a-f]{64}"
_KEYS = {
    "evidence": re.compile(rf"evidence/([0-9]+)/({_HASH})\.json"),
    "submissions": re.compile(rf"submissions/([0-9]+)/([0-9]{{1,18}})-([0-9]{{1,18}})/({_HASH})\.parquet"),
    "epochs": re.compile(rf"epochs/([0-9]+)/({_HASH})\.json"),
}


def get_object(ctx: Context, key: str) -> bytes:
    """An object of the pool; raise ProtocolError("not_public", 404) for all that is not public or not there."""
    kind = key.partition("/")[0]
    match = _KEYS[kind].fullmatch(key) if kind in _KEYS else None
    if match is None or match[1] != str(ctx.config.pool):
        raise _refuse(key)
    if kind == "evidence":
        return _get_evidence(ctx, key, match[2])
    with ctx.database.read() as repository:
        is_public = (
            _is_settled(repository, task=int(match[2]), lease=int(match[3]), work_key=match[4])
            if kind == "submissions"
            else repository.has_epoch_file(match[2])
        )
    if not is_public:
        raise _refuse(key)
    return _read(ctx, key, ctx.params.max_submission_bytes if kind == "submissions" else MAX_EPOCH_BYTES)


def _get_evidence(ctx: Context, key: str, evidence_hash: str) -> bytes:
    """The bundle says which submission it is about; whether a verdict on that one names it, the rows say."""
    data = _read(ctx, key, MAX_EVIDENCE_BYTES)
    try:
        receipt_hash = eip712.compute_struct_hash(Bundle.from_bytes(data).receipt.to_message())
    except ProtocolError as error:
        raise _refuse(key) from error
    with ctx.database.read() as repository:
        row = repository.get_submission(receipt_hash)
        if row is None or row.state is SubmissionState.SUBMITTED:
            raise _refuse(key)
        named = {judgement.verdict["evidence_hash"] for judgement in row.judgements if judgement.verdict is not None}
    if evidence_hash not in named:
        raise _refuse(key)
    return data


def _is_settled(repository: Repository, *, task: int, lease: int, work_key: str) -> bool:
    row = repository.find_submission(task=task, lease=lease)
    return row is not None and row.work_key == work_key and row.epoch is not None


def _read(ctx: Context, key: str, max_bytes: int) -> bytes:
    try:
        return ctx.store.get(key, max_bytes=max_bytes)
    except ProtocolError as error:
        raise _refuse(key) from error


def _refuse(key: str) -> ProtocolError:
    return ProtocolError("not_public", f"nothing public is named {key[:160]}", status=404)
