"""A pool's folder: the keys of all the operator's roles, the pool's file, settings of every role, and processes.

    keys/*.key                      one private key per role, mode 600
    pool.toml                       terms and parameters, for `covey pool open`
    coordinator.toml trainer.toml validator-1.toml ...
    processes.toml                  the commands that `covey up` keeps running
    chain/                          a devnet's state and deployment.json, otherwise only deployment.json
    datasets/                       data sets of the environment, each a folder from covey tasks import

Paths in these files are relative to the folder, in which all commands run.
"""

import itertools
import json
import os
import secrets
import shlex
import shutil
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import tomlkit

from covey.chain.wallet import save_key
from covey.errors import OperatorError
from covey.local.plan import DATASETS_FOLDER, DEPLOYMENT_FILE, PoolPlan, build_pool, build_settings, list_commands
from covey.protocol.ids import Address
from covey.runtime.files import write_atomically

PROCESSES_FILE = "processes.toml"
COMMAND_VARIABLES = {f"COVEY_{name}" for name in ("KEY_FILE", "POOL", "DEPLOYMENT", "RPC_URL", "COORDINATOR_URL")}
"""Environment variables that set options of chain commands.

Roles must not inherit them, because they override settings.
"""


def create_pool_folder(folder: Path, plan: PoolPlan) -> dict[str, Address]:
    """Create the folder and return the addresses of its keys by name.

    Raises OperatorError("folder_not_empty") or OperatorError("no_folder"); see `require_new`.
    """
    with new_folder(folder) as draft:
        names = ["operator", "trainer", "arbiter", *(f"validator-{i + 1}" for i in range(plan.validators))]
        addresses = {name: save_key(draft / "keys" / f"{name}.key", secrets.token_bytes(32)).address for name in names}
        if plan.chain is not None:
            plan.chain.deployment.save(draft / DEPLOYMENT_FILE)
        (draft / DATASETS_FOLDER).mkdir()
        if plan.data_set is not None:
            shutil.move(plan.data_set, draft / DATASETS_FOLDER / plan.data_set.name)
        (draft / "pool.toml").write_text(build_pool(folder.absolute().name, plan, addresses))
        for name, values in build_settings(plan).items():
            (draft / f"{name}.toml").write_text(f"# {DESCRIPTIONS[name.partition('-')[0]]}\n{tomlkit.dumps(values)}")
        write_processes(draft / PROCESSES_FILE, list_commands(plan))
    return addresses


def find_datasets(folder: Path) -> list[Path]:
    """Return a list with the folder of the pool's data sets. The list is empty if that folder does not exist."""
    datasets = folder / DATASETS_FOLDER
    return [datasets] if datasets.is_dir() else []


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Yield a draft folder that contains an empty `keys`. It is renamed to the new folder at the end of the block.

    Only its owner can open it, because settings may contain the API key of an RPC provider. An error removes the
    draft. Raises OperatorError("folder_not_empty") or OperatorError("no_folder"); see `require_new`.
    """
    folder = require_new(folder)
    draft = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}")
    try:
        draft.mkdir(mode=0o700)
    except OSError as error:
        raise _refuse_folder(folder, error) from error
    try:
        (draft / "keys").mkdir()
        yield draft
        if folder.exists():
            folder.rmdir()
        draft.rename(folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


@contextmanager
def open_scratch(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder next to a new folder, and remove it at the end of the block.

    Its content can be moved into the new folder by a rename. Raises OperatorError("no_folder").
    """
    try:
        scratch = TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent)
    except OSError as error:
        raise _refuse_folder(folder, error) from error
    with scratch as name:
        yield Path(name)


def require_new(folder: Path) -> Path:
    """Create the folder's parent if it is missing, and return the folder's absolute path.

    Raises OperatorError("folder_not_empty") if the folder exists and is not empty, and OperatorError("no_folder")
    if its parent cannot be created.
    """
    folder = folder.absolute()
    if folder.is_symlink() or folder == Path.cwd():
        raise OperatorError(
            "folder_not_empty",
            f"{folder} is a symbolic link or the working directory, so it cannot become a new folder",
            fix="Choose a new folder",
        )
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
        raise OperatorError(
            "folder_not_empty",
            f"{folder} exists and is not an empty folder",
            fix="Choose a new folder; nothing is overwritten",
        )
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _refuse_folder(folder.parent, error) from error
    return folder


