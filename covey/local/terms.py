"""Terms and parameters of a pool's folder, including values that come from its trainer's first model."""

from pathlib import Path

from covey.chain.structs import PoolTerms
from covey.console.account import read_pool_file
from covey.console.pool_file import build_params, read_document
from covey.environments import registry
from covey.environments.base import EnvironmentSpec
from covey.local.folder import find_datasets, get_environment, read_processes
from covey.protocol.ids import Address
from covey.protocol.params import PoolParams
from covey.tasks.catalog import DataSetCatalog
from trainer.config import TrainerConfig
from trainer.requirements import require_trainable


def read_terms(folder: Path, token: Address) -> tuple[PoolTerms, list[Address], PoolParams]:
    """Read a folder's pool.toml as `read_pool_file` does.

    In a chat pool, the chat template and end tokens are taken from the trainer's first model.
    """
    file, model = folder / "pool.toml", None
    if build_params(file, read_document(file), {}).model.prompt_format == "chat":
        model = find_model(folder)
    return read_pool_file(file, token, datasets=find_datasets(folder), model=model)


def require_trainable_pool(folder: Path) -> None:
    """Check that the folder's trainer can train its pool, before anything on chain depends on it.

    Nothing is checked if the trainer runs elsewhere. Raises OperatorError("bad_pool_file"), the errors of the
    environment, and those of `require_trainable`.
    """
    file, settings = folder / "pool.toml", folder / "trainer.toml"
    has_trainer = any(command.split()[:2] == ["trainer", "run"] for command in read_processes(folder).values())
    if not has_trainer or not file.exists() or not settings.exists():
        return
    params = build_params(file, read_document(file), {})
    config = TrainerConfig.load(settings, environment=get_environment())
    spec = EnvironmentSpec(kind=params.environment.kind, options=params.environment.options)
    with DataSetCatalog(config.datasets) as data_sets:
        environment = registry.load(spec, data_sets, config.list_interpreters())
        environment.identify(0)  # opens the data set and finds a training row
        require_trainable(config, params, environment, source=find_model(folder))


def find_model(folder: Path) -> str | Path | None:
    """Return the model that the folder's trainer publishes first.

    None if the trainer runs elsewhere, or if it trains the tiny model, which has no chat template.
    """
    file = folder / "trainer.toml"
    if not file.exists():
        return None
    named = TrainerConfig.load(file, environment=get_environment()).model.path
    return folder / named if named is not None and (folder / named).is_dir() else named
