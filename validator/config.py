"""Settings of the validator, for `covey validator run` and `covey validator audit`."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from covey.engines.vllm.options import VllmOptions
from covey.settings import RoleSettings, Settings


class CheckingSettings(Settings):
    """How a submission is checked."""

    device: str = "cpu"
    threads: int = Field(default=1, ge=1, le=1024)
    """Threads of torch."""
    vllm: VllmOptions = VllmOptions()
    decoding_seconds: float = Field(default=10.0, gt=0)
    """Wall clock of decoding one file."""
    decoding_memory_bytes: int = Field(default=1 << 30, ge=1 << 26)
    grading_seconds: float = Field(default=10.0, gt=0)
    grading_memory_bytes: int = Field(default=1 << 30, ge=1 << 26)


class ValidatorConfig(RoleSettings, CheckingSettings):
    """Example: `ValidatorConfig.load(Path("validator.toml"))`."""

    engine: Literal["auto", "hf", "vllm"] = "auto"
    """auto: the one that the pool's thresholds name, else hf."""
    batch: int = Field(default=32, ge=1, le=4096)
    """Completions that are replayed together at most."""
    enforcement_seconds: float = Field(default=0.5, gt=0)
    """How often hard rejections are looked at."""
    verdict_seconds: int = Field(default=86_400, gt=0)
    """How long a signed verdict is valid."""


class AuditConfig(CheckingSettings):
    """Example: `AuditConfig.load(None, {"deployment": "deployment.json", "storage": "file:///covey/store"}, {})`."""

    deployment: Path
    rpc_url: str | None = None
    """Instead of the deployment's."""
    storage: str
    """Base URL of the coordinator, or of the object store that file and bundle lie in."""
    pool: int | None = Field(default=None, ge=1)
    """Of a bundle that is named by its hash."""
    relays: tuple[str, ...] = ()
    policies: Path | None = None
    """Folder of policies on this machine, as a role keeps them; None: one for this run."""
    engine: str | None = None
    """None, here and for the next: the pool's."""
    dtype: str | None = None
