"""Routes of signed links. Nodes upload the files of their leases, and validators and the trainer download them."""

from fastapi import APIRouter, Request, Response
from starlette.concurrency import run_in_threadpool

from coordinator.api.auth import Ctx
from coordinator.api.documented_answers import name_content, name_refusals
from coordinator.context import Context
from covey.errors import ProtocolError
from covey.protocol import canonical
from covey.protocol.object_keys import get_content_hash

_FILE = "application/octet-stream"
router = APIRouter(prefix="/v1", tags=["public"], responses=name_refusals(403, 404))


@router.get("/objects/{key:path}", response_class=Response, responses=name_content(_FILE))
def get_object(ctx: Ctx, key: str, request: Request) -> Response:
    """Download a file with a signed link."""
    ctx.store.require_link("GET", key, request.query_params, now=ctx.clock())
    file = ctx.store.get(key, max_bytes=ctx.params.max_submission_bytes)
    return Response(file, media_type=_FILE)


@router.put("/objects/{key:path}", status_code=201, responses=name_refusals(400))
async def put_object(ctx: Ctx, key: str, request: Request) -> None:
    """Upload a file with a signed link, once. The link is checked before the body is read."""
    size = ctx.store.require_link("PUT", key, request.query_params, now=ctx.clock())
    await run_in_threadpool(_store, ctx, key, size, await request.body())


def _store(ctx: Context, key: str, size: int, body: bytes) -> None:
    """Store a file. Raises ProtocolError unless it has the size and the hash of its link."""
    if len(body) != size:
        raise ProtocolError("wrong_size", f"the link is for {size} bytes, not {len(body)}")
    if canonical.sha256(body) != get_content_hash(key):
        raise ProtocolError("digest_mismatch", "the file does not have the announced hash")
    ctx.store.put_named_by_content(key, body)