def _refuse_folder(folder: Path, error: OSError) -> OperatorError:
    fix = "Choose a folder that you can write to"
    return OperatorError("no_folder", f"{folder} cannot be created: {error.strerror}", fix=fix)


DESCRIPTIONS = {
    "coordinator": "Settings of `covey coordinator serve` and `covey coordinator jobs`.",
    "trainer": "Settings of `covey trainer run`; `covey config show trainer --config trainer.toml` explains each.",
    "validator": "Settings of `covey validator run`.",
}


def write_processes(file: Path, commands: Mapping[str, str]) -> None:
    """Write processes.toml, which contains the commands that `covey up` runs."""
    head = (
        "# Processes that `covey up` keeps running, started in this order. Each is a covey command "
        "run in this folder.\n[processes]\n"
    )
    file.write_text(head + "".join(f"{name} = {json.dumps(command)}\n" for name, command in commands.items()))


def read_processes(folder: Path) -> dict[str, str]:
    """Return the commands in a folder's processes.toml, by process name.

    Raises OperatorError("no_processes") or OperatorError("bad_processes").
    """
    file = folder / PROCESSES_FILE
    try:
        commands: dict[str, str] = tomllib.loads(file.read_text())["processes"]
    except OSError as error:
        raise OperatorError(
            "no_processes",
            f"{file} cannot be read: {error.strerror}",
            fix="Use a folder that covey init pool or covey join has created",
        ) from error
    except (KeyError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise OperatorError(
            "bad_processes", f"{file} is not valid TOML or has no table [processes]: {error}", fix=f"Correct {file}"
        ) from error
    is_right = isinstance(commands, dict) and all(isinstance(text, str) and text.strip() for text in commands.values())
    if not is_right or not commands:
        raise OperatorError(
            "bad_processes",
            f'[processes] of {file} is empty or has an entry that is not of the form NAME = "command"',
            fix=f"Correct {file}",
        )
    for name, command in commands.items():
        try:
            shlex.split(command)
        except ValueError as error:
            raise OperatorError(
                "bad_processes",
                f"the command of process {name} in {file} has a syntax error: {error}",
                fix=f"Correct the command in {file}",
            ) from error
    return commands


def merge_processes(folder: Path, others: Sequence[Path]) -> dict[str, str]:
    """Return the commands of a folder. Each of its workers also gets the settings of the same worker of `others`.

    Raises the errors of `read_processes`, and OperatorError("other_workers") if a folder is not one of workers, or does
    not have the same number of them.
    """
    commands = read_processes(folder)
    if not others:
        return commands
    first = _list_workers(folder, commands)
    for other in others:
        workers = _list_workers(other, read_processes(other))
        if workers.keys() != first.keys():
            raise OperatorError(
                "other_workers",
                f"{folder} has the workers {', '.join(first)}, and {other} has {', '.join(workers)}",
                fix="Join each pool with the same --gpus, so that each worker has a device of its own",
            )
        for name, words in workers.items():
            first[name] += [
                str((other / word).absolute()) if before == "--config" else word
                for before, word in itertools.pairwise(words[1:])
            ]
    return {name: shlex.join(words) for name, words in first.items()}


def _list_workers(folder: Path, commands: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the words of each command. Raises OperatorError("other_workers") if one does not run a worker."""
    words = {name: shlex.split(command) for name, command in commands.items()}
    for name, each in words.items():
        if each[:2] != ["worker", "run"]:
            raise OperatorError(
                "other_workers",
                f"{folder} has the process {name}, which is not a worker",
                fix="Start a pool by itself, and name only folders of covey join together",
            )
    return words


def set_pool_number(folder: Path, pool: int) -> None:
    """Set the line `pool = N` in the settings of every role of the folder."""
    for file in sorted(folder.glob("*.toml")):
        document = tomlkit.parse(file.read_text())
        if "pool" in document and document["pool"] != pool:
            document["pool"] = pool
            write_atomically(file, tomlkit.dumps(document).encode())


def get_environment() -> dict[str, str]:
    """Return the environment variables for a folder's processes, without COMMAND_VARIABLES.

    Each role of a folder has its own key. The key that the user has set for commands must not replace it.
    """
    return {name: value for name, value in os.environ.items() if name not in COMMAND_VARIABLES}


def has_own_chain(folder: Path) -> bool:
    """Return whether the folder has its own chain, a devnet on which accounts receive test money."""
    return "chain" in read_processes(folder)
