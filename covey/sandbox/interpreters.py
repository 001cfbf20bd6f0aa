"""The files that a Python interpreter needs to run: this process's interpreter, or a different one that is queried.

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
"""Timeout in seconds for querying a different Python. It is generous, because the machine may be busy."""
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
    """A Python interpreter on this machine."""

    executable: Path
    """Path of the interpreter."""
    folders: tuple[Path, ...]
    """Folders in which the interpreter and its virtual environment are installed."""
    sites: tuple[Path, ...]
    """Folders of installed packages, such as site-packages."""
    sources: tuple[Path, ...]
    """Folder or file of each requested package that the interpreter can import."""


def describe_own(packages: Iterable[str]) -> Interpreter:
    """Describe the interpreter of this process, and those of the top-level `packages` that it can import."""
    folders = {sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix}
    return Interpreter(
        executable=Path(sys.executable),
        folders=tuple(map(Path, sorted(folders))),
        sites=_find_sites(sys.path),
        sources=tuple(find_packages(packages)),
    )


def ask(executable: Path, packages: Sequence[str]) -> Interpreter:
    """Query a different interpreter, and describe it and those of the top-level `packages` that it can import.

    Raises OperatorError("bad_interpreter") if it does not respond.
    """
    command = [str(executable), "-P", "-s", "-c", _QUESTION, *packages]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=ASK_SECONDS, check=True, cwd="/")
        answer = json.loads(done.stdout)
        return Interpreter(
            executable=executable,
            folders=tuple(map(Path, sorted(set(answer["folders"])))),
            sites=_find_sites(answer["paths"]),
            sources=tuple(map(Path, dict.fromkeys(answer["sources"]))),
        )
    except (OSError, subprocess.SubprocessError, ValueError, LookupError, TypeError) as error:
        raise OperatorError(
            "bad_interpreter",
            f"the Python interpreter {executable} did not list its folders and packages: {error}",
            fix="Use a working Python 3.11 or newer",
        ) from error


def find_packages(names: Iterable[str]) -> Iterator[Path]:
    """Yield the folder or file of each of the top-level packages that this process can import."""
    for name in dict.fromkeys(names):
        spec = importlib.util.find_spec(name)
        if spec is not None:
            yield from map(Path, spec.submodule_search_locations or ([spec.origin] if spec.origin else []))


def _find_sites(paths: Iterable[str]) -> tuple[Path, ...]:
    return tuple(path for path in map(Path, paths) if path.name in _SITES and path.is_dir())
