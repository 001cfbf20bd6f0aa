"""Functions that the tests run inside the sandbox. Each word triggers one thing that hostile input could cause.

Only the standard library and covey are imported.
"""

import ctypes
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from covey.errors import OperatorError, ProtocolError, TransientError

_CALLS: list[bytes] = []


def build(setup: bytes) -> Callable[[bytes], bytes]:
    """Return a function that knows its setup."""

    def behave(payload: bytes) -> bytes:
        _CALLS.append(payload)
        word, _, rest = payload.partition(b" ")
        if word == b"setup":
            return setup
        return _WORDS[word.decode()](rest)

    return behave


def fail(setup: bytes) -> Callable[[bytes], bytes]:
    """Fail as the setup says, instead of returning a function."""
    match setup:
        case b"operator":
            raise OperatorError("bad_environment", "the options are odd", fix="Correct them")
        case b"transient":
            raise TransientError("no_data", "nothing answers")
        case b"bug":
            raise ValueError("a bug")
    os._exit(3)


def _refuse(_: bytes) -> bytes:
    raise ProtocolError("too_odd", "line one\nline two", status=409)


def _raise(_: bytes) -> bytes:
    raise ValueError("a bug")


def _signal(rest: bytes) -> bytes:
    os.kill(os.getpid(), int(rest))
    time.sleep(600)
    return b""


def _sleep(rest: bytes) -> bytes:
    time.sleep(float(rest))
    return b"slept"


def _spin(_: bytes) -> bytes:
    while True:
        pass


def _spin_unbound(_: bytes) -> bytes:
    """Loop endlessly after disabling the limits of CPU time that a process can disable."""
    signal.setitimer(signal.ITIMER_PROF, 0)
    signal.signal(signal.SIGXCPU, signal.SIG_IGN)
    return _spin(b"")


def _spin_in_children(_: bytes) -> bytes:
    """Loop endlessly in child processes, while the parent only waits."""
    for _number in range(3):
        if os.fork() == 0:
            _spin(b"")
    os.wait()
    return b"never"


def _eat(rest: bytes) -> bytes:
    return str(len(bytearray(int(rest)))).encode()


def _eat_in_children(_: bytes) -> bytes:
    """Allocate memory in several processes, each of which stays below the limit."""
    for _number in range(8):
        if os.fork() == 0:
            memory = bytearray(60 << 20)
            for i in range(0, len(memory), 4096):
                memory[i] = 1
            time.sleep(600)
    time.sleep(600)
    return b"never"


def _eat_everything(_: bytes) -> bytes:
    memory = []
    while True:
        memory.append(bytearray(1 << 20))


def _fork_bomb(_: bytes) -> bytes:
    children = 0
    while children < 1000:
        try:
            if os.fork() == 0:
                time.sleep(600)
                os._exit(0)
        except OSError:
            return str(children).encode()
        children += 1
    return b"a thousand"


def _fork_for_ever(_: bytes) -> bytes:
    """Fork in every process, including all children."""
    while True:
        try:
            os.fork()
        except OSError:
            continue


def _say_for_ever(rest: bytes) -> bytes:
    """Write to every descriptor, including the one of the answer."""
    while True:
        for descriptor in range(3, 64):
            try:
                os.write(descriptor, bytes(1 << 16))
            except OSError:
                continue


def _late(rest: bytes) -> bytes:
    time.sleep(random.Random(time.time_ns()).choice([0, 600]) if rest == b"maybe" else 0)
    return b"in time"


def _print(_: bytes) -> bytes:
    print("x" * 100_000, flush=True)
    sys.stderr.write("x" * 100_000)
    os.write(1, b"\x00" * 1000)
    return b"printed"


def _connect(rest: bytes) -> bytes:
    try:
        with socket.create_connection(("127.0.0.1", int(rest)), timeout=2):
            return b"connected"
    except OSError as error:
        return type(error).__name__.encode()


def _open(rest: bytes) -> bytes:
    """Return the content of a file, or why it cannot be read."""
    try:
        return Path(rest.decode()).read_bytes()
    except OSError as error:
        return b"! " + type(error).__name__.encode()


def _list(rest: bytes) -> bytes:
    try:
        return "\n".join(sorted(os.listdir(rest.decode()))).encode()
    except OSError as error:
        return b"! " + type(error).__name__.encode()


def _write(rest: bytes) -> bytes:
    try:
        Path(rest.decode()).write_bytes(b"written")
    except OSError as error:
        return b"! " + type(error).__name__.encode()
    return b"written"


def _write_somewhere(_: bytes) -> bytes:
    """Return every folder, up to three levels deep, in which a file can be created."""
    found = []
    for top, folders, _files in os.walk("/"):
        if top.startswith("/proc"):
            folders[:] = []
            continue
        if top.count("/") > 2:
            folders[:] = []
        try:
            name = os.path.join(top, "written-by-a-test")
            Path(name).write_bytes(b"")
            os.unlink(name)
            found.append(top)
        except OSError:
            continue
    return "\n".join(found).encode()


