"""Files that are whole or not there."""

import os
import secrets
from pathlib import Path


def write_atomically(path: Path, data: bytes, *, mode: int = 0o666) -> None:
    """Write through a draft and a rename: readers see the old file or the new one, and it survives a crash.

    `mode` is that of the new file, less the process's umask.
    """
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        draft.touch(mode=mode, exist_ok=False)
        with draft.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
        sync(path.parent)  # the rename itself is durable only when the folder is
    finally:
        draft.unlink(missing_ok=True)


def read_lines(path: Path) -> list[bytes]:
    """The whole lines of a file that grows; half a last line, of a killed process or a full disk, is cut off there."""
    data = path.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    if len(whole) < len(data):
        os.truncate(path, len(whole))
    return whole.splitlines()


def append(path: Path, data: bytes) -> None:
    """Add to a file that grows, everything or nothing: the part that a full disk took is cut off again."""
    with path.open("ab", buffering=0) as file:
        size = file.tell()
        try:
            while data:
                data = data[file.write(data) :]
        except OSError:
            file.truncate(size)
            raise


def sync(path: Path) -> None:
    """Have the disk hold a file, or the names in a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
