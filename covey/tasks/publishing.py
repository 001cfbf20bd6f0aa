"""Data sets of a trainer: offered at its origin, and compared with those in its pool's parameters."""

from collections.abc import Sequence
from pathlib import Path

from covey.errors import OperatorError, TransientError
from covey.protocol.ids import Hash
from covey.shardcast.manifest_index import read_contents
from covey.shardcast.origin_store import OriginStore
from covey.tasks.catalog import DataSetCatalog, list_folders
from covey.tasks.dataset import Folder, open_folder


def add_data_set(store: OriginStore, folder: Path) -> Hash:
    """Link the files of a data set into an origin's folder, add its manifest, and return its digest.

    Reads and hashes all files. Raises OperatorError("bad_dataset") if a piece does not have its hash.
    """
    data_set = open_folder(folder)
    content, manifest = Folder(folder), data_set.manifest
    for file in manifest.files:
        for number in range(len(file.pieces)):
            content.read_piece(file, number)
    data, files = manifest.to_bytes(), {file.name: folder / file.name for file in manifest.files}
    store.add_contents(data_set.digest, data, read_contents(data, data_set.digest), files=files)
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
