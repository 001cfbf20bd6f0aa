"""States of a folder's processes, which `covey up` writes and `covey status` reads.

The file is in `logs/`. It says nothing once its `covey up` has ended, which the folder's lock shows.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from covey.errors import OperatorError
from covey.local.folder import read_processes
from covey.local.keeper import KeptProcess, find_keeper
from covey.local.logs import read_last
from covey.runtime.files import write_atomically

STATES_FILE = "processes.json"
NOT_RUNNING = "stopped"
"""State of every process of a folder that no `covey up` keeps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessStatus:
    """One process of a folder. Example: ProcessStatus(name="trainer", state="runs", pid=4711)."""

    name: str
    state: str
    """State in words, as in `KeptProcess.state`, or NOT_RUNNING."""
    pid: int | None = None
    """Process id. None unless it runs."""
    failures: int = 0
    """How often it has ended with an error that is not transient."""
    error: str = ""
    """Last error with which it ended. Empty if it has not failed."""
    last_line: str = ""
    """Last line of its log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderStatus:
    """The processes of a folder, in start order."""

    keeper: int | None
    """Process id of the folder's `covey up`. None if it does not run."""
    processes: tuple[ProcessStatus, ...]


class StatesFile:
    """Writes the states of kept processes when they change. Example: `StatesFile(folder).write(keeper.kept)`."""

    def __init__(self, folder: Path) -> None:
        self._path, self._written = folder / "logs" / STATES_FILE, ""

    def write(self, kept: Sequence[KeptProcess]) -> None:
        """Write the states if they are not those of the last call. A full disk delays them until the next call."""
        states = [asdict(_describe(each)) for each in kept]
        text = json.dumps(states)
        if text == self._written:
            return
        try:
            write_atomically(self._path, text.encode())
        except OSError:
            return
        self._written = text


def read_folder_status(folder: Path) -> FolderStatus:
    """Read the state of each process of a folder.

    Raises OperatorError("no_processes") if the folder has none, and OperatorError("bad_states") if the file of states
    is damaged.
    """
    names, keeper = list(read_processes(folder)), find_keeper(folder)
    path = folder / "logs" / STATES_FILE
    states: dict[str, ProcessStatus] = {}
    if keeper is not None and path.exists():
        try:
            states = {each["name"]: ProcessStatus(**each) for each in json.loads(path.read_text())}
        except (ValueError, TypeError, KeyError) as error:
            raise OperatorError(
                "bad_states", f"{path} is damaged: {error}", fix=f"Start the folder again with covey up {folder}"
            ) from error
    return FolderStatus(keeper=keeper, processes=tuple(_complete(folder, name, states.get(name)) for name in names))


def _complete(folder: Path, name: str, found: ProcessStatus | None) -> ProcessStatus:
    """Return a state with the last line of the log."""
    log = folder / "logs" / f"{name}.log"
    last_line = read_last(log) if log.exists() else ""
    if found is None:
        return ProcessStatus(name=name, state=NOT_RUNNING, last_line=last_line)
    return ProcessStatus(
        name=name, state=found.state, pid=found.pid, failures=found.failures, error=found.error, last_line=last_line
    )


def _describe(kept: KeptProcess) -> ProcessStatus:
    runs = kept.running is not None and kept.state in ("runs", "restarting") and kept.restart_at is None
    pid = kept.running.pid if runs and kept.running is not None else None
    return ProcessStatus(name=kept.name, state=kept.state, pid=pid, failures=kept.failures, error=kept.why)
