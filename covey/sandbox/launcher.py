"""Runs a command as a user that owns nothing, if Covey itself runs as root.

This script imports no other module of Covey. The command must be able to read the interpreter. If a folder on the path
to it is closed to other users, such as /root, it is covered by a mount with only the files that the command needs. Only
the command sees that mount.
Usage: `python -I -S launcher.py ORDER COMMAND...`, where ORDER contains the keyword arguments of `launch` as JSON.
"""

import ctypes
import json
import os
import stat
import sys
from collections.abc import Sequence
from pathlib import Path

FIRST_USER = 1_900_000_000
"""First user id of a range without accounts. Each launch uses this number plus its process id."""
NOBODY = 65534
"""User id of `nobody`, used if the user namespace does not contain the preferred id."""
_CLONE_NEWNS = 0x00020000
_MS_NOSUID, _MS_NODEV, _MS_BIND, _MS_REC, _MS_PRIVATE = 2, 4, 4096, 16384, 1 << 18
_PR_CAPBSET_DROP = 24
_CAPABILITY_VERSION_3 = 0x20080522
_libc = ctypes.CDLL(None, use_errno=True)


def launch(command: Sequence[str], *, needed: Sequence[str], owned: Sequence[str], may_stay_root: bool) -> None:
    """Change to a different user and replace this process with the command.

    `needed` are the paths that the command reads, and `owned` are folders that the new user will own. With
    `may_stay_root` the user does not change, but loses its capabilities, if the new user cannot get access to the
    needed paths. Raises OSError if a step fails.
    """
    user = _choose_user()
    covers = find_covers(needed)
    try:
        if covers:
            _cover(covers, [path for path in needed if any(path.startswith(f"{cover}/") for cover in covers)])
    except PermissionError as error:
        if not may_stay_root:
            raise PermissionError(
                error.errno, f"{covers[0]} is not accessible to other users, and root cannot mount over it"
            ) from error
        drop_capabilities()
    else:
        for folder in owned:
            os.chown(folder, user, user)
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    os.execv(command[0], list(command))  # noqa: S606


def find_covers(paths: Sequence[str]) -> list[str]:
    """Return the topmost folders on these paths that other users cannot enter. Example: ["/root"]."""
    covers = set()
    for path in paths:
        for folder in reversed(Path(path).parents):
            if folder.exists() and not folder.stat().st_mode & stat.S_IXOTH:
                covers.add(str(folder))
                break
    return sorted(covers)


def _cover(covers: Sequence[str], paths: Sequence[str]) -> None:
    """Hide everything in the folders `covers` except `paths`, in this process's mount namespace."""
    _check(_libc.unshare(_CLONE_NEWNS))
    _mount(None, "/", _MS_REC | _MS_PRIVATE)
    # A path inside another one of them is mounted along with it.
    tops = [path for path in sorted(set(paths)) if not any(path.startswith(f"{other}/") for other in paths)]
    opened = [os.open(path, os.O_PATH) for path in tops]
    folders = [stat.S_ISDIR(os.fstat(descriptor).st_mode) for descriptor in opened]
    for cover in covers:
        _mount("tmpfs", cover, _MS_NOSUID | _MS_NODEV, kind="tmpfs", data="mode=755,size=1m")
    for path, descriptor, is_folder in zip(tops, opened, folders, strict=True):
        target = Path(path)
        (target if is_folder else target.parent).mkdir(parents=True, exist_ok=True)
        if not is_folder:
            target.touch()
        _mount(f"/proc/self/fd/{descriptor}", path, _MS_BIND | _MS_REC)
        os.close(descriptor)


def _choose_user() -> int:
    """Return a user id that no other process has. Return `NOBODY` if this user namespace does not contain that id."""
    user = FIRST_USER + os.getpid()
    for line in Path("/proc/self/uid_map").read_text().splitlines():
        first, _, count = map(int, line.split())
        if first <= user < first + count:
            return user
    return NOBODY


def drop_capabilities() -> None:
    """Permanently drop all capabilities of this process. Raises OSError if the kernel refuses."""
    last = int(Path("/proc/sys/kernel/cap_last_cap").read_text())
    zero = ctypes.c_ulong(0)
    for capability in range(last + 1):
        if _libc.prctl(_PR_CAPBSET_DROP, ctypes.c_ulong(capability), zero, zero, zero) < 0:
            break  # without CAP_SETPCAP the bounding set cannot be changed
    header, nothing = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0), (ctypes.c_uint32 * 6)()
    _check(_libc.capset(header, nothing))


def _mount(source: str | None, target: str, flags: int, *, kind: str | None = None, data: str | None = None) -> None:
    encoded = [None if text is None else text.encode() for text in (source, target, kind, data)]
    _check(_libc.mount(*encoded[:3], ctypes.c_ulong(flags), encoded[3]))


def _check(result: int) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


if __name__ == "__main__":
    launch(sys.argv[2:], **json.loads(sys.argv[1]))
