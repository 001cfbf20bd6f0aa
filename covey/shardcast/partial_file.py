"""A file that is downloaded in pieces, in any order, and whose download resumes after a crash.

A journal lists the pieces in the file. They are hashed again when a download resumes, because a power cut may keep a
journal entry and lose the bytes.
"""

import os
from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np

from covey.protocol.pieces import Piece, compute_blake3
from covey.shardcast.policy_folder import write_fully


class PartialFile:
    """File that is downloaded in pieces. Several threads may write. Example: `PartialFile(path, pieces,
    start=len(header))`.
    """

    def __init__(self, path: Path, pieces: Sequence[Piece], *, start: int = 0, known: Collection[int] = ()) -> None:
        """Open or create the file at `path` and its journal. The pieces are consecutive and start at byte `start`.

        `known` has the indices of pieces that this process has already verified and written to the file.
        """
        self.path, self.pieces, self._known = path, pieces, frozenset(known)
        self._offsets = [start, *(start + np.cumsum([piece.size for piece in pieces])).tolist()]
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        os.ftruncate(self._file, self._offsets[-1])
        self._journal_path = path.with_name(path.name + ".journal")
        self._journal = os.open(self._journal_path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)

    def list_missing(self) -> list[int]:
        """Return the indices of the pieces that are not in the file. Hashes the pieces that the journal lists."""
        data = os.pread(self._journal, os.fstat(self._journal).st_size, 0)
        listed = set(np.frombuffer(data[: len(data) // 4 * 4], "<u4").tolist())
        found = {index for index in listed - self._known if index < len(self.pieces) and self._is_here(index)}
        present = found | self._known
        if present != listed or len(data) % 4:
            os.ftruncate(self._journal, 0)
            os.write(self._journal, np.array(sorted(present), "<u4").tobytes())
        return [index for index in range(len(self.pieces)) if index not in present]

    def write(self, index: int, data: memoryview) -> None:
        """Write a piece whose hash was verified, and then its journal entry."""
        write_fully(self._file, data, self._offsets[index])
        os.write(self._journal, np.array([index], "<u4").tobytes())

    def write_start(self, data: bytes) -> None:
        """Write the bytes before the first piece."""
        write_fully(self._file, memoryview(data), 0)

    def close(self) -> None:
        """Close the file and its journal. They remain on disk for the next attempt."""
        os.close(self._file)
        os.close(self._journal)

    def _is_here(self, index: int) -> bool:
        piece = self.pieces[index]
        return compute_blake3(os.pread(self._file, piece.size, self._offsets[index])) == piece.digest
