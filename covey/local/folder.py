"""A pool's folder: the keys of all its operator's roles, the pool's file, settings of every role, and what runs.

    keys/*.key                      one private key per role, mode 600
    pool.toml                       terms and parameters, for `covey pool open`
    coordinator.toml trainer.toml validator-1.toml ...
    processes.toml                  the commands that `covey up` keeps running
    chain/                          a devnet's state and deployment.json; elsewhere only deployment.json

Paths in these files are relative to the folder, where all commands run.
"""

import json
import re
import secrets
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import covey
from covey.chain.deployment import Deployment
from covey.chain.wallet import save_key
from covey.errors import OperatorError
from covey.files import write_atomically
from covey.protocol.ids import Address

PROCESSES_FILE = "processes.toml"
DEPLOYMENT_FILE = Path("chain") / "deployment.json"
PORTS = ("coordinator", "origin", "relay", "chain")
"""Who listens on the port of the plan and on those after it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedChain:
    """A chain that exists, for a pool that strangers join."""

    deployment: Deployment
    """Contracts on the chain."""
    rpc_url: str
    """URL of the operator's own node.  It may hold a provider's key, so only the roles' settings have it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolPlan:
    """What `covey init pool` was asked for.  Example: `PoolPlan(validators=3)`."""

    validators: int = 3
    environment: str = "reasoning_gym"
    model: str | None = None
    """Folder or hub name of the model that step 0 publishes; None: the shipped tiny model."""
    chain: NamedChain | None = None
    """Chain of the pool; None: a devnet in the folder."""
    port: int = 8000
    """First of four ports, see PORTS."""
    device: str = "cpu"
    """Device of trainer and validators, for example "cuda"."""

    @property
    def ports(self) -> dict[str, int]:
        """Port by name."""
        return {name: self.port + place for place, name in enumerate(PORTS)}


def find_shipped(name: str) -> Path:
    """A file of `configs/`: beside the package in a checkout, inside it in an installed wheel."""
    package = Path(covey.__file__).resolve().parent
    inside = package / "configs" / name
    return inside if inside.exists() else package.parent / "configs" / name


def create_pool_folder(folder: Path, plan: PoolPlan) -> dict[str, Address]:
    """Write the folder and return the addresses of its keys by name.

    Everything is written beside it and moved there in one step, so that a crash leaves no half of it.
    Raises OperatorError("folder_not_empty") if anything is there already.
    """
    folder = require_new(folder)
    draft = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}")
    draft.mkdir(mode=0o700)  # settings may hold the key of a node's provider
    (draft / "keys").mkdir()
    names = ["operator", "trainer", "arbiter", *(f"validator-{i + 1}" for i in range(plan.validators))]
    addresses = {name: save_key(draft / "keys" / f"{name}.key", secrets.token_bytes(32)).address for name in names}
    if plan.chain is not None:
        plan.chain.deployment.save(draft / DEPLOYMENT_FILE)
    (draft / "pool.toml").write_text(_build_pool(folder.name, plan, addresses))
    for name, values in _build_settings(plan).items():
        (draft / f"{name}.toml").write_text(f"# {DESCRIPTIONS[name.partition('-')[0]]}\n{to_toml(values)}")
    write_processes(draft / PROCESSES_FILE, _list_commands(plan))
    if folder.exists():
        folder.rmdir()
    draft.rename(folder)
    return addresses


def require_new(folder: Path) -> Path:
    """The folder's absolute path; raise OperatorError("folder_not_empty") unless it is empty or does not exist."""
    folder = folder.absolute()
    if folder.is_symlink() or folder == Path.cwd():
        raise OperatorError("folder_not_empty", f"{folder} cannot be replaced by a new folder", fix="Name a new one")
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
        raise OperatorError(
            "folder_not_empty",
            f"{folder} exists and is not an empty folder",
            fix="Name a new one; nothing is overwritten",
        )
    folder.parent.mkdir(parents=True, exist_ok=True)
    return folder


DESCRIPTIONS = {
    "coordinator": "Settings of `covey coordinator serve` and `covey coordinator jobs`.",
    "trainer": "Settings of `covey trainer run`; `covey config show trainer --config trainer.toml` explains each.",
    "validator": "Settings of `covey validator run`.",
}


def _build_pool(name: str, plan: PoolPlan, addresses: Mapping[str, Address]) -> str:
    """The shipped pool.toml with this pool's name, accounts and environment; its comments stay."""
    import tomlkit

    text = find_shipped("pool.toml").read_text()
    if plan.chain is not None:  # the windows of a test network leave people no time to see what is wrong
        text = re.sub(r"(?m)^(\w+) = \d+( *# public: (\d+))", r"\1 = \3\2", text)
    document = tomlkit.parse(text[text.index("[terms]") :])  # its first lines say that its addresses are examples
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
    if params["environment"]["kind"] != plan.environment:
        params["environment"]["kind"] = plan.environment
        params["environment"]["options"] = tomlkit.inline_table()
    head = "# The pool: [terms] stand in the contract, [params] on chain as text.  Both are fixed once it is open.\n\n"
    return head + tomlkit.dumps(document)


