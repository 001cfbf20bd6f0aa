"""Settings of the worker, for `covey worker run`."""

from typing import Literal

from pydantic import Field

from covey.engines.vllm.vllm_options import VllmOptions
from covey.runtime.settings import RoleSettings


class WorkerConfig(RoleSettings):
    """Settings of a worker, for example `WorkerConfig.load(Path("worker.toml"))`."""

    engine: Literal["auto", "hf", "vllm"] = "auto"
    """Inference engine. auto selects the engine that the pool's thresholds require; if they allow any, vllm if it is
    installed, otherwise hf.
    """
    batch: int = Field(default=64, ge=1, le=4096)
    """Maximum number of completions that are generated in one batch."""
    tasks_together: int | None = Field(default=None, ge=1, le=1024)
    """Number of tasks that the engine works on concurrently. None: one with hf; with vllm, one more than needed to
    fill `batch`.
    """
    tasks_ahead: int | None = Field(default=None, ge=0, le=1024)
    """Number of tasks claimed in advance while the engine is busy. None: the same as `tasks_together`."""
    vllm: VllmOptions = VllmOptions()
    """Options for the vLLM engine. Ignored by the hf engine."""
    heartbeat_seconds: float = Field(default=10.0, gt=0)
    """Seconds between heartbeats, which show the coordinator that this node is alive and how many free slots it has."""
    prefer: Literal["pay", "fair", "first"] = "pay"
    """How a worker with several pools chooses among those that have work: the best paid one, the one in which it has
    worked least, or the first one in the order of the settings.
    """
    stay_seconds: float = Field(default=600.0, ge=0)
    """Time in seconds that a worker with several pools stays in one that has work, because a change of the policy costs
    time. It does not return to a pool without work for this long.
    """
    idle_seconds: float = Field(default=30.0, gt=0)
    """Time in seconds without any work after which a worker with several pools leaves a pool for another one."""
    watch: bool = True
    """Whether to watch the pool: compute its epochs again, compare them with this worker's receipts, keep the proofs of
    its rewards, and log what is false or due. No transaction is sent; covey watch --act does that.
    """
