"""Settings of the worker, for `covey worker run`."""

from typing import Literal

from pydantic import Field

from covey.settings import RoleSettings


class WorkerConfig(RoleSettings):
    """Example: `WorkerConfig.load(Path("worker.toml"))`."""

    engine: Literal["hf"] = "hf"
    batch: int = Field(default=64, ge=1, le=4096)
    """Completions that are generated together at most."""
    grading_seconds: float = Field(default=10.0, gt=0)
    """Wall clock of the grader for one task."""
    grading_memory_bytes: int = Field(default=1 << 30, ge=1 << 26)
    heartbeat_seconds: float = Field(default=10.0, gt=0)
