"""Policies on this machine, as folders that engines load. Several processes of one machine may share a store.

    <step>-<record hash>/   a complete policy; it appears by one rename
    .part-<record hash>/    a policy that is being built
    .gone-<random>/         a policy that is being removed
    .lock                   held by the process that downloads or removes policies

All locks are `flock` locks, which the kernel releases when their process ends.
"""

import fcntl
import os
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from covey.errors import TransientError
from covey.protocol.ids import Hash, is_hash
from covey.protocol.policy_record import RECORD_FILE, PolicyRecord
from covey.runtime.log import get_logger
from covey.shardcast.policy_folder import find_damage

LOCK_SECONDS = 3600.0
"""Maximum time in seconds to wait for another process that downloads a policy."""
_LOOK_SECONDS, _LOG_EVERY_SECONDS = 0.1, 60.0


class PolicyStore:
    """Folder of complete policies. Example: `PolicyStore(Path("home/policies"), keep=4)`."""

    def __init__(self, root: Path, *, keep: int, threads: int = 0) -> None:
        """`keep` is the number of newest policies that are kept. Held policies are kept as well.

        `threads` is the number of threads that build and check weights. 0 means one per core, at most 8.
        """
        self.root, self._keep = root, keep
        self.threads = threads or min(8, os.cpu_count() or 1)
        self._checked: set[Path] = set()
        """Folders that this process has compared with their records."""
        self._verifying = threading.Lock()
        self._holds: dict[Path, list[int]] = {}
        """File descriptors that hold a shared lock on the record of a policy, by folder."""
        root.mkdir(parents=True, exist_ok=True)

    def get_folder(self, step: int, record: Hash) -> Path:
        """Return the folder of a policy, whether it exists or not."""
        return self.root / f"{step}-{record}"

    def get_trained_at(self, folder: Path) -> float:
        """Return the Unix time at which a policy was completed, according to its trainer.

        It is the modification time of the record's file. If the trainer did not give a time, it is the end of the
        download.
        """
        return (folder / RECORD_FILE).stat().st_mtime

    def get_draft(self, record: Hash) -> Path:
        """Return the folder in which a policy is built. It survives a crash, so that the download can resume."""
        return self.root / f".part-{record}"

    def list_folders(self) -> dict[Hash, Path]:
        """Return the folders of the complete policies by the hash of their record, oldest step first."""
        found = []
        for path in self.root.iterdir():
            step, _, record = path.name.partition("-")
            if step.isdecimal() and is_hash(record):
                found.append((int(step), Hash(record), path))
        return {record: path for _, record, path in sorted(found)}

    @contextmanager
    def lock(self, is_needed: Callable[[], bool], *, stop: threading.Event) -> Iterator[bool]:
        """Wait for the exclusive right to change the store. Yields False without the right if `is_needed` turns False
        meanwhile.

        Raises TransientError("store_busy") after LOCK_SECONDS, and "stopped" if `stop` is set.
        """
        started = logged = time.monotonic()
        with (self.root / ".lock").open("w") as file:
            while is_needed():
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    pass
                else:
                    yield is_needed()
                    return
                now = time.monotonic()
                if now - started >= LOCK_SECONDS:
                    message = f"another process has held {self.root / '.lock'} for {LOCK_SECONDS:g} s"
                    raise TransientError("store_busy", message)
                if now - logged >= _LOG_EVERY_SECONDS:
                    logged = now
                    get_logger().info("waiting for the download of another process", store=str(self.root))
                if stop.wait(_LOOK_SECONDS):
                    raise TransientError("stopped", "the wait for another process's download was stopped")
            yield False

    def add(self, draft: Path, record: PolicyRecord) -> None:
        """Rename a complete draft to its final folder. The caller has compared its digests with the record."""
        folder = self.get_folder(record.step, record.compute_hash())
        if folder.exists():
            self._remove(folder)
        draft.replace(folder)
        self._checked.add(folder)

    def hold_if_sound(self, folder: Path) -> bool:
        """Hold a policy and return True. Returns False if it is missing, or if it was damaged and has been removed.

        Digests are compared once per process. Several threads may call this.
        """
        if not self._hold_if_here(folder):
            return False
        if folder in self._checked:
            return True
        self.release(folder)
        with self._verifying:  # Other threads wait for the result instead of checking again.
            if not self._hold_if_here(folder):
                return False
            if folder in self._checked or not (
                damage := find_damage(folder, _get_record(folder), threads=self.threads)
            ):
                self._checked.add(folder)
                return True
            get_logger().warning("policy on this machine is damaged and will be fetched again", why=damage)
            is_replaced = not _is_file(self._holds[folder][-1], folder / RECORD_FILE)
            while self._holds.get(folder):  # No holder can rely on a damaged policy.
                self.release(folder)
            if not is_replaced:
                self._remove(folder)
            return False

    def count_holds(self, folder: Path) -> int:
        """Return the number of times that this process holds a policy."""
        return len(self._holds.get(folder, ()))

    def _hold_if_here(self, folder: Path) -> bool:
        try:
            self.hold(folder)
        except FileNotFoundError:
            self._checked.discard(folder)
            if folder.exists():
                self._remove(folder)  # A folder without a record is incomplete.
            return False
        return True

    def hold(self, folder: Path) -> None:
        """Protect a complete policy from removal by any process, until `release` is called once for each `hold`.

        Raises FileNotFoundError if the policy does not exist.
        """
        path = folder / RECORD_FILE
        file = os.open(path, os.O_RDONLY)
        fcntl.flock(file, fcntl.LOCK_SH)
        if not _is_file(file, path):
            os.close(file)
            raise FileNotFoundError(f"another process has removed {folder}")
        self._holds.setdefault(folder, []).append(file)

    def release(self, folder: Path) -> None:
        """End one `hold`. Does nothing if there is none."""
        if holds := self._holds.get(folder):
            os.close(holds.pop())

    def make_room(self, needed: int) -> None:
        """Remove the oldest policies until `keep` - 1 remain and `needed` bytes are free.

        Held policies stay. Raises TransientError("disk_full") if there is still too little room. Only the holder of the
        lock may call this.
        """
        folders = list(self.list_folders().values())
        removable = sum(_measure(folder) for folder in folders if not self._is_held(folder))
        if (free := self.count_free()) + removable < needed:
            message = (
                f"{self.root} needs {needed} free bytes for a policy but has {free}, plus {removable} in old policies"
            )
            raise TransientError("disk_full", f"{message}. Free space there, or set home to a folder on a larger disk")
        surplus = len(folders) - (self._keep - 1)
        for folder in folders:
            if surplus <= 0 and self.count_free() >= needed:
                break
            if self._remove_unless_held(folder):
                surplus -= 1
        if (free := self.count_free()) < needed:
            message = f"{self.root} needs {needed} free bytes for a policy but has {free}"
            raise TransientError("disk_full", f"{message}. Free space there, or set home to a folder on a larger disk")

    def remove_drafts(self, *, besides: Path) -> None:
        """Remove all drafts except `besides`, and the remains of interrupted removals.

        Only the holder of the lock may call this.
        """
        for path in self.root.iterdir():
            if path.name.startswith((".part-", ".gone-")) and path != besides:
                shutil.rmtree(path, ignore_errors=True)

    def count_free(self) -> int:
        """Return the number of free bytes on the disk of the store."""
        return shutil.disk_usage(self.root).free

    def _is_held(self, folder: Path) -> bool:
        """Return whether any process on this machine holds a policy."""
        try:
            with (folder / RECORD_FILE).open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except FileNotFoundError:
            pass
        return False

    def _remove_unless_held(self, folder: Path) -> bool:
        try:
            with (folder / RECORD_FILE).open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._remove(folder)
        except BlockingIOError:
            return False
        except FileNotFoundError:
            self._remove(folder)
        return True

    def _remove(self, folder: Path) -> None:
        gone = self.root / f".gone-{secrets.token_hex(8)}"
        with suppress(FileNotFoundError):  # Another process has removed it.
            folder.replace(gone)  # A partly removed folder must not look complete.
        shutil.rmtree(gone, ignore_errors=True)


def _is_file(file: int, path: Path) -> bool:
    """Return whether a path still refers to an open file."""
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return False


def _measure(folder: Path) -> int:
    """Return the number of bytes that removing a folder frees."""
    return sum(path.stat().st_blocks * 512 for path in folder.iterdir())


def _get_record(folder: Path) -> Hash:
    """Return the hash of a policy's record, which is part of the folder's name."""
    return Hash(folder.name.partition("-")[2])
