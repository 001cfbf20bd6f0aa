"""Settings of the validator, for `covey validator run` and `covey validator audit`."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from covey.chain.finality import Finality
from covey.engines.vllm.vllm_options import VllmOptions
from covey.runtime.settings import RoleSettings, SandboxSettings


class CheckingSettings(SandboxSettings):
    """How a submission is checked."""

    device: str = "cpu"
    """Device of the replay as torch names it, for example "cpu" or "cuda:0"."""
    threads: int = Field(default=1, ge=1, le=1024)
    """CPU threads of torch. On a machine that several processes share, more than one slows all of them."""
    vllm: VllmOptions = VllmOptions()
    """Options of the vLLM engine, which hf ignores."""
    decoding_seconds: float = Field(default=10.0, gt=0)
    """CPU seconds that decoding one rollout file may take. The wall clock allows six times as many."""
    decoding_memory_bytes: int = Field(default=1 << 30, ge=1 << 26)
    """Memory in bytes that decoding one rollout file may take."""


class ValidatorConfig(RoleSettings, CheckingSettings):
    """Example: `ValidatorConfig.load(Path("validator.toml"))`."""

    engine: Literal["auto", "hf", "vllm"] = "auto"
    """Inference engine of the replay. auto: the one that the pool's thresholds name, else hf."""
    batch: int = Field(default=32, ge=1, le=4096)
    """Largest number of completions that are replayed together."""
    turns: int = Field(default=2, ge=1, le=16)
    """Turns that this validator holds at once. It judges them one after another, so all must fit into the pool's
    `judgement_seconds`."""
    enforcement_seconds: float = Field(default=0.5, gt=0)
    """Seconds between two looks for hard rejections that can be brought to the slashing court."""
    verdict_seconds: int = Field(default=691_200, gt=0)
    """Seconds for which a signed verdict is valid in the slashing court. At least the pool's `unbond_window` and one
    day: a case that the cap on slashes refuses is proposed again in the next span of `unbond_window`."""
    finality: Finality = "latest"
    """Tag of the blocks that the outbox takes for final: "latest", "safe" or "finalized". A transaction that a
    reorganisation drops is sent again until its block has this tag and 128 blocks follow it."""


class AuditConfig(CheckingSettings):
    """Example: `AuditConfig.load(None, {"deployment": "deployment.json", "storage": "file:///covey/store"}, {})`."""

    deployment: Path
    """File deployment.json of the network: its chain, the addresses of its contracts, and a node if it is public."""
    rpc_url: str | None = None
    """URL of the chain's JSON-RPC node. None: the one that `deployment` names."""
    storage: str
    """Base URL of the coordinator, or of the object store that holds the rollout file and the bundle."""
    pool: int | None = Field(default=None, ge=1)
    """Number of the pool on chain. It is required for a bundle that is named by its hash."""
    relays: tuple[str, ...] = ()
    """Base URLs of the relays that the policy is downloaded from."""
    datasets: tuple[Path, ...] = ()
    """Folders of data sets on this machine. Data sets that are in none of them are fetched from the relays."""
    policies: Path | None = None
    """Folder of policies on this machine, as a role keeps them. None: a temporary one."""
    full: bool = False
    """Whether work is replayed that was not drawn, whose validator ran the cheap checks alone."""
    engine: str | None = None
    """Inference engine of the replay. None: the one that the pool's thresholds name, else hf."""
    dtype: str | None = None
    """Number format of the replay. None: the pool's."""
