"""The runs in a folder, whose files are read without trusting them.

No symbolic link below the folder is followed, nothing but regular files is opened, and no more than a bounded part of a
file is read.
"""

import errno
import os
import re
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from covey.errors import OperatorError
from covey.standalone import manifest, run_lock
from trainer.monitoring.rollout_files import FOLDER
from trainer.monitoring.run_history import METRICS_FILE

MARKS = (METRICS_FILE, manifest.FILE, run_lock.FILE)
"""Files of which a run has at least one."""
MAX_RUNS = 500
"""Maximum number of runs that are listed."""
_SAMPLES = re.compile(r"([0-9]{1,9})\.jsonl", re.ASCII)


class Stamp(NamedTuple):
    """What changes whenever a file is written. Example: Stamp(inode=7, size=120, changed_ns=1)."""

    inode: int
    size: int
    changed_ns: int
    """Time of the newest change, in Unix nanoseconds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FilePiece:
    """A part of a file. Example: FilePiece(data=b"{}\\n", is_whole=True, stamp=stamp)."""

    data: bytes
    is_whole: bool
    """Whether this is all of the file, except for a line that is being written."""
    stamp: Stamp


class RunList(NamedTuple):
    """Names of runs, newest first, and what is not among them."""

    names: Sequence[str]
    problems: Sequence[str]
    """What is not listed, one sentence each."""


class RunFolders:
    """A folder of runs, or one run. Example: `RunFolders(Path("runs")).list_runs().names`."""

    def __init__(self, root: Path) -> None:
        """Raises OperatorError("no_runs_folder") if `root` is not a folder."""
        if not root.is_dir():
            raise OperatorError(
                "no_runs_folder",
                f"{root} is not a folder",
                fix="Name a folder that contains folders of covey train, or one of those",
            )
        self.path = root.absolute()
        self._only = (self.path.resolve().name or "run") if self._find_newest(()) is not None else None
        """Name of the only run, if the folder is one. None: its folders are runs."""

    def list_runs(self) -> RunList:
        """Return the runs of the folder. One that was written recently comes first."""
        if self._only is not None:
            return RunList([self._only], [])
        found, links, unreadable = list[tuple[float, str]](), 0, 0
        with os.scandir(self.path) as entries:
            for entry in entries:
                if entry.is_symlink():
                    links += entry.is_dir()
                elif entry.is_dir() and (newest := self._find_newest((entry.name,))) is not None:
                    if _is_text(entry.name):
                        found.append((newest, entry.name))
                    else:
                        unreadable += 1
        names = [name for _, name in sorted(found, reverse=True)]
        counts = {
            "Symbolic links, which are not followed": links,
            "Folders whose names are not UTF-8": unreadable,
            "Older runs that are not listed": len(names[MAX_RUNS:]),
        }
        return RunList(names[:MAX_RUNS], [f"{what}: {count}." for what, count in counts.items() if count])

    def is_run(self, name: str) -> bool:
        """Return whether the folder has a run with the name."""
        return any(self.read_stamp(name, mark) is not None for mark in MARKS)

    def read_start(self, name: str, *parts: str, most: int) -> FilePiece:
        """Return the first complete lines of a run's file, at most `most` bytes. Raises OSError."""
        with self.open_file(name, *parts) as file:
            stamp, data = _stamp(file), os.read(file, most + 1)
        return FilePiece(data=_cut_end(data[:most]), is_whole=len(data) <= most, stamp=stamp)

    def read_end(self, name: str, *parts: str, most: int) -> FilePiece:
        """Return the last complete lines of a run's file, at most `most` bytes. Raises OSError."""
        with self.open_file(name, *parts) as file:
            stamp = _stamp(file)
            start = max(0, stamp.size - most)
            data = os.pread(file, most, start)
        if start:
            data = data.partition(b"\n")[2]
        return FilePiece(data=_cut_end(data), is_whole=not start, stamp=stamp)

    def read_whole(self, name: str, *parts: str, most: int) -> FilePiece:
        """Return all of a run's file. Raises OSError, also if it is larger than `most` bytes."""
        with self.open_file(name, *parts) as file:
            stamp, data = _stamp(file), os.read(file, most + 1)
        if len(data) > most:
            raise OSError(errno.EFBIG, f"it is larger than {most:,} bytes")
        return FilePiece(data=data, is_whole=True, stamp=stamp)

    def read_stamp(self, name: str, *parts: str) -> Stamp | None:
        """Return the stamp of a run's file. None if there is no such file, or if it may not be opened."""
        try:
            with self.open_file(name, *parts) as file:
                return _stamp(file)
        except OSError:
            return None

    def list_sample_steps(self, name: str) -> list[int]:
        """Return the steps whose completions a run has, in ascending order."""
        try:
            with _open_folder(self.path, [*self._find_base(name), FOLDER]) as folder:
                found = map(_SAMPLES.fullmatch, os.listdir(folder))
        except OSError:
            return []
        return sorted(int(match[1]) for match in found if match and match[1] == str(int(match[1])))

    @contextmanager
    def open_file(self, name: str, *parts: str) -> Iterator[int]:
        """Yield the descriptor of a regular file in a run's folder, for reading. Raises OSError."""
        *folders, last = [*self._find_base(name), *parts]
        with _open_folder(self.path, folders) as folder:
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK  # a pipe would otherwise block
            descriptor = os.open(last, flags, dir_fd=folder)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise OSError(errno.EINVAL, "it is not a regular file")
            yield descriptor
        finally:
            os.close(descriptor)

    def _find_base(self, name: str) -> list[str]:
        """Return the way from the folder to a run. Raises FileNotFoundError if no run can have the name."""
        if self._only is not None:
            if name != self._only:
                raise FileNotFoundError(errno.ENOENT, "there is no such run")
            return []
        if name in ("", ".", "..") or "/" in name or "\0" in name or not _is_text(name):
            raise FileNotFoundError(errno.ENOENT, "there is no such run")
        return [name]

    def _find_newest(self, parts: Sequence[str]) -> float | None:
        """Return when a run's folder was written, in Unix seconds. None if the folder is not a run."""
        times = []
        for mark in MARKS:
            try:
                info = self.path.joinpath(*parts, mark).lstat()
            except OSError:
                continue
            if stat.S_ISREG(info.st_mode):
                times.append(info.st_mtime)
        return max(times, default=None)


@contextmanager
def _open_folder(root: Path, parts: Sequence[str]) -> Iterator[int]:
    """Yield the descriptor of a folder below `root`. No symbolic link below it is followed. Raises OSError."""
    folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for part in parts:
            inner = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
            os.close(folder)
            folder = inner
        yield folder
    finally:
        os.close(folder)


def _stamp(descriptor: int) -> Stamp:
    info = os.fstat(descriptor)
    return Stamp(info.st_ino, info.st_size, info.st_mtime_ns)


def _cut_end(data: bytes) -> bytes:
    """Return complete lines: a run may be writing the last one."""
    return data[: data.rfind(b"\n") + 1]


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
