"""Settings of the validator, for `covey validator run`."""

from typing import Literal

from pydantic import Field

from covey.settings import RoleSettings


class ValidatorConfig(RoleSettings):
    """Example: `ValidatorConfig.load(Path("validator.toml"))`."""

    engine: Literal["hf"] = "hf"
    batch: int = Field(default=32, ge=1, le=4096)
    """Completions that are replayed together at most."""
    decoding_seconds: float = Field(default=10.0, gt=0)
    """Wall clock of decoding one file."""
    decoding_memory_bytes: int = Field(default=1 << 30, ge=1 << 26)
    grading_seconds: float = Field(default=10.0, gt=0)
    grading_memory_bytes: int = Field(default=1 << 30, ge=1 << 26)
    enforcement_seconds: float = Field(default=0.5, gt=0)
    """How often hard rejections are looked at."""
    verdict_seconds: int = Field(default=86_400, gt=0)
    """How long a signed verdict is valid."""
