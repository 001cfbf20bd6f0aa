"""Settings of the worker, for `covey worker run`."""

from typing import Literal

from pydantic import Field

from covey.engines.vllm.vllm_options import VllmOptions
from covey.runtime.settings import RoleSettings


class WorkerConfig(RoleSettings):
    """Settings of a worker, for example `WorkerConfig.load(Path("worker.toml"))`."""

    engine: Literal["auto", "hf", "vllm"] = "auto"
    """Inference engine. auto selects the one that the pool's thresholds name, else vllm if it is installed, else hf."""
    batch: int = Field(default=64, ge=1, le=4096)
    """Maximum number of completions that are generated together."""
    tasks_together: int | None = Field(default=None, ge=1, le=1024)
    """Number of tasks that the engine works on at once. None: one with hf, and with vllm one more than fill `batch`."""
    tasks_ahead: int | None = Field(default=None, ge=0, le=1024)
    """Number of further tasks that are claimed while the engine is busy. None: the same as `tasks_together`."""
    vllm: VllmOptions = VllmOptions()
    """Options of the vLLM engine. The hf engine ignores them."""
    heartbeat_seconds: float = Field(default=10.0, gt=0)
    """Seconds between two heartbeats, which tell the coordinator that this node is alive and how many slots it has
    free."""
