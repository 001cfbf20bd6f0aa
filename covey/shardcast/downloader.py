"""Client that downloads content-addressed resources from several sources concurrently. No source is trusted."""

import math
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TypeVar

from covey.errors import ProtocolError, TransientError
from covey.protocol.head import get_piece_path
from covey.protocol.pieces import Piece, compute_blake3
from covey.shardcast.download import Download, Job, Keep, Sources, build_siblings
from covey.shardcast.source import Source, is_source_url

CONNECTIONS = 4
"""Maximum number of requests in flight. After a crash, at most this many pieces are fetched twice."""

_EXTRA_SECONDS = 0.5
"""Minimum time in seconds for which other answers are awaited after the first one."""

Content = TypeVar("Content")
Place = TypeVar("Place")


class _LateError(Exception):
    """Raised to end the wait for further answers."""


class Downloader:
    """Client of a list of sources. Several downloads may run concurrently.

    Example: `Downloader(["http://127.0.0.1:9001"]).fetch(path, limit=1 << 20, check=parse, thing="the head")`.
    """

    def __init__(self, urls: Sequence[str], *, connections: int = CONNECTIONS, seed: int | None = None) -> None:
        """`urls` are base URLs of relays, which strangers may supply. Raises ProtocolError("no_relays") if none is
        valid.
        """
        valid = list(dict.fromkeys(url.rstrip("/") for url in urls if is_source_url(url)))
        if not valid:
            raise ProtocolError("no_relays", "no relay is known")
        self._sources, self._connections = Sources(valid, seed=seed), connections

    @property
    def sources(self) -> Sequence[Source]:
        """State of each source, for logs and metrics."""
        return self._sources.all

    def close(self) -> None:
        """Close all connections. No download may be running."""
        self._sources.close()

    def fetch(
        self,
        path: str,
        *,
        limit: int,
        check: Callable[[bytes], Content],
        thing: str,
        stop: threading.Event | None = None,
        on_look: Callable[[], None] = lambda: None,
    ) -> tuple[Content, Source]:
        """Return the result of `check` for the first body that it accepts, and the source of this body.

        `check` raises ProtocolError if the body is wrong, or LackingError if the source does not have the required
        content yet. `limit` is the maximum size of the body in bytes, and `thing` names it in errors. This thread calls
        `on_look` several times per second. `on_look` may raise an error, which ends the download. Raises TransientError
        "not_at_relays" if all sources lack the resource, "no_relay" if none delivers it, or "stopped" if `stop` is set.
        """
        contents: list[Content] = []

        def accept(body: memoryview) -> Keep:
            content = check(bytes(body))
            return lambda: contents.append(content)

        job = Job(path, None, limit, accept)
        Download(self._sources, [job], threads=2, thing=thing).run(stop, on_look)
        assert job.winner is not None
        return contents[0], job.winner

    def fetch_several(
        self,
        path: str,
        *,
        count: int,
        limit: int,
        check: Callable[[bytes], Content],
        thing: str,
        stop: threading.Event | None = None,
    ) -> list[tuple[Content, Source]]:
        """Return the results of `check` for the bodies of up to `count` sources, which are asked concurrently.

        After the first answer, the others are awaited for the same time again, but for at least half a second. Raises
        the errors of `fetch` if there is no answer.
        """
        contents: dict[int, Content] = {}
        begun, late_at = self._sources.clock(), math.inf

        def accept(index: int, body: memoryview) -> Keep:
            content = check(bytes(body))
            return lambda: contents.update({index: content})

        def look() -> None:
            nonlocal late_at
            now = self._sources.clock()
            if contents and late_at == math.inf:
                late_at = now + max(_EXTRA_SECONDS, now - begun)
            if now > late_at:
                raise _LateError

        jobs = build_siblings(path, limit=limit, checks=[partial(accept, index) for index in range(count)])
        try:
            Download(self._sources, jobs, threads=count, thing=thing).run(stop, look)
        except _LateError:
            pass  # The answers so far are enough.
        except TransientError as error:
            if error.code == "stopped" or not contents:
                raise
        winners = {index: job.winner for index, job in enumerate(jobs)}
        return [(content, winner) for index, content in contents.items() if (winner := winners[index]) is not None]

    def distrust(self, source: Source) -> None:
        """Record that a statement of a source could not be confirmed. The source is asked less often from now on."""
        self._sources.distrust(source)

    def blame(self, source: Source, why: str) -> None:
        """Record that something that a source sent has turned out to be wrong. It is asked less often from now on."""
        self._sources.blame(source, why)

    def fetch_pieces(
        self,
        pieces: Iterable[tuple[Piece, Place]],
        keep: Callable[[Piece, Place, memoryview], None],
        *,
        thing: str,
        stop: threading.Event | None = None,
        on_look: Callable[[], None] = lambda: None,
    ) -> None:
        """Download pieces, and call `keep` once with each piece, its place and its bytes. Order and thread are
        arbitrary.

        A place is a value by which the caller knows where a piece belongs. The bytes are only valid during the call.
        This thread calls `on_look` several times per second. `on_look` may raise an error, which ends the download.
        Raises the errors of `fetch` and those of `keep`.
        """
        jobs = [_build_job(piece, place, keep) for piece, place in pieces]
        if jobs:
            Download(self._sources, jobs, threads=self._connections, thing=thing).run(stop, on_look)


def _build_job(piece: Piece, place: Place, keep: Callable[[Piece, Place, memoryview], None]) -> Job:
    def check(body: memoryview) -> Keep:
        if compute_blake3(body) != piece.digest:
            raise ProtocolError("bad_piece", f"the bytes do not match the hash {piece.digest}", status=502)
        return lambda: keep(piece, place, body)

    return Job(get_piece_path(piece.digest), piece.size, piece.size, check)
