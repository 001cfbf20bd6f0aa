"""Settings of the coordinator, for `covey coordinator serve` and `covey coordinator jobs` alike."""

from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator

from covey.protocol.ids import is_address
from covey.settings import Settings


class CoordinatorConfig(Settings):
    """Example: `CoordinatorConfig.load(Path("coordinator.toml"))`.  Defaults suit one machine."""

    home: Path
    """Folder of database, store and broker."""
    pool: int = Field(ge=1)
    deployment: Path
    """deployment.json: chain, contracts."""
    rpc_url: str | None = None
    """Instead of the deployment's."""
    key_file: Path
    """Key of the pool's operator: countersigns receipts, posts epochs."""
    host: str = "127.0.0.1"
    port: int = Field(default=8000, ge=0, le=65535)
    authority: str = ""
    """Host and port that requests are signed for; empty: host:port."""
    public_url: str = ""
    """Base URL of links to this server; empty: http://authority."""
    database_url: str = ""
    """Empty: SQLite in `home`.  Example: postgresql+psycopg://user@host/covey."""
    broker_url: str = ""
    """Empty: a filesystem broker in `home`.  Example: redis://host:6379/0 or amqp://guest:guest@host//."""
    store_url: str = ""
    """Empty: a folder in `home`.  Example: s3://bucket/prefix."""
    relays: tuple[str, ...] = ()
    finality: Literal["latest", "safe"] = "latest"
    log_level: str = "info"
    poll_seconds: float = Field(default=0.05, gt=0, le=10)
    """How often waiting requests look and the chain is followed."""
    canaries: dict[str, Literal["accept", "reject"]] = Field(default_factory=dict)
    """Nodes of the operator's own, with the verdict that their work from here on should get."""

    @field_validator("canaries")
    @classmethod
    def _require_addresses(cls, canaries: dict[str, str]) -> dict[str, str]:
        wrong = [node for node in canaries if not is_address(node)]
        if wrong:
            raise ValueError(f"not a checksummed address: {', '.join(wrong)}")
        return canaries

    @property
    def signed_authority(self) -> str:
        return self.authority or f"{self.host}:{self.port}"

    @property
    def base_url(self) -> str:
        return self.public_url or f"http://{self.signed_authority}"

    @property
    def database(self) -> str:
        return self.database_url or f"sqlite:///{self.home / 'coordinator.sqlite3'}"

    @property
    def store(self) -> str:
        return self.store_url or f"file://{(self.home / 'store').resolve()}"
