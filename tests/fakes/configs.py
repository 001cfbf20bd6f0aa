"""The shipped pool files, whose data sets are not shipped with them."""

from pathlib import Path

from covey.chain.structs import PoolTerms
from covey.console.pool_file import build_params, read_document, read_table
from covey.console.pool_terms import read_terms
from covey.protocol.ids import Address, Hash
from covey.protocol.params import PoolParams

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
TOKEN = Address("0x" + "00" * 20)
NO_DIGEST = "0x" + "00" * 32
"""Placeholder for the digest of a data set in intellect2-pool.toml."""


def read_settings(file: Path) -> tuple[PoolTerms, PoolParams]:
    """Return terms and parameters as written in a pool's file, without reading the tasks."""
    document = read_document(file)
    params = build_params(file, document, {})
    return read_terms(file, read_table(file, document, "terms"), TOKEN, params)[0], params


def write_intellect2(folder: Path, digest: Hash) -> Path:
    """Write the pool file of the paper's run with a data set and the hash of a chat template."""
    text = (CONFIGS / "intellect2-pool.toml").read_text()
    assert text.count(NO_DIGEST) == 2
    pinned = f'prompt_format = "chat"\nchat_template_hash = "0x{"11" * 32}"\n#'
    file = folder / "pool.toml"
    file.write_text(text.replace(NO_DIGEST, digest).replace('prompt_format = "chat"', pinned))
    return file
