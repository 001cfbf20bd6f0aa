"""System calls that Python's standard library lacks, made with ctypes. Linux only."""

import ctypes
import os
from pathlib import Path

PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT = 4, 22, 36, 38, 47
PR_CAP_AMBIENT_CLEAR_ALL = 4
_MS_NOSUID, _MS_NODEV = 2, 4
_MADV_COLLAPSE, _HUGE_PAGE = 25, 2 << 20

_libc = ctypes.CDLL(None, use_errno=True)


def call(number: int, *arguments: int | ctypes.Array[ctypes.c_char] | ctypes.Structure | None) -> int:
    """Make a system call by its number. Raises OSError if it fails."""
    passed = [ctypes.byref(value) if isinstance(value, ctypes.Structure) else value for value in arguments]
    wide = [ctypes.c_long(value) if isinstance(value, int) else value for value in passed]
    return _check(_libc.syscall(ctypes.c_long(number), *wide))


def prctl(option: int, first: int = 0, second: int = 0) -> None:
    """Call prctl(2) with up to two arguments. Raises OSError if it fails."""
    zero = ctypes.c_ulong(0)
    _check(_libc.prctl(option, ctypes.c_ulong(first), ctypes.c_ulong(second), zero, zero))


def mount_tmpfs(folder: Path, size: int) -> None:
    """Mount an empty file system of at most `size` bytes that this process's user owns. Raises OSError if it fails."""
    data = f"size={size},mode=700,uid={os.getuid()},gid={os.getgid()}".encode()
    flags = ctypes.c_ulong(_MS_NOSUID | _MS_NODEV)
    _check(_libc.mount(b"tmpfs", bytes(folder), b"tmpfs", flags, data))


def collapse_memory() -> None:
    """Move this process's own memory into huge pages, as far as the kernel can.

    This makes forks cheaper, because a fork copies one entry per page. Memory that does not fill a whole huge page
    stays as it is. On kernels before 6.1 the function has no effect.
    """
    for line in Path("/proc/self/maps").read_text().splitlines():
        addresses, rights, _, _, inode = line.split()[:5]
        first, end = (int(address, 16) for address in addresses.split("-"))
        if rights != "rw-p" or inode != "0":
            continue
        for start in range(-(-first // _HUGE_PAGE) * _HUGE_PAGE, end - _HUGE_PAGE + 1, _HUGE_PAGE):
            _libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(_HUGE_PAGE), _MADV_COLLAPSE)


def _check(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
