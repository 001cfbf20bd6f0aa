"""Terms and parameters of a pool's folder, including values that come from its trainer's first model."""

from pathlib import Path

from covey.chain.structs import PoolTerms
from covey.console.account import read_pool_file
from covey.console.pool_file import build_params, read_document
from covey.local.folder import find_datasets, get_environment
from covey.protocol.ids import Address
from covey.protocol.params import PoolParams
from trainer.config import TrainerConfig


def read_terms(folder: Path, token: Address) -> tuple[PoolTerms, list[Address], PoolParams]:
    """Read a folder's pool.toml as `read_pool_file` does.

    In a chat pool, the chat template and end tokens are taken from the trainer's first model.
    """
    file, model = folder / "pool.toml", None
    if build_params(file, read_document(file), {}).model.prompt_format == "chat":
        model = find_model(folder)
    return read_pool_file(file, token, datasets=find_datasets(folder), model=model)


def find_model(folder: Path) -> str | Path | None:
    """Return the model that the folder's trainer publishes first.

    None if the trainer runs elsewhere, or if it trains the tiny model, which has no chat template.
    """
    file = folder / "trainer.toml"
    if not file.exists():
        return None
    named = TrainerConfig.load(file, environment=get_environment()).initial_policy
    return folder / named if named is not None and (folder / named).is_dir() else named
