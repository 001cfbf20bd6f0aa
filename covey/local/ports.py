"""The five consecutive ports of a pool's folder: free ones for a new pool, and moving a pool to others."""

import json
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import tomlkit

from covey.errors import OperatorError
from covey.local.folder import PROCESSES_FILE, has_own_chain, read_processes
from covey.local.plan import FIRST_PORT, LOOPBACK, PORTS
from covey.runtime.files import write_atomically
from covey.runtime.http import listen

STEP = 10
"""Difference between the first ports that are tried for a new pool."""
LAST_PORT = 65_535
SETTINGS = "coordinator.toml"
MOVE_FILE = ".ports.json"
"""New texts of the files of a folder by name, while its ports are moved."""
_URL = re.compile(r"(https?://(?:127\.0\.0\.1|localhost|\[::1\]):)(\d+)\b")
"""Beginning of a URL of this machine, up to its port."""
_OPTION = re.compile(r"(--port[ =])(\d+)\b")


def find_free_block() -> int:
    """Return the first of five consecutive free ports: 8000, or else 8010, 8020 and so on.

    Raises OperatorError("no_free_port") if there are none.
    """
    for first in range(FIRST_PORT, LAST_PORT - len(PORTS), STEP):
        if all(is_free(port) for port in range(first, first + len(PORTS))):
            return first
    raise OperatorError(
        "no_free_port",
        f"there are no {len(PORTS)} consecutive free ports above {FIRST_PORT}",
        fix="Stop some of the services that listen there",
    )


def is_free(port: int) -> bool:
    """Return whether a service could listen on a port of this machine now."""
    try:
        listen(LOOPBACK, port).close()
    except OperatorError:
        return False
    return True


def advise(folder: Path, port: int) -> str:
    """Return how to change a port of the folder on which another service listens, as the end of a sentence."""
    if (folder / SETTINGS).exists() and has_own_chain(folder):
        return f"move the pool to free ports with covey up {folder} --port {find_free_block()}"
    return f"change the port in {folder}: {', '.join(find_places(folder, port))}"


def find_places(folder: Path, port: int) -> list[str]:
    """List the settings in a folder that contain a port. Example: ["coordinator.toml (port, relays)"]."""
    places = []
    for file in sorted(folder.glob("*.toml")):
        settings = _list_settings(tomllib.loads(file.read_text()))
        names = [name for name, value in settings if _has_port(name, value, port)]
        if names:
            places.append(f"{file.name} ({', '.join(names)})")
    return places


def move_ports(folder: Path, first: int) -> None:
    """Change the ports of a pool on a devnet to five consecutive ones, in all files of its folder.

    An interrupted call can be repeated: the new texts of all files are saved first, and the next call writes them.

    Raises OperatorError("fixed_ports") if the folder has no devnet, because others know its ports. Raises
    OperatorError("address_in_use") if one of the new ports is taken.
    """
    if not (folder / SETTINGS).exists() or not has_own_chain(folder):
        raise OperatorError(
            "fixed_ports",
            f"{folder} is not a pool on a devnet, so its ports are part of URLs that others know",
            fix="Remove --port, and change the settings and the public URLs yourself",
        )
    _finish_move(folder)
    numbers = _read_ports(folder)
    changes = {number: first + i for i, number in enumerate(numbers)}
    for port in changes.values():
        try:
            listen(LOOPBACK, port).close()
        except OperatorError as error:
            message = error.message.removesuffix(f". {error.fix}")
            fix = f"Use the next free ports with covey up {folder} --port {find_free_block()}"
            raise OperatorError(error.code, message, fix=fix) from error
    texts = {file.name: _URL.sub(_replace(changes), file.read_text()) for file in sorted(folder.glob("*.toml"))}
    document = tomlkit.parse(texts[SETTINGS])
    document["port"], document["pages_port"] = first, first + PORTS.index("pages")
    texts[SETTINGS] = tomlkit.dumps(document)
    texts[PROCESSES_FILE] = _OPTION.sub(_replace(changes), texts[PROCESSES_FILE])
    write_atomically(folder / MOVE_FILE, json.dumps(texts).encode())
    _finish_move(folder)


def _finish_move(folder: Path) -> None:
    """Write the texts that a move has saved. Nothing happens if there are none."""
    saved = folder / MOVE_FILE
    if saved.exists():
        for name, text in json.loads(saved.read_text()).items():
            write_atomically(folder / name, text.encode())
        saved.unlink()


def _list_settings(values: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _list_settings(value)
        else:
            yield name, value


def _has_port(name: str, value: object, port: int) -> bool:
    if name in ("port", "pages_port"):
        return value == port
    texts = value if isinstance(value, list) else [value]
    return any(re.search(rf"(:|--port[ =]){port}\b", text) for text in texts if isinstance(text, str))


def _read_ports(folder: Path) -> list[int]:
    """Return the current port of each process in PORTS.

    Raises OperatorError("bad_processes") if one of them is not in the folder or has no --port.
    """
    settings = tomllib.loads((folder / SETTINGS).read_text())
    found = {
        "coordinator": settings.get("port", FIRST_PORT),
        "pages": settings.get("pages_port", FIRST_PORT + PORTS.index("pages")),
    }
    for name, command in read_processes(folder).items():
        match = _OPTION.search(command)
        if match is not None:
            found[name] = int(match[2])
    missing = [name for name in PORTS if name not in found]
    if missing:
        raise OperatorError(
            "bad_processes",
            f"{folder / PROCESSES_FILE} does not set --port for {', '.join(missing)}",
            fix="Add --port to their commands, or change the ports yourself",
        )
    return [found[name] for name in PORTS]


def _replace(changes: Mapping[int, int]) -> Callable[[re.Match[str]], str]:
    """Return a function that replaces the port in the second group of a match."""
    return lambda match: f"{match[1]}{changes.get(int(match[2]), int(match[2]))}"
