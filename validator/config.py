"""Settings of the validator, for `covey validator run` and `covey validator audit`."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from covey.chain.fee_settings import FeeSettings
from covey.chain.finality import Finality
from covey.engines.vllm.vllm_options import VllmOptions
from covey.runtime.settings import RoleSettings, SandboxSettings


class CheckingSettings(SandboxSettings):
    """Settings of the checks, shared by the validator and the audit."""

    device: str = "cpu"
    """Device for the replay, as torch calls it, for example "cpu" or "cuda:0"."""
    threads: int = Field(default=1, ge=1, le=1024)
    """Number of CPU threads that torch uses. On a machine shared by several processes, more than one thread slows
    all of them.
    """
    vllm: VllmOptions = VllmOptions()
    """Options for the vLLM engine. Ignored by the hf engine."""
    decoding_seconds: float = Field(default=10.0, gt=0)
    """Maximum CPU seconds for decoding one rollout file. The wall-clock timeout is six times as long."""
    decoding_memory_bytes: int = Field(default=1 << 30, ge=1 << 26)
    """Maximum memory in bytes for decoding one rollout file."""


class ValidatorConfig(RoleSettings, CheckingSettings, FeeSettings):
    """Settings of a validator, for example `ValidatorConfig.load(Path("validator.toml"))`."""

    engine: Literal["auto", "hf", "vllm"] = "auto"
    """Inference engine for the replay. auto selects the engine that the pool's thresholds require; if they allow
    any, hf.
    """
    batch: int = Field(default=32, ge=1, le=4096)
    """Maximum number of completions that are replayed in one batch."""
    turns: int = Field(default=8, ge=1, le=16)
    """Maximum number of turns that this validator holds at once, of which at most two are whole replays. It begins
    with two, and holds more as long as verdicts are ready in half of the pool's `judgement_seconds`. Turns of drawn
    rows are replayed together, as far as `batch` allows.
    """
    enforcement_seconds: float = Field(default=0.5, gt=0)
    """Seconds between two checks for hard rejections that can be reported to the slashing court."""
    verdict_seconds: int = Field(default=691_200, gt=0)
    """Seconds for which a signed verdict is valid in the slashing court. It must be at least the pool's
    `unbond_window` plus one day, because a case that exceeds the cap on slashes is proposed again in the next
    `unbond_window`.
    """
    finality: Finality = "latest"
    """Tag of the blocks that the outbox treats as final: "latest", "safe" or "finalized". A transaction dropped by a
    reorganisation is sent again until its block has this tag and 128 blocks follow it.
    """


class AuditConfig(CheckingSettings):
    """Settings of an audit.

    Example: `AuditConfig.load(None, {"deployment": "deployment.json", "storage": "file:///covey/store"}, {})`.
    """

    deployment: Path
    """File deployment.json of the network, with the chain, the contract addresses and, if public, the URL of a node."""
    rpc_url: str | None = None
    """URL of the chain's JSON-RPC node, or several URLs separated by commas, the preferred one first. None: the URL in
    `deployment`.
    """
    storage: str
    """Base URL of the coordinator or of the object store that contains the rollout file and the bundle."""
    pool: int | None = Field(default=None, ge=1)
    """On-chain number of the pool. Required if the bundle is given as a hash. None: the pool in the bundle."""
    relays: tuple[str, ...] = ()
    """Base URLs of the relays from which the policy is downloaded."""
    datasets: tuple[Path, ...] = ()
    """Folders of data sets on this machine. Other data sets are downloaded from the relays."""
    policies: Path | None = None
    """Folder with policies on this machine, in the layout of a role's home. None: a temporary folder."""
    full: bool = False
    """Whether to replay work that was not drawn. The validator ran only the cheap checks on it."""
    engine: str | None = None
    """Inference engine for the replay. None: the engine that the pool's thresholds require, otherwise hf."""
    dtype: str | None = None
    """Data type for the replay, "float32" or "bfloat16". None: the pool's data type."""