def _fill(_: bytes) -> bytes:
    """Write until no space is left, and return the number of bytes written."""
    written = 0
    for number in range(64):
        try:
            with open(f"fill-{number}", "wb", buffering=0) as file:
                for _mebibyte in range(2):
                    written += file.write(bytes(1 << 20))
        except OSError:
            break
    return str(written).encode()


def _leave(rest: bytes) -> bytes:
    """Leave files in deep folders without permissions."""
    folder = Path("deep")
    for _ in range(int(rest or b"300")):
        os.mkdir(folder)
        os.chdir(folder)
    Path("file").write_bytes(b"x")
    os.chmod(".", 0)
    return b"left"


def _daemon(_: bytes) -> bytes:
    """Start a process in its own session, whose parent ends."""
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.write(writing, b"%d" % os.getpid())
            while True:
                time.sleep(600)
        os._exit(0)
    os.wait()
    return os.read(reading, 100)


def _count_processes(_: bytes) -> bytes:
    """Count all processes in /proc. Without /proc, only the own ones could be counted."""
    return str(sum(name.isdecimal() for name in os.listdir("/proc"))).encode()


def _kill_zygote(_: bytes) -> bytes:
    for number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM, signal.SIGINT):
        try:
            os.kill(os.getppid(), number)
        except OSError:
            continue
    time.sleep(0.2)
    return b"tried"


def _kill_all(_: bytes) -> bytes:
    for number in (signal.SIGSTOP, signal.SIGKILL):
        try:
            os.kill(-1, number)
        except OSError:
            continue
    return b"tried"


def _kill(rest: bytes) -> bytes:
    try:
        os.kill(int(rest), signal.SIGKILL)
    except OSError as error:
        return b"! " + type(error).__name__.encode()
    return b"killed"


def _starve_zygote(_: bytes) -> bytes:
    """Set the zygote's limit of open files to zero."""
    try:
        resource.prlimit(os.getppid(), resource.RLIMIT_NOFILE, (0, 0))
    except OSError as error:
        return b"! " + type(error).__name__.encode()
    return b"starved"


def _spy(_: bytes) -> bytes:
    """Return what can be read about the zygote."""
    said = []
    for name in ("environ", "mem", "maps", "fd", "cwd", "exe"):
        path = f"/proc/{os.getppid()}/{name}"
        try:
            if name == "fd":
                os.listdir(path)
            elif name in {"cwd", "exe"}:
                os.readlink(path)
            else:
                with open(path, "rb") as file:
                    file.read(1)
            said.append(name)
        except OSError:
            continue
    return " ".join(said).encode()


def _trace_zygote(_: bytes) -> bytes:
    libc = ctypes.CDLL(None, use_errno=True)
    return b"attached" if libc.ptrace(16, os.getppid(), 0, 0) == 0 else b"! " + os.strerror(ctypes.get_errno()).encode()


def _unshare(_: bytes) -> bytes:
    libc = ctypes.CDLL(None, use_errno=True)
    return b"unshared" if libc.unshare(0x10000000) == 0 else b"! " + os.strerror(ctypes.get_errno()).encode()


def _keep_memory(_: bytes) -> bytes:
    """Allocate System V shared memory, which outlives its process."""
    libc = ctypes.CDLL(None, use_errno=True)
    return b"kept" if libc.shmget(7, 4096, 0o1600) >= 0 else b"! " + os.strerror(ctypes.get_errno()).encode()


def _patch(_: bytes) -> bytes:
    import json

    json.loads = lambda *_, **__: "patched"
    return str(json.loads("1")).encode()


def _ask(_: bytes) -> bytes:
    import json

    return str(json.loads("1")).encode()


def _descriptors(_: bytes) -> bytes:
    """Return the open descriptors except the standard streams and the answer, found without /proc."""
    descriptors = []
    for number in range(3, 1024):
        try:
            os.fstat(number)
        except OSError:
            continue
        descriptors.append(number)
    return str(len(descriptors)).encode()


def _subprocess(_: bytes) -> bytes:
    done = subprocess.run([sys.executable, "-c", "print(6 * 7)"], capture_output=True, timeout=60, check=False)
    return done.stdout.strip() or done.stderr[-200:]


def _segfault(_: bytes) -> bytes:
    os.kill(os.getpid(), signal.SIGSEGV)
    return b""


_WORDS: dict[str, Callable[[bytes], bytes]] = {
    "echo": lambda rest: rest,
    "count": lambda _: str(len(_CALLS)).encode(),
    "say": lambda rest: bytes(int(rest)),
    "exit": lambda rest: os._exit(int(rest)),
    "quit": lambda _: sys.exit(0),
    "environment": lambda _: repr(sorted(os.environ)).encode(),
    "pid": lambda _: str(os.getpid()).encode(),
    "parent": lambda _: str(os.getppid()).encode(),
    "cwd": lambda _: os.getcwd().encode(),
    "hash": lambda rest: str(hash(rest)).encode(),
    "answer_odd": lambda _: 7,
} | {
    name.removeprefix("_"): value for name, value in list(globals().items()) if callable(value) and name[1:2].islower()
}
