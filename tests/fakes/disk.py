"""Disks that are full."""

import os
import resource
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

DISK_BYTES = 1 << 30
"""Size of a `SmallDisk` with room. Only what is used takes memory."""


@contextmanager
def limit_files(size: int) -> Iterator[None]:
    """Make writes fail beyond `size` bytes of a file, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


class SmallDisk:
    """A file system of its own that a test may fill. Example: `disk.fill()`, then `disk.free()`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def fill(self) -> None:
        """Leave no room, so that writes fail with ENOSPC. Blocks that are used already can be written again."""
        for _ in range(20):  # What is written between the look and the change makes the change fail.
            found = os.statvfs(self._folder)
            if self._resize((found.f_blocks - found.f_bfree) * found.f_frsize):
                return
        raise AssertionError(f"{self._folder} could not be filled")

    def free(self) -> None:
        """Make room again."""
        assert self._resize(DISK_BYTES)

    def _resize(self, size: int) -> bool:
        command = ["mount", "-o", f"remount,size={size}", str(self._folder)]
        return subprocess.run(command, check=False, capture_output=True, timeout=60).returncode == 0


@contextmanager
def open_small_disk(folder: Path) -> Iterator[SmallDisk | None]:
    """Mount a file system in memory on an empty folder. None if this user may not mount."""
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES},mode=755", "covey-test", str(folder)]
    if (
        shutil.which("mount") is None
        or subprocess.run(command, check=False, capture_output=True, timeout=60).returncode
    ):
        yield None
        return
    try:
        yield SmallDisk(folder)
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True, timeout=60)
