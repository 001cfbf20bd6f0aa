"""Settings of the coordinator, for all its commands: `covey coordinator serve`, `jobs` and `pages`."""

from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from covey.chain.fee_settings import FeeSettings
from covey.chain.finality import Finality
from covey.protocol.canaries import Canary
from covey.protocol.ids import is_address
from covey.runtime.settings import MetricsSettings

DATABASES = ("sqlite", "postgresql", "postgresql+psycopg")
"""Schemes of `database_url`."""


class CoordinatorConfig(MetricsSettings, FeeSettings):
    """Example: `CoordinatorConfig.load(Path("coordinator.toml"))`.  Defaults suit one machine."""

    home: Path
    """Folder of the database, the object store and the broker, unless other settings place them elsewhere."""
    pool: int = Field(ge=1)
    """Number of the pool on chain that this coordinator serves."""
    deployment: Path
    """File deployment.json of the network, with its chain, the addresses of its contracts and perhaps a public node."""
    rpc_url: str | None = None
    """URL of the chain's JSON-RPC node, or several URLs separated by commas, the preferred one first. None means the
    node in `deployment`."""
    key_file: Path
    """File with the key of the pool's operator, which countersigns receipts and posts epochs."""
    host: str = "127.0.0.1"
    """Address that the API listens on."""
    port: int = Field(default=8000, ge=0, le=65535)
    """Port that the API listens on."""
    processes: int = Field(default=1, ge=1, le=64)
    """Number of processes that serve the API. Several require PostgreSQL (`database_url`) and Redis (`nonces_url`)."""
    nonces_url: str = ""
    """URL of the Redis that remembers which requests were used, where several processes serve the API. Empty: the
    memory of the one process. Example: redis://host:6379/1 (requires the extra `redis`)."""
    jobs_metrics_port: int = Field(default=0, ge=0, le=65535)
    """Port on which `covey coordinator jobs` answers `GET /metrics` on `metrics_host`. `metrics_port` is that of
    `covey coordinator serve`. 0: none."""
    pages_port: int = Field(default=8004, ge=0, le=65535)
    """Port of the pages for people, which `covey coordinator pages` serves on `host`."""
    pages_metrics_port: int = Field(default=0, ge=0, le=65535)
    """Port on which `covey coordinator pages` answers `GET /metrics` on `metrics_host`. 0: none."""
    pages_url: str = ""
    """Public base URL of the pages, to which the API's `/` leads. Empty: http:// with the host of
    `authority` and `pages_port`."""
    pages_tokenizer: str = ""
    """Folder or hub name of a model whose tokenizer is the pool's. Pages show completions as text with it, and as
    numbers of tokens without it."""
    pages_database_url: str = ""
    """URL of a replica of the database that the pages read. Empty: the database itself, by read-only connections."""
    authority: str = ""
    """Host and port that clients connect to and include in their signatures. Empty means `host`:`port`."""
    public_url: str = ""
    """Base URL of links to objects of this server. Empty means http:// and the authority."""
    database_url: str = ""
    """URL of the database. Empty: SQLite in `home`. PostgreSQL, postgresql+psycopg://user@host/covey, requires the
    extra `postgres`."""
    broker_url: str = ""
    """URL of Celery's broker. Empty: a folder in `home`, for one machine. Examples: redis://host:6379/0 (requires
    the extra `redis`) and amqp://user@host//."""
    store_url: str = ""
    """URL of the object store for rollout files and evidence. Empty means a folder in `home`, which the API serves with
    signed links. With s3://bucket/prefix, links lead to that store."""
    keep_files_days: float | None = Field(default=None, ge=0)
    """Days for which the file of a submission is kept once its epoch is final. The minimum is the pool's
    `unbond_window` plus a day, in which a case can be opened. None means forever. Files of epochs and evidence are
    never deleted."""
    relays: tuple[str, ...] = ()
    """Base URLs of the relays that workers, validators and the trainer are told to use."""
    finality: Finality = "latest"
    """Newest block that events are read from: "latest", or "safe" or "finalized" on a chain whose newest blocks may be
    reorganized. The outbox sends what a reorganization drops again until its block has this tag and 128 blocks follow
    it."""
    log_level: str = "info"
    """Minimum level of logged lines: "debug", "info", "warning" or "error"."""
    poll_seconds: float = Field(default=0.02, gt=0, le=10)
    """Time in seconds between two checks of an API process for new commits. Waiting requests read their rows only after
    a commit."""
    requests_per_s: float = Field(default=100.0, gt=0)
    """Maximum rate of requests of one key, and of one address without a known key, in requests per second. Four
    seconds' worth can be sent at once after a pause."""
    connections: int = Field(default=16_384, ge=16)
    """Maximum number of open connections of an API process. A node that waits for a task keeps one. Each takes two file
    descriptors, so the number is lower if the system allows fewer (`ulimit -Hn`)."""
    chain_poll_seconds: float = Field(default=0.25, gt=0, le=60)
    """Time in seconds between two reads of the chain, which is the maximum delay until a policy is known. A public node
    may limit requests."""
    canaries: dict[str, Canary] = Field(default_factory=dict)
    """Canaries, which are nodes whose work is known to be bad or good. Each address has the expected verdict and the
    contributor's consent, as printed by `covey worker consent`. Their work measures validators, and is void and
    unpaid."""

    @field_validator("database_url", "pages_database_url")
    @classmethod
    def _require_database(cls, url: str) -> str:
        if url and urlsplit(url).scheme not in DATABASES:
            kind = urlsplit(url).scheme or "the text"
            raise ValueError(f"{kind} is not a supported database; use postgresql+psycopg://USER@HOST/NAME")
        _ = urlsplit(url).port  # Raises ValueError if the port is not valid.
        return url

    @field_validator("canaries")
    @classmethod
    def _require_addresses(cls, canaries: dict[str, Canary]) -> dict[str, Canary]:
        wrong = [node for node in canaries if not is_address(node)]
        if wrong:
            raise ValueError(f"not a checksummed address: {', '.join(wrong)}")
        return canaries

    @model_validator(mode="after")
    def _require_shared_state(self) -> Self:
        if self.processes > 1 and not (self.database_url.startswith("postgresql") and self.nonces_url):
            raise ValueError("several processes require a database_url of PostgreSQL and a nonces_url of Redis")
        return self

    @property
    def signed_authority(self) -> str:
        return self.authority or f"{self.host}:{self.port}"

    @property
    def jobs_metrics(self) -> MetricsSettings:
        return MetricsSettings(metrics_host=self.metrics_host, metrics_port=self.jobs_metrics_port)

    @property
    def pages_metrics(self) -> MetricsSettings:
        return MetricsSettings(metrics_host=self.metrics_host, metrics_port=self.pages_metrics_port)

    @property
    def metrics_folder(self) -> Path:
        """Folder for the values of metrics that the API processes share."""
        return self.home / "metrics"

    @property
    def jobs_metrics_folder(self) -> Path:
        """Folder for the values of metrics that the processes of `jobs --separate` share."""
        return self.home / "jobs-metrics"

    @property
    def base_url(self) -> str:
        return self.public_url or f"http://{self.signed_authority}"

    @property
    def pages_base_url(self) -> str:
        host = urlsplit(f"//{self.signed_authority}").hostname or self.host
        return self.pages_url or f"http://{f'[{host}]' if ':' in host else host}:{self.pages_port}"

    @property
    def pages_database(self) -> str:
        return self.pages_database_url or self.database

    @property
    def database(self) -> str:
        return self.database_url or f"sqlite:///{self.home / 'coordinator.sqlite3'}"

    @property
    def store(self) -> str:
        return self.store_url or f"file://{(self.home / 'store').resolve()}"