def _build_settings(plan: PoolPlan) -> dict[str, dict[str, Any]]:
    """Settings of each role by the name of its file.  The pool's number is corrected when it is opened."""
    ports = plan.ports
    shared: dict[str, Any] = {"pool": 1, "deployment": str(DEPLOYMENT_FILE)}
    if plan.chain is not None:
        shared["rpc_url"] = plan.chain.rpc_url
    member = shared | {"coordinator_url": f"http://127.0.0.1:{ports['coordinator']}"}
    learning = tomllib.loads(find_shipped("trainer.toml").read_text()) if plan.model is None else {}
    model = {} if plan.model is None else {"initial_policy": plan.model}
    return {
        "coordinator": shared
        | {
            "home": "coordinator",
            "key_file": "keys/operator.key",
            "port": ports["coordinator"],
            "relays": [f"http://127.0.0.1:{ports['relay']}"],
        },
        "trainer": member
        | {"home": "trainer", "key_file": "keys/trainer.key", "origin_root": "origin", "device": plan.device}
        | model
        | learning,
        **{
            f"validator-{i + 1}": member
            | {"home": f"validator-{i + 1}", "key_file": f"keys/validator-{i + 1}.key", "device": plan.device}
            for i in range(plan.validators)
        },
    }


def _list_commands(plan: PoolPlan) -> dict[str, str]:
    """The command of each process by its name, in the order of starting."""
    ports = plan.ports
    commands = {
        "chain": f"devnet up --folder chain --port {ports['chain']}",
        "coordinator": "coordinator serve --config coordinator.toml",
        "jobs": "coordinator jobs --config coordinator.toml",
        "origin": f"origin run --root origin --port {ports['origin']}",
        "relay": f"relay run --root relay --upstream http://127.0.0.1:{ports['origin']} --port {ports['relay']}",
        "trainer": "trainer run --config trainer.toml",
    }
    if plan.chain is not None:
        del commands["chain"]
    names = [f"validator-{i + 1}" for i in range(plan.validators)]
    return commands | {name: f"validator run --config {name}.toml" for name in names}


def write_processes(file: Path, commands: Mapping[str, str]) -> None:
    """Write the file of `covey up`."""
    head = "# What `covey up` keeps running, in this order; each is a covey command in this folder.\n[processes]\n"
    file.write_text(head + "".join(f"{name} = {json.dumps(command)}\n" for name, command in commands.items()))


def read_processes(folder: Path) -> dict[str, str]:
    """The commands of a folder by name.  Raises OperatorError("no_processes") or OperatorError("bad_processes")."""
    file = folder / PROCESSES_FILE
    try:
        commands: dict[str, str] = tomllib.loads(file.read_text())["processes"]
    except OSError as error:
        raise OperatorError(
            "no_processes",
            f"{file} cannot be read: {error.strerror}",
            fix="Name a folder that covey init pool or covey join has made",
        ) from error
    except (KeyError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise OperatorError(
            "bad_processes", f"{file} has no table [processes]: {error}", fix=f"Correct {file}"
        ) from error
    is_right = isinstance(commands, dict) and all(isinstance(text, str) and text.strip() for text in commands.values())
    if not is_right or not commands:
        raise OperatorError("bad_processes", f'[processes] of {file} must hold NAME = "command"', fix=f"Correct {file}")
    return commands


def set_pool_number(folder: Path, pool: int) -> None:
    """Correct the line `pool = N` in the settings of every role of the folder."""
    import tomlkit

    for file in sorted(folder.glob("*.toml")):
        document = tomlkit.parse(file.read_text())
        if "pool" in document and document["pool"] != pool:
            document["pool"] = pool
            write_atomically(file, tomlkit.dumps(document).encode())


def to_toml(values: Mapping[str, Any], prefix: str = "") -> str:
    """Nested tables of numbers, texts and lists as TOML; JSON's spelling of those is TOML's."""
    plain = {name: value for name, value in values.items() if not isinstance(value, Mapping)}
    lines = [f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in plain.items()]
    for name, value in values.items():
        if isinstance(value, Mapping):
            lines += [f"\n[{prefix}{name}]", to_toml(value, f"{prefix}{name}.")]
    return "\n".join(lines) + "\n"


def is_devnet(folder: Path) -> bool:
    """Whether the folder's chain is its own and gives out test money."""
    return "chain" in read_processes(folder)
