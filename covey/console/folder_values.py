"""What commands read from the folder of a pool or a worker: contracts, pool, key, coordinator and node.

`covey.console.options` offers the folder as the argument FOLDER of every command that uses one of them.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import ConfigDict, Field

from covey.errors import OperatorError
from covey.runtime.settings import Settings

Kind = Literal["operator", "contributor", "validator", "trainer"]
_FILES: tuple[tuple[str, Kind], ...] = (
    ("coordinator.toml", "operator"),
    ("worker*.toml", "contributor"),
    ("validator*.toml", "validator"),
    ("trainer.toml", "trainer"),
)
"""Pattern of the settings that describe a folder, and whose account signs there. The first one that exists counts."""
CONTRIBUTOR_KEY = Path("keys") / "contributor.key"
"""Key of the account that stakes for the workers of a folder. The key in their settings is only a node's."""
LOCAL_HOSTS = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104
"""Host for a URL, by the address on which the server listens."""


class _Settings(Settings):
    """Settings that coordinator, worker, validator and trainer share, and the coordinator's own address."""

    model_config = ConfigDict(extra="ignore")

    pool: int = Field(ge=1)
    deployment: Path
    rpc_url: str | None = None
    key_file: Path
    coordinator_url: str | None = None
    """URL in the settings of a member. None: the folder has the coordinator itself."""
    host: str = "127.0.0.1"
    port: int = 8000


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderValues:
    """Values of one folder. Example: FolderValues(folder=Path("mypool"), kind="operator", pool=1, ...)."""

    folder: Path
    kind: Kind
    """Role of the account that signs."""
    pool: int
    """On-chain number of the pool."""
    deployment: Path
    rpc_url: str | None
    """URL of the chain's node that the folder's settings name. None means the deployment's."""
    key_file: Path
    """Key of the operator or the contributor. It may not exist, because an owner can keep it elsewhere."""
    coordinator_url: str
    """Base URL of the coordinator, without a proxy if the folder is the coordinator's own."""


def has_role_settings(folder: Path) -> bool:
    """Return whether a folder has settings of a role, as the folders of `covey init pool` and `covey join` have."""
    return _find_settings(folder) is not None


def read_folder_values(folder: Path) -> FolderValues:
    """Read a folder's values from the settings of its roles.

    Environment variables of commands, such as COVEY_POOL, do not override them.

    Raises OperatorError("no_folder_settings") if the folder has none, and OperatorError("bad_settings").
    """
    found = _find_settings(folder)
    if found is None:
        raise OperatorError(
            "no_folder_settings",
            f"{folder} has no settings of a role, for example coordinator.toml or worker.toml",
            fix="Use a folder that covey init pool or covey join has created",
        )
    file, kind = found
    address = {name: os.environ[name] for name in ("COVEY_HOST", "COVEY_PORT") if name in os.environ}
    settings = _Settings.load(file, environment=address if kind == "operator" else {})
    return FolderValues(
        folder=folder,
        kind=kind,
        pool=settings.pool,
        deployment=settings.deployment,
        rpc_url=settings.rpc_url,
        key_file=folder / CONTRIBUTOR_KEY if kind == "contributor" else settings.key_file,
        coordinator_url=settings.coordinator_url or build_local_url(settings.host, settings.port),
    )


def build_local_url(host: str, port: int) -> str:
    """Return the URL by which this machine reaches a server that listens on an address."""
    host = LOCAL_HOSTS.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _find_settings(folder: Path) -> tuple[Path, Kind] | None:
    for pattern, kind in _FILES:
        for file in sorted(folder.glob(pattern)):
            return file, kind
    return None
