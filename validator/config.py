"""Settings of the validator, for `covey validator run` and `covey validator audit`."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from covey.chain.finality import Finality
from covey.engines.vllm.vllm_options import VllmOptions
from covey.runtime.settings import RoleSettings, SandboxSettings


class CheckingSettings(SandboxSettings):
    """Settings of the checks, shared by the validator and the audit."""

    device: str = "cpu"
    """Device that the replay runs on, as torch names it, for example "cpu" or "cuda:0"."""
    threads: int = Field(default=1, ge=1, le=1024)
    """Number of CPU threads of torch. On a machine that several processes share, more than one slows all of them."""
    vllm: VllmOptions = VllmOptions()
    """Options of the vLLM engine. The hf engine ignores them."""
    decoding_seconds: float = Field(default=10.0, gt=0)
    """Maximum CPU seconds for decoding one rollout file. The wall-clock timeout is six times as long."""
    decoding_memory_bytes: int = Field(default=1 << 30, ge=1 << 26)
    """Maximum memory in bytes for decoding one rollout file."""


class ValidatorConfig(RoleSettings, CheckingSettings):
    """Settings of a validator, for example `ValidatorConfig.load(Path("validator.toml"))`."""

    engine: Literal["auto", "hf", "vllm"] = "auto"
    """Inference engine of the replay. auto selects the one that the pool's thresholds name, else hf."""
    batch: int = Field(default=32, ge=1, le=4096)
    """Maximum number of completions that are replayed together."""
    turns: int = Field(default=2, ge=1, le=16)
    """Maximum number of turns that this validator holds at once. It judges them one after another, so all must fit into
    the pool's `judgement_seconds`."""
    enforcement_seconds: float = Field(default=0.5, gt=0)
    """Seconds between two polls for hard rejections that can be brought to the slashing court."""
    verdict_seconds: int = Field(default=691_200, gt=0)
    """Seconds for which a signed verdict is valid in the slashing court: at least the pool's `unbond_window` plus one
    day. A case that the cap on slashes refuses is proposed again in the next span of `unbond_window`."""
    finality: Finality = "latest"
    """Tag of the blocks that the outbox treats as final: "latest", "safe" or "finalized". A transaction that a
    reorganisation drops is sent again until its block has this tag and 128 blocks follow it."""


class AuditConfig(CheckingSettings):
    """Settings of an audit.

    Example: `AuditConfig.load(None, {"deployment": "deployment.json", "storage": "file:///covey/store"}, {})`.
    """

    deployment: Path
    """File deployment.json of the network: its chain, the addresses of its contracts, and a node if it is public."""
    rpc_url: str | None = None
    """URL of the chain's JSON-RPC node. None: the one that `deployment` names."""
    storage: str
    """Base URL of the coordinator, or of the object store that holds the rollout file and the bundle."""
    pool: int | None = Field(default=None, ge=1)
    """Number of the pool on chain, required for a bundle that is named by its hash. None: the pool of the bundle."""
    relays: tuple[str, ...] = ()
    """Base URLs of the relays from which the policy is downloaded."""
    datasets: tuple[Path, ...] = ()
    """Folders of data sets on this machine. Data sets that are in none of them are fetched from the relays."""
    policies: Path | None = None
    """Folder of policies on this machine, as a role keeps them. None: a temporary folder."""
    full: bool = False
    """Whether to replay work that was not drawn, on which the validator ran the cheap checks alone."""
    engine: str | None = None
    """Inference engine of the replay. None: the one that the pool's thresholds name, else hf."""
    dtype: str | None = None
    """Number format of the replay, "float32" or "bfloat16". None: the pool's."""
