"""Queries the Python that has verifiers for its package versions and for the tasks of a taskset.

Main names: `find_interpreter`, `ask_versions`, `ask_tasks`. The queries run the script `verifiers_server`.
"""

import importlib.util
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, JsonValue, TypeAdapter, ValidationError

from covey.environments.base import JsonObject
from covey.environments.kinds.verifiers.verifiers_server import RefusalCode
from covey.errors import OperatorError

FOLDER = ".venv-verifiers"
"""Name of the virtual environment that `make verifiers` creates next to Covey's own."""
VERSIONS_SECONDS = 60.0
"""Timeout in seconds for listing the versions of packages."""
TASKS_SECONDS = 1800.0
"""Timeout in seconds for loading a taskset, which may download a data set."""
LOG_SECONDS = 60.0
"""Interval in seconds between log lines while a taskset is still loading."""
_SCRIPT = Path(__file__).with_name("verifiers_server.py")


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class TasksetRow(_Model):
    """One task in the form in which `verifiers_server.list_tasks` returns it."""

    data: dict[str, JsonValue]
    """Data from which the task can be rebuilt."""
    question: str
    """Text of the question."""
    system: str
    """System message of the task. Empty if it has none."""


class _Head(_Model):
    python: str
    versions: dict[str, str]


class _Tail(_Model):
    data_hash: str
    count: int


class _Refused(_Model):
    refusal: RefusalCode
    message: str


