"""States that `covey up` writes and `covey status` reads."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from covey.errors import OperatorError
from covey.local.folder import PROCESSES_FILE, write_processes
from covey.local.folder_status import NOT_RUNNING, STATES_FILE, StatesFile, read_folder_status
from covey.local.keeper import KeptProcess, locked

pytestmark = pytest.mark.unit


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_processes(tmp_path / PROCESSES_FILE, {"trainer": "trainer run", "worker": "worker run"})
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "trainer.log").write_text("first\nstep 3 is trained\n")
    return tmp_path


def keep(name: str, *, exit_code: int | None = None, **changes: object) -> KeptProcess:
    running = SimpleNamespace(exit_code=exit_code, pid=4711)
    return KeptProcess(name=name, command=f"{name} run", running=running, **changes)


def test_read_folder_status__states_of_a_running_keeper__come_with_last_lines(folder: Path):
    failed = keep("worker", exit_code=1, restart_at=9.0, is_steady=False, failures=2, why="no_policy: gone")
    with locked(folder):
        StatesFile(folder).write([keep("trainer"), failed])
        trainer, worker = (found := read_folder_status(folder)).processes
        assert found.keeper is not None
    assert (trainer.state, trainer.pid, trainer.last_line) == ("runs", 4711, "step 3 is trained")
    assert (worker.state, worker.pid, worker.failures, worker.error) == ("restarting", None, 2, "no_policy: gone")


def test_read_folder_status__keeper_has_ended__everything_is_stopped(folder: Path):
    """A killed `covey up` leaves its file behind."""
    StatesFile(folder).write([keep("trainer")])
    found = read_folder_status(folder)
    assert (found.keeper, [each.state for each in found.processes]) == (None, [NOT_RUNNING] * 2)


@pytest.mark.parametrize("text", ["{", "[1]", '[{"name": "trainer", "other": 1}]', '{"a": 1}'])
def test_read_folder_status__damaged_file__is_named(folder: Path, text: str):
    (folder / "logs" / STATES_FILE).write_text(text)
    with locked(folder), pytest.raises(OperatorError, match="bad_states"):
        read_folder_status(folder)


def test_write__same_states__are_written_once_and_again_after_a_full_disk(
    folder: Path, monkeypatch: pytest.MonkeyPatch
):
    states, path = StatesFile(folder), folder / "logs" / STATES_FILE
    states.write([keep("trainer")])
    path.unlink()
    states.write([keep("trainer")])
    assert not path.exists()

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr("covey.local.folder_status.write_atomically", fail)
        states.write([keep("trainer", failures=1)])
    states.write([keep("trainer", failures=1)])
    assert [each["failures"] for each in json.loads(path.read_text())] == [1]
