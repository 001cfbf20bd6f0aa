"""Data sets of a trainer: published as shards at its origin, and compared with those in its pool's parameters."""

from collections.abc import Sequence
from pathlib import Path

from covey.errors import OperatorError, TransientError
from covey.protocol.ids import Hash
from covey.shardcast.store import ShardStore
from covey.tasks.catalog import DataSetCatalog, list_folders
from covey.tasks.dataset import Folder, open_folder


def add_data_set(store: ShardStore, folder: Path) -> Hash:
    """Copy the shards of a data set into a store, then its manifest, and return its digest.

    Shards that are already in the store are not written again. Raises OperatorError("bad_dataset") if the hash of a
    file differs from the manifest's.
    """
    data_set = open_folder(folder)
    content = Folder(folder)
    for file in data_set.manifest.files:
        for number, shard in enumerate(file.shards):
            store.add_shard(shard.sha256, content.read_shard(file, number))
    store.add_manifest(data_set.manifest)
    return data_set.digest


def require_data_sets(digests: Sequence[Hash], data_sets: DataSetCatalog) -> None:
    """Open all data sets of a pool.

    Raises OperatorError("wrong_dataset") if one of them is in no folder and no relay delivers it. Raises
    OperatorError("bad_dataset") if one is damaged.
    """
    here = ", ".join(data_sets.digests) or "none"
    for digest in digests:
        try:
            data_sets(digest)
        except (OperatorError, TransientError) as error:
            if error.code == "bad_dataset":
                raise
            raise OperatorError(
                "wrong_dataset",
                f"data set {digest}, from which the pool draws tasks, is missing: the setting "
                f"datasets contains {here}, and no relay serves it: {error.message}",
                fix="Add the folder of the data set to the setting datasets",
            ) from error


def require_named(digests: Sequence[Hash], folders: Sequence[Path]) -> DataSetCatalog:
    """Return a catalog of `folders`, after a check that they contain all data sets in a pool's file.

    The check is skipped if `folders` contain no data set. Raises OperatorError("wrong_dataset") if a data set is
    missing, or if the pool's file contains no data set although `folders` do.
    """
    catalog = DataSetCatalog(folders)
    paths = {open_folder(folder).digest: folder for folder in list_folders(folders)}
    missing = [digest for digest in digests if digest not in paths]
    if not paths or (digests and not missing):
        return catalog
    digest, folder = next(iter(paths.items()))
    if digests:
        message = f"the pool file requires data set {missing[0]}, but {folder} contains data set {digest}"
        fix = f'Set --dataset to the folder of the right data set, or write dataset = "{digest}" into the pool file'
    else:
        message = f"the pool file sets no data set, but {folder} contains data set {digest}"
        fix = f'Write options = {{ dataset = "{digest}" }} into [params.environment] of the pool file'
    raise OperatorError("wrong_dataset", message, fix=fix)
