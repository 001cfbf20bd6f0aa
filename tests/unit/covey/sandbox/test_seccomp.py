"""The system call filter, run by a small interpreter of classic BPF that is independent of the kernel."""

import errno
import struct

import pytest

from covey.sandbox.seccomp import list_instructions

pytestmark = pytest.mark.unit
X86, ARM = 0xC000003E, 0xC00000B7
ALLOW, KILL, EPERM, ENOSYS = 0x7FFF0000, 0x80000000, 0x50000 | errno.EPERM, 0x50000 | errno.ENOSYS


def run(machine: str, architecture: int, number: int, first: int = 0) -> int:
    data = struct.pack("<IIQ6Q", number, architecture, 0, first, 0, 0, 0, 0, 0)
    lines, position, accumulator = list_instructions(machine), 0, 0
    while True:
        code, yes, no, value = lines[position]
        position += 1
        match code:
            case 0x20:
                (accumulator,) = struct.unpack_from("<I", data, value)
            case 0x15:
                position += yes if accumulator == value else no
            case 0x35:
                position += yes if accumulator >= value else no
            case 0x45:
                position += yes if accumulator & value else no
            case 0x06:
                return value
            case _:
                raise AssertionError(code)


@pytest.mark.parametrize(
    ("number", "first", "verdict"),
    [
        (0, 0, ALLOW),  # read
        (59, 0, ALLOW),  # execve
        (41, 2, EPERM),  # IPv4 socket
        (41, 1, EPERM),  # Unix socket, which services of this machine use
        (53, 1, ALLOW),  # socketpair
        (53, 2, EPERM),
        (56, 17, ALLOW),  # fork: SIGCHLD alone
        (56, 0x3D0F00, ALLOW),  # a thread
        (56, 0x10000000 | 17, EPERM),  # a user namespace
        (435, 0, ENOSYS),  # clone3
        (101, 0, EPERM),  # ptrace
        (302, 0, ALLOW),  # prlimit on itself
        (302, 1, EPERM),  # prlimit on process 1
        (319, 0, EPERM),  # memfd_create
        (0x40000000, 0, KILL),  # x32
    ],
)
def test_list_instructions__x86_64(number: int, first: int, verdict: int):
    assert run("x86_64", X86, number, first) == verdict


@pytest.mark.parametrize(
    ("number", "first", "verdict"),
    [
        (63, 0, ALLOW),  # read
        (198, 2, EPERM),  # socket
        (199, 1, ALLOW),  # socketpair
        (220, 17, ALLOW),  # clone
        (220, 0x20000000, EPERM),
        (435, 0, ENOSYS),
        (117, 0, EPERM),  # ptrace
        (261, 9, EPERM),  # prlimit on another process
        (41, 0, EPERM),  # pivot_root, whose number is that of socket on x86-64
    ],
)
def test_list_instructions__arm64(number: int, first: int, verdict: int):
    assert run("aarch64", ARM, number, first) == verdict


@pytest.mark.parametrize(("machine", "other"), [("x86_64", ARM), ("aarch64", X86), ("x86_64", 0x40000003)])
def test_list_instructions__another_architecture__kills_the_process(machine: str, other: int):
    assert run(machine, other, 0) == KILL


def test_list_instructions__length__is_within_the_limit_of_bpf():
    assert len(list_instructions("x86_64")) < 4096
