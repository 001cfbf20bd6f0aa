"""A system call filter for the child process of a call: no sockets, tracing, namespaces or unlimited memory.

A forbidden call fails with EPERM, so that honest code gets an exception. The filter supports x86-64 and ARM64.
"""

import ctypes
import errno
import platform
import socket
from functools import cache

from covey.sandbox import kernel

_ARCHITECTURES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
"""Audit number of each architecture and its column in `_FORBIDDEN`, by machine name."""
_FORBIDDEN = {
    # Other processes: their memory, descriptors and priority.
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "pidfd_getfd": (438, 438),
    "kcmp": (312, 272),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
    "setpriority": (141, 140),
    "ioprio_set": (251, 30),
    # Network, and sockets of services on this machine.
    "socket": (41, 198),
    # Objects that outlive the call or are not counted as its memory.
    "shmget": (29, 194),
    "semget": (64, 190),
    "msgget": (68, 186),
    "mq_open": (240, 180),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    # Namespaces and mounts.
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "move_mount": (429, 429),
    "open_tree": (428, 428),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "open_by_handle_at": (304, 265),
    # Parts of the kernel in which sandbox escapes have been found.
    "bpf": (321, 280),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "userfaultfd": (323, 282),
    "perf_event_open": (298, 241),
    "fanotify_init": (300, 262),
    "personality": (135, 92),
    "syslog": (103, 116),
    "quotactl": (179, 60),
    "acct": (163, 89),
    "swapon": (167, 224),
    "reboot": (169, 142),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
}
"""System calls that always fail, with their numbers on x86-64 and ARM64."""
_SELF_ONLY = {
    "prlimit64": (302, 261),
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
    "sched_setaffinity": (203, 122),
    "sched_setattr": (314, 274),
}
"""System calls that fail unless their first argument, a process id, is 0. 0 means the calling process."""
_CLONE, _CLONE3, _SOCKETPAIR = (56, 220), (435, 435), (53, 199)
_NEW_NAMESPACES = 0x7E020000
_X32 = 0x40000000
"""Bit of system call numbers of the x32 ABI on x86-64, which no distribution uses."""

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_KILL, _ERROR, _ALLOW = 0x80000000, 0x00050000, 0x7FFF0000
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16
_FILTER = 2


class _Instruction(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint16), ("yes", ctypes.c_uint8), ("no", ctypes.c_uint8), ("value", ctypes.c_uint32))


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_uint16), ("instructions", ctypes.POINTER(_Instruction)))


def is_known() -> bool:
    """Return whether the filter supports this machine's architecture."""
    return platform.machine() in _ARCHITECTURES


def restrict() -> None:
    """Apply the filter to this process and its future children. `no_new_privs` must be set. Raises OSError."""
    program = _build()
    kernel.prctl(kernel.PR_SET_SECCOMP, _FILTER, ctypes.addressof(program))


@cache
def _build() -> _Program:
    lines = list_instructions(platform.machine())
    array = (_Instruction * len(lines))(*(_Instruction(*line) for line in lines))
    return _Program(len(lines), array)


def list_instructions(machine: str) -> list[tuple[int, int, int, int]]:
    """Return the filter in classic BPF, as tuples (code, jump if true, jump if false, value)."""
    audit, column = _ARCHITECTURES[machine]
    refuse = (_RETURN, 0, 0, _ERROR | errno.EPERM)
    lines = [(_LOAD, 0, 0, _ARCHITECTURE), (_EQUAL, 1, 0, audit), (_RETURN, 0, 0, _KILL), (_LOAD, 0, 0, _NUMBER)]
    if machine == "x86_64":
        lines += [(_AT_LEAST, 0, 1, _X32), (_RETURN, 0, 0, _KILL)]
    for numbers in _FORBIDDEN.values():
        lines += [(_EQUAL, 0, 1, numbers[column]), refuse]
    # A library that sees ENOSYS falls back to clone, whose flags the filter can read. clone3 passes them by pointer.
    lines += [(_EQUAL, 0, 1, _CLONE3[column]), (_RETURN, 0, 0, _ERROR | errno.ENOSYS)]
    argument = (_LOAD, 0, 0, _FIRST_ARGUMENT)
    allow = (_RETURN, 0, 0, _ALLOW)
    lines += [(_EQUAL, 0, 4, _CLONE[column]), argument, (_ANY_BIT, 0, 1, _NEW_NAMESPACES), refuse, allow]
    lines += [(_EQUAL, 0, 4, _SOCKETPAIR[column]), argument, (_EQUAL, 1, 0, socket.AF_UNIX), refuse, allow]
    for numbers in _SELF_ONLY.values():
        lines += [(_EQUAL, 0, 4, numbers[column]), argument, (_EQUAL, 1, 0, 0), refuse, allow]
    return [*lines, allow]
