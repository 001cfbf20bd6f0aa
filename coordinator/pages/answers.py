"""Answers to viewers, each computed and compressed once for all of them (`CachedPage`)."""

import gzip
import hashlib
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from fastapi import Request, Response

from coordinator.api.process.cached_page import CachedPage
from coordinator.db.database import Database
from coordinator.db.repository import Repository
from coordinator.pages.guard import charge
from covey.errors import ProtocolError

MAX_PAGES = 512
"""Number of pages that are kept. The one that nobody has asked for longest is forgotten first."""
LEAST_BYTES = 1024
"""Size from which an answer is compressed."""
HEADERS = {"cache-control": "public, max-age=1", "vary": "accept-encoding"}


@dataclass(frozen=True, slots=True)
class _Encoded:
    body: bytes
    compressed: bytes | None
    """None: it is too short to be compressed."""
    etag: str


@dataclass(slots=True)
class _Kept:
    page: CachedPage
    encoded: _Encoded | None = None
    """The newest answer. None before the first one."""


class Answers:
    """Example: `await answers.send(request, key="/v1/nodes", media_type="application/json", build=build)`."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._pages: OrderedDict[str, _Kept] = OrderedDict()

    async def send(
        self, request: Request, *, key: str, media_type: str, build: Callable[[Repository], bytes]
    ) -> Response:
        """Return the answer with this key, computed by `build` unless it is known: 200, or 304 if the client has it.

        Raises what `build` raises, and TransientError if the database does not answer.
        """
        kept = self._keep(key, build)
        before = kept.page.spent_s
        try:
            body = await kept.page.read()
        except ProtocolError:
            self._pages.pop(key, None)  # An error is not kept.
            raise
        finally:
            charge(request, kept.page.spent_s - before)
        encoded = kept.encoded
        if encoded is None or encoded.body is not body:
            encoded = kept.encoded = _encode(body)
        headers = HEADERS | {"etag": encoded.etag}
        if encoded.etag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        if encoded.compressed is not None and "gzip" in request.headers.get("accept-encoding", ""):
            return Response(encoded.compressed, media_type=media_type, headers=headers | {"content-encoding": "gzip"})
        return Response(body, media_type=media_type, headers=headers)

    def _keep(self, key: str, build: Callable[[Repository], bytes]) -> "_Kept":
        if key not in self._pages:
            self._pages[key] = _Kept(CachedPage(self._database, build))
        self._pages.move_to_end(key)
        if len(self._pages) > MAX_PAGES:
            self._pages.popitem(last=False)
        return self._pages[key]


def _encode(body: bytes) -> _Encoded:
    compressed = gzip.compress(body, compresslevel=5, mtime=0) if len(body) >= LEAST_BYTES else None
    return _Encoded(body, compressed, f'"{hashlib.sha256(body).hexdigest()[:24]}"')
