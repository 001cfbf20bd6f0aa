"""Durable writes: after a crash a file, or a line appended to a file, is either complete or absent."""

import os
import secrets
from pathlib import Path


def write_atomically(path: Path, data: bytes, *, mode: int = 0o666) -> None:
    """Write a file by writing a draft and renaming it, so that readers see either the old file or the new one.

    The new content is on disk when this returns, so it survives a crash. `mode` is the mode of the new file before the
    process's umask is applied.
    """
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        draft.touch(mode=mode, exist_ok=False)
        with draft.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
        sync(path.parent)  # The rename is durable only once the folder is.
    finally:
        draft.unlink(missing_ok=True)


def read_lines(path: Path) -> list[bytes]:
    """Return the complete lines of an append-only file.

    An incomplete last line, left by a killed process or a full disk, is removed from the file.
    """
    data = path.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    if len(whole) < len(data):
        os.truncate(path, len(whole))
    return whole.splitlines()


def append(path: Path, data: bytes) -> None:
    """Append all of `data` to a file, or nothing. If the disk is full, bytes already written are removed again."""
    with path.open("ab", buffering=0) as file:
        size = file.tell()
        try:
            while data:
                data = data[file.write(data) :]
        except OSError:
            file.truncate(size)
            raise


def sync(path: Path) -> None:
    """Flush a file, or the entries of a folder, to disk (fsync)."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
