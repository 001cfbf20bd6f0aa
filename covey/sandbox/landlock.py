"""Landlock permanently removes a process's rights to files, TCP ports and signals. It needs no privileges.

`build_ruleset` runs in the zygote, and `restrict` runs in the child of each call. Rights that the kernel's Landlock ABI
does not support are omitted; `find_abi` returns its version.
"""

import ctypes
import os
import stat
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from covey.sandbox import kernel

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION, _PATH_BENEATH = 1, 1
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_TRUNCATE, _IOCTL_DEV = 1 << 14, 1 << 15
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV
_READING = _EXECUTE | _READ_FILE | _READ_DIR
_KNOWN_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15}
"""Number of file rights that each ABI supports. Later ABIs support 16."""
_BIND_AND_CONNECT = 0b11
_ABSTRACT_SOCKETS_AND_SIGNALS = 0b11
SCOPES_ABI = 6
"""First ABI that can prevent a process from signalling processes outside the sandbox."""
TCP_ABI = 4
"""First ABI that can forbid TCP."""


class _Ruleset(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64), ("tcp", ctypes.c_uint64), ("scopes", ctypes.c_uint64))


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _layout_ = "ms"
    _fields_ = (("allowed", ctypes.c_uint64), ("folder", ctypes.c_int32))


@cache
def find_abi() -> int:
    """Return the version of the kernel's Landlock ABI. 0 if the kernel has no Landlock."""
    try:
        return kernel.call(_CREATE_RULESET, None, 0, _VERSION)
    except OSError:
        return 0


def build_ruleset(*, readable: Iterable[Path], writable: Iterable[Path]) -> int:
    """Return the descriptor of a ruleset that permits only reading and executing `readable` and changing `writable`.

    Paths that do not exist are skipped. TCP is forbidden from ABI 4 on, and signals to processes outside from ABI 6 on.
    Raises OSError if the kernel refuses a rule.
    """
    abi = find_abi()
    every = (1 << _KNOWN_RIGHTS.get(abi, 16)) - 1
    tcp = _BIND_AND_CONNECT if abi >= TCP_ABI else 0
    scopes = _ABSTRACT_SOCKETS_AND_SIGNALS if abi >= SCOPES_ABI else 0
    attributes = _Ruleset(every, tcp, scopes)
    size = 8 if abi < TCP_ABI else 16 if abi < SCOPES_ABI else 24
    ruleset = kernel.call(_CREATE_RULESET, attributes, size, 0)
    try:
        for path in readable:
            _allow(ruleset, path, _READING)
        for path in writable:
            _allow(ruleset, path, every & ~_IOCTL_DEV)
    except OSError:
        os.close(ruleset)
        raise
    return ruleset


def restrict(ruleset: int) -> None:
    """Apply the ruleset to this process and its future children. `no_new_privs` must be set. Raises OSError."""
    kernel.call(_RESTRICT_SELF, ruleset, 0)


def _allow(ruleset: int, path: Path, rights: int) -> None:
    try:
        opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        allowed = rights if stat.S_ISDIR(os.fstat(opened).st_mode) else rights & _OF_FILES
        kernel.call(_ADD_RULE, ruleset, _PATH_BENEATH, _PathBeneath(allowed, opened), 0)
    finally:
        os.close(opened)
