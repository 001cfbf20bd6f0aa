"""Prefetches pieces of a policy that is still being exported, on a machine that does not have any policy yet.

Each piece is written at its place in the weights file. If an anchor's manifest lists the same pieces at these places,
the file becomes part of the download. Otherwise it is dropped. It has no name, so it disappears with this process.
"""

import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from covey.errors import ProtocolError, TransientError
from covey.protocol.pieces import Piece
from covey.protocol.preview import PreviewRow, parse_preview
from covey.runtime.log import get_logger
from covey.shardcast.policy_folder import write_fully
from covey.shardcast.policy_source import PolicySource
from covey.shardcast.policy_store import PolicyStore

MAX_PREFETCHED_BYTES = 256 << 30
"""Maximum size in bytes of the file, and of all downloads until a policy is obtained. It limits false previews."""
_ROUND_SECONDS = 5.0
"""Maximum time in seconds that one call of `fetch` downloads, because a policy may be published meanwhile."""


class _RoundOverError(Exception):
    """Raised to end a round. The pieces that have arrived are kept."""


class PolicyPrefetch:
    """Prefetched pieces of one pool's export. One thread at a time may use it."""

    def __init__(self, source: PolicySource, store: PolicyStore) -> None:
        self._source, self._store = source, store
        self._file: int | None = None
        self._rows = b""
        """Preview whose pieces the file contains. A preview that contradicts it starts a new file."""
        self._held: dict[int, Piece] = {}
        """Verified pieces in the file, by offset."""
        self._left = MAX_PREFETCHED_BYTES

    def fetch(self, stop: threading.Event) -> bool:
        """Fetch the pieces that a relay previews now, for a few seconds at most. Returns whether any piece arrived.

        Does nothing if the store has a policy, because a delta from that policy has other pieces. Raises
        TransientError("stopped").
        """
        if self._store.list_folders():
            self.drop()
            return False
        try:
            data = self._source.fetch_preview(stop=stop)
        except TransientError as error:
            if error.code == "stopped":
                raise
            return False  # No relay has a preview, or none answers.
        if not self._follow(data):
            return False
        missing = self._select(parse_preview(data))
        begun, held = time.monotonic(), self._held.copy()

        def look() -> None:
            if time.monotonic() - begun > _ROUND_SECONDS:
                raise _RoundOverError

        places = [(row.piece, row.offset) for row in missing]
        try:
            self._source.downloader.fetch_pieces(places, self._keep, thing="a preview", stop=stop, on_look=look)
        except (_RoundOverError, ProtocolError, OSError):
            pass
        except TransientError as error:
            if error.code == "stopped":
                raise
            get_logger().debug("preview is incomplete", reason=error.message)
        new = [piece for offset, piece in self._held.items() if offset not in held]
        self._left -= sum(piece.size for piece in new)
        return bool(new)

    def take(self, path: Path, pieces: Sequence[Piece], *, start: int) -> frozenset[int]:
        """Move the file to `path` if it contains any of these pieces, which are consecutive and start at byte `start`.

        Returns the indices of the pieces in the file. Does nothing if `path` exists. In any case, the prefetch starts
        again from nothing.
        """
        offset, found = start, set()
        for index, piece in enumerate(pieces):
            if self._held.get(offset) == piece:
                found.add(index)
            offset += piece.size
        if not found or not self._name(path):
            found.clear()
        self.drop()
        get_logger().debug("prefetched pieces", pieces=len(found), of=len(pieces))
        return frozenset(found)

    def drop(self) -> None:
        """Drop the file and restore the full limit of bytes."""
        self._reset()
        self._left = MAX_PREFETCHED_BYTES

    def _name(self, path: Path) -> bool:
        """Link the file to `path`. Returns False if the name is taken or the file system does not support it."""
        try:
            # `src_dir_fd` makes Python call linkat, which follows the link in /proc. It has no other effect.
            os.link(f"/proc/self/fd/{self._file}", path, src_dir_fd=self._file, follow_symlinks=True)
        except OSError:
            return False
        return True

    def _follow(self, data: bytes) -> bool:
        """Prepare the file for the pieces of a preview. Returns whether that is possible. A preview of another export
        starts a new file.
        """
        if self._rows.startswith(data):
            data = self._rows  # Another relay has already previewed more.
        elif not data.startswith(self._rows):
            self._reset()
        if self._file is None:
            try:
                self._file = os.open(self._store.root, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o644)
            except OSError:
                return False  # The file system does not support files without a name.
        self._rows = data
        return True

    def _select(self, rows: Sequence[PreviewRow]) -> list[PreviewRow]:
        """Return the missing pieces that fit into half of the free disk space and into the limit of bytes."""
        chosen, room = [], min(self._left, self._store.count_free() // 2)
        for row in rows:
            if self._held.get(row.offset) != row.piece and row.end <= MAX_PREFETCHED_BYTES:
                room -= row.piece.size
                if room < 0:
                    break
                chosen.append(row)
        return chosen

    def _keep(self, piece: Piece, offset: int, data: memoryview) -> None:
        assert self._file is not None
        write_fully(self._file, data, offset)
        self._held[offset] = piece

    def _reset(self) -> None:
        if self._file is not None:
            os.close(self._file)
        self._file, self._rows = None, b""
        self._held.clear()
