"""Opens a pool's data sets, from folders on this machine if they are there, otherwise from relays."""

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Self

from covey.environments import mixture
from covey.environments.base import EnvironmentSpec
from covey.errors import OperatorError
from covey.protocol.ids import Hash, is_hash
from covey.tasks.dataset import DataSet, open_folder
from covey.tasks.remote import RemoteFiles
from covey.tasks.writing import MANIFEST_FILE


class DataSetCatalog:
    """The `DataSets` of a role. Calling it with a digest opens that data set. Each data set is opened only once.

    Example: `DataSetCatalog([Path("tasks")])`.
    """

    def __init__(self, folders: Sequence[Path], *, relays: Sequence[str] = (), cache: Path | None = None) -> None:
        """Open the data sets in `folders`, each of which is a data set or a folder of data sets.

        `cache` is the folder with copies of data sets at relays. Raises OperatorError("no_dataset") or
        OperatorError("bad_dataset") if a folder is not a data set.
        """
        self._opened = {data_set.digest: data_set for data_set in map(open_folder, list_folders(folders))}
        self._relays, self._cache = tuple(relays), cache
        self._remote: RemoteFiles | None = None
        self._lock = threading.Lock()

    @property
    def digests(self) -> list[Hash]:
        """Digests of the open data sets."""
        return list(self._opened)

    def __call__(self, digest: Hash) -> DataSet:
        """Return the data set with a digest.

        Raises OperatorError("no_dataset") if it is in none of the folders and there are no relays. Raises
        TransientError while no relay delivers it.
        """
        with self._lock:
            if digest in self._opened:
                return self._opened[digest]
            remote = self._require_remote(digest)
        data_set = remote.open(digest)  # Without the lock, so that `close` can end it.
        with self._lock:
            return self._opened.setdefault(digest, data_set)

    def close(self) -> None:
        """End all calls that wait for a relay."""
        with self._lock:
            remote = self._remote
        if remote is not None:
            remote.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _require_remote(self, digest: Hash) -> RemoteFiles:
        if not self._relays or self._cache is None:
            raise build_absent(digest)
        if self._remote is None:
            self._remote = RemoteFiles(self._relays, self._cache)
        return self._remote


def build_absent(digest: Hash) -> OperatorError:
    """Build the error for a data set that is in none of the folders, if there are no relays."""
    return OperatorError(
        "no_dataset",
        f"data set {digest}, from which the environment draws its tasks, is in none of the data set folders",
        fix="Add its folder with --dataset or in the setting datasets",
    )


def list_folders(folders: Sequence[Path]) -> list[Path]:
    """List the data sets among `folders` and directly below them.

    Raises OperatorError("no_dataset") if a folder does not exist.
    """
    listed: list[Path] = []
    for folder in folders:
        if not folder.is_dir():
            raise OperatorError(
                "no_dataset",
                f"the data set folder {folder} does not exist",
                fix="Correct --dataset or the setting datasets",
            )
        if (folder / MANIFEST_FILE).exists():
            listed.append(folder)
        else:
            listed += sorted(path.parent for path in folder.glob(f"*/{MANIFEST_FILE}") if path.parent.suffix != ".part")
    return listed


def list_digests(spec: EnvironmentSpec) -> list[Hash]:
    """List the digests of all data sets in an environment's options, in order and without duplicates."""
    return list(dict.fromkeys(_find_digests(spec)))


def _find_digests(spec: EnvironmentSpec) -> Iterator[Hash]:
    digest = spec.options.get("dataset")
    if isinstance(digest, str) and is_hash(digest):
        yield Hash(digest)
    parts = spec.options.get("parts")
    if spec.kind == mixture.KIND and isinstance(parts, list):
        for part in parts:  # not checked here, because loading the environment reports what is wrong with them
            options = part.get("options") if isinstance(part, dict) else None
            if isinstance(options, dict):
                yield from _find_digests(EnvironmentSpec(kind="", options=options))
