"""A learner's tensors in files, in the safetensors format of torch's distributed checkpoint.

Any number of ranks can write and read them. All ranks call each function at the same time, except the digest
functions, which only rank 0 calls.
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
    """Write the tensors of each file. A single process writes one plain file, and several ranks write one file each.

    Raises the errors of writing, and OperatorError("folder_not_shared") if rank 0 does not find the files of all ranks.
    """
    if not is_shared():
        for file, named in files.items():
            whole = {name: tensor.detach().cpu().contiguous() for name, tensor in named.items()}
            save_file(whole, folder / f"{file}.safetensors")
        return
    numbers = {name: number for number, named in enumerate(files.values(), 1) for name in named}
    tensors = {name: tensor.detach() for named in files.values() for name, tensor in named.items()}
    writer = HuggingFaceStorageWriter(str(folder), fqn_to_index_mapping=numbers, save_distributed=True)
    with _plain_failures():
        save(tensors, storage_writer=writer)
    if dist.get_rank() == 0:
        require_whole(tensors, folder)


def require_whole(tensors: Mapping[str, Tensor], folder: Path) -> None:
    """Raise OperatorError("folder_not_shared") unless `folder` contains all shards of `tensors`."""
    try:
        _require_match(tensors, HuggingFaceStorageReader(str(folder)).read_metadata().state_dict_metadata)
    except ValueError as error:
        raise OperatorError(
            "folder_not_shared",
            f"{folder} does not contain the files that the other ranks wrote: {error}",
            fix="Set home to a folder on a file system that all machines of the trainer mount at the same path",
        ) from error


def load_tensors(tensors: Mapping[str, Tensor], folder: Path) -> None:
    """Fill the tensors in place from files that any number of ranks have written.

    Raises ValueError if names, shapes or dtypes differ, if a shard is missing, or if a value is NaN or Inf.
    """
    reader = HuggingFaceStorageReader(str(folder))
    _require_match(tensors, reader.read_metadata().state_dict_metadata)
    with _plain_failures():
        load(dict(tensors), storage_reader=reader, no_dist=not is_shared())
    if not all(bool(get_local(tensor).isfinite().all()) for tensor in tensors.values()):
        raise ValueError("the checkpoint contains NaN or Inf")


def write_digests(folder: Path) -> None:
    """Write a file with the SHA-256 of every other file in `folder`, after all ranks have written."""
    (folder / _DIGESTS).write_text(json.dumps(_compute_digests(folder)))


def require_undamaged(folder: Path) -> None:
    """Raise ValueError or OSError unless `folder` contains exactly the files of `write_digests`, bit for bit."""
    try:
        saved = dict(json.loads((folder / _DIGESTS).read_bytes()))
    except (ValueError, TypeError) as error:
        raise ValueError(f"the digest file {_DIGESTS} cannot be read") from error
    present = _compute_digests(folder)
    if changed := sorted(str(name) for name in {*saved, *present} if saved.get(name) != present.get(name)):
        raise ValueError(f"these files were changed after they were saved: {', '.join(changed)}")


def _compute_digests(folder: Path) -> dict[str, str]:
    """Return the digest of each file by name. Hidden files are skipped, because some file systems add them."""
    paths = [path for path in sorted(folder.iterdir()) if path.name != _DIGESTS and not path.name.startswith(".")]
    with ThreadPoolExecutor() as pool:  # a checkpoint of several ranks is many files, and a step waits for it
        return dict(zip((path.name for path in paths), pool.map(_compute_digest, paths), strict=True))


def _compute_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _require_match(tensors: Mapping[str, Tensor], found: Mapping[str, object]) -> None:
    if tensors.keys() != found.keys():
        raise ValueError("it does not contain exactly the tensors that the model trains")
    for name, tensor in tensors.items():
        entry = found[name]
        if not isinstance(entry, TensorStorageMetadata):
            raise TypeError(f"{name} is not a tensor")
        if (entry.size, entry.properties.dtype) != (tensor.shape, tensor.dtype):
            raise ValueError(f"the shape or data type of {name} differs from the model's")
        if sum(chunk.sizes.numel() for chunk in entry.chunks) != tensor.numel():
            raise ValueError(f"some shards of {name} are missing")


@contextmanager
def _plain_failures() -> Iterator[None]:
    """Raise the first failure of a torch call. Torch itself raises a collection of failures that is not an Exception.

    Suppresses torch's warning about a single rank.
    """
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.distributed is disabled")
            yield
    except CheckpointException as error:
        failure, _ = next(iter(error.failures.values()))
        raise failure from None
