"""Downloads content-addressed resources from several sources at once. No source is trusted."""

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
"""Requests under way at a time. After a crash at most as many pieces are fetched twice."""

_EXTRA_SECONDS = 0.5
"""Minimum number of seconds for which other answers are awaited after the first one."""

Content = TypeVar("Content")
Place = TypeVar("Place")


class _LateError(Exception):
    """Ends the wait for further answers."""


class Downloader:
    """Example: `Downloader(["http://127.0.0.1:9001"]).fetch(path, limit=1 << 20, check=parse, thing="the head")`.

    Several downloads may run at a time."""

    def __init__(self, urls: Sequence[str], *, connections: int = CONNECTIONS, seed: int | None = None) -> None:
        """`urls` are base URLs of relays, from strangers. Raises ProtocolError("no_relays") if none is valid."""
        valid = list(dict.fromkeys(url.rstrip("/") for url in urls if is_source_url(url)))
        if not valid:
            raise ProtocolError("no_relays", "no relay is known")
        self._sources, self._connections = Sources(valid, seed=seed), connections

    @property
    def sources(self) -> Sequence[Source]:
        """State of each source, for logs and metrics."""
        return self._sources.all

    def close(self) -> None:
        """Close all connections. No download may be under way."""
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
        """Return what `check` makes of the first body that it does not refuse, and the source of the body.

        `check` raises ProtocolError if the body is wrong, or LackingError if the source does not have what is needed
        yet. `limit` is the maximum size of the body in bytes, and `thing` its name in errors. `on_look` is called
        several times a second by this thread and may raise an error, which ends the download. Raises TransientError
        "not_at_relays" if all sources lack it, "no_relay" if none delivers it, or "stopped" if `stop` is set.
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
        """Return what `check` makes of the bodies of up to `count` sources, which are asked at the same time.

        After the first answer, the others are awaited for as long again, and for at least half a second. Raises the
        errors of `fetch` if there is no answer.
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
            pass  # What has come is enough.
        except TransientError as error:
            if error.code == "stopped" or not contents:
                raise
        winners = {index: job.winner for index, job in enumerate(jobs)}
        return [(content, winner) for index, content in contents.items() if (winner := winners[index]) is not None]

    def distrust(self, source: Source) -> None:
        """Note that what a source said could not be confirmed. It is asked less from now on."""
        self._sources.distrust(source)

    def blame(self, source: Source, why: str) -> None:
        """Note that a source has sent something that turned out to be wrong later. It is asked less from now on."""
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
        """Download pieces, and call `keep` with each, its place and its bytes, once and in any order and thread.

        A place is what the caller needs to find where a piece belongs. The bytes are only valid during the call.
        `on_look` is called several times a second by this thread and may raise an error, which ends the download.
        Raises the errors of `fetch` and those of `keep`.
        """
        jobs = [_build_job(piece, place, keep) for piece, place in pieces]
        if jobs:
            Download(self._sources, jobs, threads=self._connections, thing=thing).run(stop, on_look)


def _build_job(piece: Piece, place: Place, keep: Callable[[Piece, Place, memoryview], None]) -> Job:
    def check(body: memoryview) -> Keep:
        if compute_blake3(body) != piece.digest:
            raise ProtocolError("bad_piece", f"the bytes do not have the hash {piece.digest}", status=502)
        return lambda: keep(piece, place, body)

    return Job(get_piece_path(piece.digest), piece.size, piece.size, check)
