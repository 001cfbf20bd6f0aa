"""Content of a new pool's folder: pool.toml, the settings of every role, and the commands.

All functions are pure and take a `PoolPlan`. `covey.local.folder` writes their results.
"""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import tomlkit

import covey
from covey.chain.deployment import Deployment
from covey.chain.structs import PoolTerms
from covey.environments.base import EnvironmentSpec
from covey.protocol.ids import Address
from covey.protocol.params import PoolParams, TrainingParams

if TYPE_CHECKING:
    from covey.local.sizing import Sizes  # whose imports are slow

DEPLOYMENT_FILE = Path("chain") / "deployment.json"
DATASETS_FOLDER = "datasets"
"""Folder of a pool's data sets, which its trainer and validators read."""
PORTS = ("coordinator", "origin", "relay", "chain", "pages")
"""Processes that listen. The first one uses the plan's port, and the others use the following ports in this order."""
FIRST_PORT = 8000
"""Port of a pool's coordinator if no other is chosen."""
LOOPBACK, ALL_INTERFACES = "127.0.0.1", "0.0.0.0"  # noqa: S104
PUBLIC_WINDOWS = {
    "challenge_window": 86_400,
    "veto_window": 86_400,
    "unbond_window": 604_800,
    "epoch_length": 3600,
    "epoch_seconds": 3600,
    "draw_seconds": 120,
}
"""Minimum windows of a public pool in seconds. People need a day to notice mistakes, and each epoch costs gas."""
PUBLIC_FINALITY = {"finality": "safe"}
"""Finality setting for roles that send transactions on an existing chain, whose newest blocks can be reorganised."""
PUBLIC_SETTINGS = PUBLIC_FINALITY | {"chain_poll_seconds": 2.0}
"""Settings of the coordinator on an existing chain, whose RPC nodes limit the number of requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedChain:
    """An existing chain, and the public URLs of a pool on it."""

    deployment: Deployment
    """Contracts on the chain."""
    rpc_url: str
    """URL of the operator's own node. It may contain a provider's key, so only the roles' settings contain it."""
    public_url: str
    """Public base URL of the coordinator, for example "https://pool.example"."""
    relays: tuple[str, ...] = ()
    """Public base URLs of relays. If empty, the relay's port on the host of `public_url` is used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolPlan:
    """Options of `covey init pool`. Example: `PoolPlan(validators=3)`."""

    validators: int = 3
    environment: EnvironmentSpec | None = None
    """Environment that sets the tasks. None means that of the shipped pool.toml."""
    sizes: "Sizes | None" = None
    """Lengths and what depends on them. None means those of the shipped files, which suit the tiny model only."""
    data_set: Path | None = None
    """Folder of the environment's data set, which is moved into the pool's folder."""
    model: str | None = None
    """Folder or hub name of the model that step 0 publishes. None means the shipped tiny model."""
    chain: NamedChain | None = None
    """Chain of the pool. None means a devnet in the folder."""
    training: TrainingParams | None = None
    """Parameters of a run on one machine that becomes a pool. None means those of the shipped pool.toml."""
    learning: Mapping[str, Any] | None = None
    """Settings of that run's learner, with their sections. None means those of the shipped trainer.toml if the model is
    the tiny one.
    """
    port: int = FIRST_PORT
    """First of five consecutive ports; see PORTS."""
    device: str = "cpu"
    """Device for the trainer and the validators, for example "cuda"."""

    @property
    def ports(self) -> dict[str, int]:
        """Port of each process in PORTS, by name."""
        return {name: self.port + i for i, name in enumerate(PORTS)}

    @property
    def coordinator_url(self) -> str:
        """Base URL for all roles.

        Requests are signed for its host, so the operator's own roles must use the same URL.
        """
        return f"http://{LOOPBACK}:{self.ports['coordinator']}" if self.chain is None else self.chain.public_url

    @property
    def relays(self) -> tuple[str, ...]:
        """Base URLs of the relays that the coordinator lists."""
        if self.chain is not None and self.chain.relays:
            return self.chain.relays
        host = urlsplit(self.coordinator_url).hostname or LOOPBACK
        return (f"http://{f'[{host}]' if ':' in host else host}:{self.ports['relay']}",)

    def choose_host(self, name: str) -> str:
        """Return the address on which a process in PORTS listens.

        It is the loopback address unless one of the process's public URLs leads directly to its port, without a proxy.
        """
        urls = {"coordinator": (self.coordinator_url,), "relay": self.relays}.get(name, ())
        return ALL_INTERFACES if any(is_direct(url, self.ports[name]) for url in urls) else LOOPBACK

    def describe_public_urls(self) -> dict[str, str]:
        """Return a description of the local service and port that each public URL must lead to, by URL."""
        urls = {self.coordinator_url: "coordinator"} | dict.fromkeys(self.relays, "relay")
        return {
            url: f"{name}, port {self.ports[name]} of this machine"
            if is_direct(url, self.ports[name])
            else f"{name}, forward to http://{LOOPBACK}:{self.ports[name]}"
            for url, name in urls.items()
        }


def is_direct(url: str, port: int) -> bool:
    """Return whether other machines can reach this port directly by the URL: no TLS, the same port, not loopback."""
    parts = urlsplit(url)
    is_remote = parts.hostname not in (LOOPBACK, "localhost", "::1")
    return is_remote and parts.scheme == "http" and (parts.port or 80) == port


def find_shipped(name: str) -> Path:
    """Return the path of a file in `configs/`.

    This folder is next to the package in a checkout, and inside the package in an installed wheel.
    """
    package = Path(covey.__file__).resolve().parent
    inside = package / "configs" / name
    return inside if inside.exists() else package.parent / "configs" / name


def build_pool(name: str, plan: PoolPlan, addresses: Mapping[str, Address]) -> str:
    """Return the shipped pool.toml with this pool's name, accounts and environment. Its comments are kept."""
    text = find_shipped("pool.toml").read_text()
    if plan.chain is not None:  # the windows of a test network leave people no time to notice mistakes
        for window, seconds in PUBLIC_WINDOWS.items():
            text = re.sub(rf"(?m)^{window} = \d+", f"{window} = {seconds}", text)
    document = tomlkit.parse(text[text.index("[terms]") :])  # the first lines say that the addresses are examples
    values: Any = document
    terms, params = values["terms"], values["params"]
    terms["trainer"], terms["arbiter"] = addresses["trainer"], addresses["arbiter"]
    validators = tomlkit.array()
    for i in range(plan.validators):
        validators.add_line(addresses[f"validator-{i + 1}"])
    validators.add_line(indent="")
    terms["validators"] = validators
    params["name"] = name[:64]
    params["quorum"] = plan.validators // 2 + 1
    if plan.environment is not None:
        params["environment"]["kind"] = plan.environment.kind
        options = tomlkit.inline_table()
        options.update(plan.environment.options)
        params["environment"]["options"] = options
    if plan.training is not None:
        _put_training(params, plan.training)
    if plan.sizes is not None:
        for table, choices in ((params["model"], plan.sizes.model), (params, plan.sizes.params)):
            table.update({name: choice.value for name, choice in choices.items()})
        if plan.sizes.prompt_format is not None:
            params["model"]["prompt_format"] = plan.sizes.prompt_format.value
    head = "# The contract enforces [terms], and the chain keeps [params] as text. Both are fixed at creation.\n\n"
    return head + tomlkit.dumps(document)