_LINE: TypeAdapter[_Refused | _Head | TasksetRow | _Tail] = TypeAdapter(_Refused | _Head | TasksetRow | _Tail)


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadedTaskset:
    """The tasks of a taskset that a pool uses, and their hash."""

    rows: Sequence[TasksetRow]
    """Tasks in the order of the taskset."""
    data_hash: str
    """SHA-256 of the tasks' hashes, with 0x."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TasksetRequest:
    """Request for the tasks of a taskset. Example: TasksetRequest(taskset="gsm8k", config={}, tasks=None)."""

    taskset: str
    """Id of the taskset."""
    config: JsonObject
    """Settings of the taskset."""
    tasks: int | None
    """Number of tasks, counted from the first. None means all."""


def find_interpreter(named: Path | None) -> Path:
    """Return the path of the Python that has verifiers.

    It is `named` if that is set, otherwise the one that `make verifiers` created, otherwise that of this process.
    Raises OperatorError("no_verifiers") if there is none.
    """
    prepared = Path(sys.prefix).parent / FOLDER / "bin" / "python"
    if named is not None and not named.exists():
        raise _build_missing(f"the setting verifiers_interpreter is {named}, which does not exist")
    if named is not None or prepared.exists():
        return named or prepared
    if importlib.util.find_spec("verifiers") is None:
        raise _build_missing(f"neither {prepared} exists nor does {sys.executable} have the package verifiers")
    return Path(sys.executable)


def ask_versions(interpreter: Path, request: TasksetRequest) -> Mapping[str, str]:
    """Return the versions of verifiers and of the taskset's package in an interpreter, by name.

    Raises OperatorError("no_verifiers"), OperatorError("no_taskset"), OperatorError("bad_taskset") or
    OperatorError("bad_interpreter").
    """
    return _read_head(interpreter, _ask(interpreter, "versions", request, timeout=VERSIONS_SECONDS)).versions


def ask_tasks(interpreter: Path, request: TasksetRequest) -> LoadedTaskset:
    """Return all requested tasks. This takes as long as the taskset needs to load its data.

    Raises OperatorError("no_verifiers"), OperatorError("no_taskset"), OperatorError("bad_taskset") or
    OperatorError("bad_interpreter").
    """
    lines = _ask(interpreter, "tasks", request, timeout=TASKS_SECONDS)
    _read_head(interpreter, lines)
    rows = [line for line in lines[1:] if isinstance(line, TasksetRow)]
    tail = lines[-1]
    if not isinstance(tail, _Tail) or tail.count != len(rows):
        raise _distrust(interpreter, "it returned an incomplete list of tasks")
    return LoadedTaskset(rows=rows, data_hash=tail.data_hash)


def translate(refusal: RefusalCode, message: str) -> OperatorError:
    """Convert an error code and message of `verifiers_server` to an OperatorError."""
    if refusal == "no_verifiers":
        return _build_missing(message)
    if refusal == "bad_taskset":
        return _build_unfit(message)
    return OperatorError("no_taskset", message, fix="Install the taskset's package in that Python")


def _build_missing(message: str) -> OperatorError:
    fix = "Run make verifiers, or set verifiers_interpreter to a Python that has verifiers 0.4"
    return OperatorError("no_verifiers", message, fix=fix)


def _build_unfit(message: str) -> OperatorError:
    fix = "Choose a taskset of verifiers 0.4 whose rewards need only the text of a completion"
    return OperatorError("bad_taskset", message, fix=fix)


def _read_head(interpreter: Path, lines: Sequence[BaseModel]) -> _Head:
    head = lines[0] if lines else None
    if not isinstance(head, _Head):
        raise _distrust(interpreter, "it returned no output")
    own = ".".join(platform.python_version_tuple()[:2])
    if head.python != own:
        raise _distrust(
            interpreter,
            f"it is Python {head.python}, but Covey runs on Python {own}, and rewards may depend on the version",
        )
    return head


def _ask(interpreter: Path, order: str, request: TasksetRequest, *, timeout: float) -> list[BaseModel]:
    """Run the script, and return the parsed lines of its output. Raises OperatorError if the script refuses."""
    question = {"taskset": request.taskset, "config": dict(request.config), "tasks": request.tasks}
    # The fixed hash seed gives sets the same order everywhere. A taskset must not see Covey's settings.
    own = {name: value for name, value in os.environ.items() if not name.startswith("COVEY_")}
    with tempfile.TemporaryDirectory(prefix="covey-taskset-") as folder, tempfile.TemporaryFile() as answers:
        try:
            process = subprocess.Popen(
                [str(interpreter), "-P", "-s", str(_SCRIPT), order],
                stdin=subprocess.PIPE,
                stdout=answers,
                stderr=subprocess.PIPE,
                env=own | {"PYTHONHASHSEED": "0"},
                cwd=folder,
            )
        except OSError as error:
            raise _distrust(interpreter, str(error)) from error
        with process:
            last_line = _await(process, json.dumps(question).encode() + b"\n", request, timeout=timeout)
        answers.seek(0)
        lines: list[BaseModel] = []
        try:
            lines = [_LINE.validate_json(line) for line in answers]
        except ValidationError as error:
            raise _distrust(interpreter, f"its output is malformed: {error}") from error
    last = lines[-1] if lines else None
    if isinstance(last, _Refused):
        raise translate(last.refusal, last.message)
    if process.returncode != 0:
        raise _build_unfit(f"the taskset {request.taskset!r} could not be loaded in {interpreter}: {last_line}")
    return lines


def _await(process: "subprocess.Popen[bytes]", question: bytes, request: TasksetRequest, *, timeout: float) -> str:
    """Wait for the process, and return its last line on standard error. It is killed when the timeout expires."""
    from covey.runtime.log import get_logger  # imported here, because a grading process does not need it

    deadline = time.monotonic() + timeout
    unsent: bytes | None = question
    while True:
        left = deadline - time.monotonic()
        try:
            _, errors = process.communicate(unsent, timeout=max(0.0, min(LOG_SECONDS, left)))
        except subprocess.TimeoutExpired as error:
            unsent = None  # the next call of communicate continues where this one stopped
            if left > LOG_SECONDS:
                get_logger().warning("taskset is still loading", taskset=request.taskset, seconds_left=round(left))
                continue
            process.kill()
            message = f"the taskset {request.taskset!r} did not load within {timeout:.0f} s"
            raise OperatorError("bad_taskset", message, fix="Choose a taskset that loads faster") from error
        lines = errors.decode("utf-8", "replace").strip().splitlines()
        return lines[-1][:500] if lines else f"exit code {process.returncode}"


def _distrust(interpreter: Path, message: str) -> OperatorError:
    return OperatorError(
        "bad_interpreter",
        f"the Python interpreter {interpreter} cannot be used: {message}",
        fix="Set verifiers_interpreter to a Python of the same version as Covey's, with verifiers 0.4 installed",
    )
