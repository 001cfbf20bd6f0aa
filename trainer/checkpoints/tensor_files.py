"""A learner's tensors in files that any number of ranks write and read: torch's distributed checkpoint in safetensors.

Called by `checkpoint`.  Every rank calls each function at the same time, but those of digests, which
are rank 0's.
"""

import hashlib
import json
import warnings
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import torch.distributed as dist
from safetensors.torch import save_file
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from covey.errors import OperatorError
from trainer.distributed.sharding import get_local, is_shared

_DIGESTS = "digests.json"


def save_tensors(files: Mapping[str, Mapping[str, Tensor]], folder: Path) -> None:
    """Write the tensors of each file; alone as a plain one, else each rank writes and syncs one with its parts.

    Raises what writing raises, and OperatorError("folder_not_shared") where rank 0 does not find all parts.
    """
    if not is_shared():
        for file, part in files.items():
            whole = {name: tensor.detach().cpu().contiguous() for name, tensor in part.items()}
            save_file(whole, folder / f"{file}.safetensors")
        return
    places = {name: number for number, part in enumerate(files.values(), 1) for name in part}
    tensors = {name: tensor.detach() for part in files.values() for name, tensor in part.items()}
    writer = HuggingFaceStorageWriter(str(folder), fqn_to_index_mapping=places, save_distributed=True)
    with _plain_failures():
        save(tensors, storage_writer=writer)
    if dist.get_rank() == 0:
        require_whole(tensors, folder)


def require_whole(tensors: Mapping[str, Tensor], folder: Path) -> None:
    """Return if `folder` holds all parts of them; raise OperatorError("folder_not_shared")."""
    try:
        _require_match(tensors, HuggingFaceStorageReader(str(folder)).read_metadata().state_dict_metadata)
    except ValueError as error:
        raise OperatorError(
            "folder_not_shared",
            f"{folder} does not hold what the other ranks wrote: {error}",
            fix="Put home on a file system that all machines of the trainer have at the same place",
        ) from error


def load_tensors(tensors: Mapping[str, Tensor], folder: Path) -> None:
    """Fill them in place from what any number of ranks wrote.

    Raises ValueError where names, shapes or dtypes differ, where a part is missing and where a value is no number.
    """
    reader = HuggingFaceStorageReader(str(folder))
    _require_match(tensors, reader.read_metadata().state_dict_metadata)
    with _plain_failures():
        load(dict(tensors), storage_reader=reader, no_dist=not is_shared())
    if not all(bool(get_local(tensor).isfinite().all()) for tensor in tensors.values()):
        raise ValueError("it holds values that are no numbers")


def write_digests(folder: Path) -> None:
    """Note the SHA-256 of every file in `folder`, once all ranks have written."""
    (folder / _DIGESTS).write_text(json.dumps(_compute_digests(folder)))


def require_undamaged(folder: Path) -> None:
    """Return if `folder` holds the files that `write_digests` saw, bit for bit, and no others; raise ValueError or
    OSError."""
    try:
        noted = dict(json.loads((folder / _DIGESTS).read_bytes()))
    except (ValueError, TypeError) as error:
        raise ValueError(f"not as it was saved: {_DIGESTS}") from error
    found = _compute_digests(folder)
    if changed := sorted(str(name) for name in {*noted, *found} if noted.get(name) != found.get(name)):
        raise ValueError(f"not as it was saved: {', '.join(changed)}")


def _compute_digests(folder: Path) -> dict[str, str]:
    """By name, without what file systems hide."""
    paths = [path for path in sorted(folder.iterdir()) if path.name != _DIGESTS and not path.name.startswith(".")]
    with ThreadPoolExecutor() as pool:  # a state of several ranks is many files, and a step waits for it
        return dict(zip((path.name for path in paths), pool.map(_compute_digest, paths), strict=True))


def _compute_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _require_match(tensors: Mapping[str, Tensor], found: Mapping[str, object]) -> None:
    if tensors.keys() != found.keys():
        raise ValueError("it holds other tensors than the model trains")
    for name, tensor in tensors.items():
        entry = found[name]
        if not isinstance(entry, TensorStorageMetadata):
            raise TypeError(f"{name} is no tensor")
        if (entry.size, entry.properties.dtype) != (tensor.shape, tensor.dtype):
            raise ValueError(f"{name} has another shape or number format")
        if sum(chunk.sizes.numel() for chunk in entry.chunks) != tensor.numel():
            raise ValueError(f"parts of {name} are missing")


@contextmanager
def _plain_failures() -> Iterator[None]:
    """Raise what failed instead of torch's collection of failures, which is no Exception; one rank is no warning."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.distributed is disabled")
            yield
    except CheckpointException as error:
        failure, _ = next(iter(error.failures.values()))
        raise failure from None