def _put_training(params: Any, training: TrainingParams) -> None:
    """Set the parameters that a run on one machine has, too. The environment is set elsewhere."""
    values = training.model_dump(mode="json", exclude={"environment"}, exclude_none=True)
    for name, value in values.items():
        if not isinstance(value, dict):
            params[name] = value
            continue
        table = params.setdefault(name, tomlkit.table())
        table.update({key: each for key, each in value.items() if each not in ({}, [])})


def read_shipped_params() -> PoolParams:
    """Return the parameters in the shipped pool.toml."""
    return PoolParams.model_validate(tomllib.loads(find_shipped("pool.toml").read_text())["params"])


def find_short_windows(terms: PoolTerms, params: PoolParams) -> list[str]:
    """List windows shorter than a public pool's minimum. Example: "veto_window is 15, a public pool requires 86400"."""
    values = {"epoch_seconds": params.epoch_seconds, "draw_seconds": params.verification.draw_seconds}
    values |= {name: getattr(terms, name) for name in PUBLIC_WINDOWS if name not in values}
    return [
        f"{name} is {values[name]:g}, but a public pool requires {least}"
        for name, least in PUBLIC_WINDOWS.items()
        if values[name] < least
    ]


def build_settings(plan: PoolPlan) -> dict[str, dict[str, Any]]:
    """Return the settings of each role by file name. The pool's number is set when the pool is opened."""
    shared: dict[str, Any] = {"pool": 1, "deployment": str(DEPLOYMENT_FILE)}
    public: dict[str, Any] = {}
    sending: dict[str, Any] = {}
    if plan.chain is not None:
        shared["rpc_url"] = plan.chain.rpc_url
        sending = PUBLIC_FINALITY
        public = PUBLIC_SETTINGS | {
            "host": plan.choose_host("coordinator"),
            "public_url": plan.chain.public_url,
            "authority": urlsplit(plan.chain.public_url).netloc,
        }
    member = shared | {"coordinator_url": plan.coordinator_url, "datasets": [DATASETS_FOLDER]} | sending
    learning: dict[str, Any] = {} if plan.learning is None else dict(plan.learning)
    if plan.learning is None and plan.model is None:
        learning = tomllib.loads(find_shipped("trainer.toml").read_text())
    if plan.sizes is not None:
        chosen = {name: choice.value for name, choice in plan.sizes.evaluation.items()}
        learning["eval"] = learning.get("eval", {}) | chosen
    if plan.model is not None:
        learning["model"] = learning.get("model", {}) | {"path": plan.model}
    return {
        "coordinator": shared
        | {
            "home": "coordinator",
            "key_file": "keys/operator.key",
            "port": plan.ports["coordinator"],
            "pages_port": plan.ports["pages"],
            "relays": list(plan.relays),
        }
        | ({} if plan.model is None else {"pages_tokenizer": plan.model})
        | public,
        "trainer": member
        | {"home": "trainer", "key_file": "keys/trainer.key", "origin_root": "origin", "device": plan.device}
        | learning,
        **{
            f"validator-{i + 1}": member
            | {"home": f"validator-{i + 1}", "key_file": f"keys/validator-{i + 1}.key", "device": plan.device}
            | {"policies": "policies"}
            for i in range(plan.validators)
        },
    }


def list_commands(plan: PoolPlan) -> dict[str, str]:
    """Return the command of each process by name, in start order."""
    ports, host = plan.ports, plan.choose_host("relay")
    relay = f"relay run --root relay --upstream http://127.0.0.1:{ports['origin']} --port {ports['relay']}"
    commands = {
        "chain": f"devnet up --folder chain --port {ports['chain']}",
        "coordinator": "coordinator serve --config coordinator.toml",
        "jobs": "coordinator jobs --config coordinator.toml",
        "pages": "coordinator pages --config coordinator.toml",
        "origin": f"origin run --root origin --port {ports['origin']}",
        "relay": relay if host == LOOPBACK else f"{relay} --host {host}",
        "trainer": "trainer run --config trainer.toml",
    }
    if plan.chain is not None:
        del commands["chain"]
    names = [f"validator-{i + 1}" for i in range(plan.validators)]
    return commands | {name: f"validator run --config {name}.toml" for name in names}
