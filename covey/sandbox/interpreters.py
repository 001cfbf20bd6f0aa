"""What a Python needs to run: the one of this process, or another one that is asked.

Main names: `Interpreter`, `describe_own`, `ask`.
"""

import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from covey.errors import OperatorError

ASK_SECONDS = 60.0
"""Timeout in seconds of the question to another Python, which takes about 0.05 s on an idle machine."""
_SITES = {"site-packages", "dist-packages"}
_QUESTION = """
import importlib.util, json, sys
found = filter(None, map(importlib.util.find_spec, sys.argv[1:]))
sources = [path for spec in found for path in spec.submodule_search_locations or [spec.origin]]
folders = [sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix]
print(json.dumps({"folders": folders, "paths": sys.path, "sources": sources}))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interpreter:
    """A Python on this machine."""

    executable: Path
    folders: tuple[Path, ...]
    """Where the interpreter and its environment are installed."""
    sites: tuple[Path, ...]
    """Folders of installed packages."""
    sources: tuple[Path, ...]
    """Folder or file of each package that was asked for."""


def describe_own(packages: Iterable[str]) -> Interpreter:
    """The Python of this process, with the top-level packages that it has of those."""
    folders = {sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix}
    return Interpreter(
        executable=Path(sys.executable),
        folders=tuple(map(Path, sorted(folders))),
        sites=_find_sites(sys.path),
        sources=tuple(find_packages(packages)),
    )


def ask(executable: Path, packages: Sequence[str]) -> Interpreter:
    """Another Python, with the top-level packages that it has of those.

    Raises OperatorError("bad_interpreter") if it does not answer.
    """
    command = [str(executable), "-P", "-s", "-c", _QUESTION, *packages]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=ASK_SECONDS, check=True, cwd="/")
        found = json.loads(done.stdout)
        return Interpreter(
            executable=executable,
            folders=tuple(map(Path, sorted(set(found["folders"])))),
            sites=_find_sites(found["paths"]),
            sources=tuple(map(Path, dict.fromkeys(found["sources"]))),
        )
    except (OSError, subprocess.SubprocessError, ValueError, LookupError, TypeError) as error:
        raise OperatorError(
            "bad_interpreter",
            f"the Python {executable} does not say what it has: {error}",
            fix="Name a Python 3.11 or newer that runs",
        ) from error


def find_packages(names: Iterable[str]) -> Iterator[Path]:
    """Folder or file of each top-level package that this process can import."""
    for name in dict.fromkeys(names):
        spec = importlib.util.find_spec(name)
        if spec is not None:
            yield from map(Path, spec.submodule_search_locations or ([spec.origin] if spec.origin else []))


def _find_sites(paths: Iterable[str]) -> tuple[Path, ...]:
    return tuple(path for path in map(Path, paths) if path.name in _SITES and path.is_dir())
