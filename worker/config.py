"""Settings of the worker, for `covey worker run`."""

from typing import Literal

from pydantic import Field

from covey.engines.vllm.vllm_options import VllmOptions
from covey.runtime.settings import RoleSettings


class WorkerConfig(RoleSettings):
    """Example: `WorkerConfig.load(Path("worker.toml"))`."""

    engine: Literal["auto", "hf", "vllm"] = "auto"
    """Inference engine. auto: the one that the pool's thresholds name, else vllm where it is installed, else hf."""
    batch: int = Field(default=64, ge=1, le=4096)
    """Largest number of completions that are generated together."""
    tasks_together: int | None = Field(default=None, ge=1, le=1024)
    """Tasks that the engine works on at once. None: one more than fill `batch` with vllm, one with hf."""
    tasks_ahead: int | None = Field(default=None, ge=0, le=1024)
    """Further tasks that are claimed while the engine is busy. None: as many as `tasks_together`."""
    vllm: VllmOptions = VllmOptions()
    """Options of the vLLM engine, which hf ignores."""
    heartbeat_seconds: float = Field(default=10.0, gt=0)
    """Seconds between two heartbeats, by which the coordinator knows that this node is alive and what it has
    free."""
