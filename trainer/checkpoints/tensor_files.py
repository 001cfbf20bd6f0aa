"""A learner's tensors in files, in the safetensors format of torch's distributed checkpoint.

Any number of ranks can write and read them. Each rank writes and hashes its own files and needs no other rank for it.
All ranks load at the same time. Only rank 0 calls the functions for digests.
"""

import hashlib
import json
import warnings
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch.distributed as dist
from safetensors.torch import save_file
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.tensor import DTensor

from covey.errors import OperatorError
from covey.model.finite_check import is_finite
from covey.runtime.files import sync, write_atomically
from trainer.distributed.loading import find_shards
from trainer.distributed.sharding import get_local, is_shared

_DIGESTS = "digests.json"
_RANK_DIGESTS = ".digests-"
"""Prefix of the name of a file with the digests of one rank's files, until `write_digests` has read it."""


@dataclass(frozen=True, slots=True)
class TensorPart:
    """The part of a tensor that one rank writes."""

    offsets: tuple[int, ...]
    """Index in the whole tensor of the part's first value, one per dimension."""
    values: Tensor


def list_parts(tensors: Mapping[str, Tensor]) -> dict[str, TensorPart]:
    """Return the parts of tensors that this rank writes, by name. A tensor without shards is rank 0's."""
    parts = {}
    for name, tensor in tensors.items():
        for part, values in find_shards(tensor.detach()):
            if isinstance(tensor, DTensor) or not is_shared() or dist.get_rank() == 0:
                parts[name] = TensorPart(tuple(each.start for each in part), values)
    return parts


def save_parts(files: Mapping[str, Mapping[str, TensorPart]], folder: Path) -> None:
    """Write this rank's parts of the tensors of each file, and their digests. A single process writes plain files.

    The files of several ranks have the names and headers that torch's distributed checkpoint writes.
    """
    digests = dict[str, Future[str]]()
    with ThreadPoolExecutor(thread_name_prefix="digests") as pool:  # a file is hashed while the next one is written
        for number, (file, parts) in enumerate(files.items(), 1):
            tensors, metadata = {name: part.values.cpu().contiguous() for name, part in parts.items()}, None
            path = folder / f"{file}.safetensors"
            if is_shared():
                offsets = {name: {"saved_offsets": part.offsets} for name, part in parts.items()}
                metadata = {"DCP_SHARDING_INFO": json.dumps(offsets), "format": "pt"}
                path = folder / f"shard-{dist.get_rank() + 1:05}-model-{number:05}-of-{len(files):05}.safetensors"
            save_file(tensors, path, metadata=metadata)
            sync(path)
            digests[path.name] = pool.submit(_compute_digest, path)
    rank = dist.get_rank() if is_shared() else 0
    write_atomically(
        folder / f"{_RANK_DIGESTS}{rank}", json.dumps({name: each.result() for name, each in digests.items()}).encode()
    )


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
    if not all(is_finite(get_local(tensor)) for tensor in tensors.values()):
        raise ValueError("the checkpoint contains NaN or Inf")


def write_digests(folder: Path) -> None:
    """Write a file with the SHA-256 of every other file in `folder`, after all ranks have written.

    Files that `save_parts` has hashed are not read again.
    """
    known = dict[str, str]()
    for path in folder.glob(f"{_RANK_DIGESTS}*"):
        known |= json.loads(path.read_bytes())
        path.unlink()
    (folder / _DIGESTS).write_text(json.dumps(_compute_digests(folder, known)))


def require_undamaged(folder: Path) -> None:
    """Raise ValueError or OSError unless `folder` contains exactly the files of `write_digests`, bit for bit."""
    try:
        saved = dict(json.loads((folder / _DIGESTS).read_bytes()))
    except (ValueError, TypeError) as error:
        raise ValueError(f"the digest file {_DIGESTS} cannot be read") from error
    present = _compute_digests(folder)
    if changed := sorted(str(name) for name in {*saved, *present} if saved.get(name) != present.get(name)):
        raise ValueError(f"these files were changed after they were saved: {', '.join(changed)}")


def _compute_digests(folder: Path, known: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the digest of each file by name. Hidden files are skipped, because some file systems add them."""
    names = [path.name for path in sorted(folder.iterdir()) if path.name != _DIGESTS and path.name[0] != "."]
    found = dict(known or {})
    unread = [name for name in names if name not in found]
    with ThreadPoolExecutor() as pool:  # a checkpoint of several ranks is many files, and a start waits for it
        found |= zip(unread, pool.map(_compute_digest, (folder / name for name in unread)), strict=True)
    return {name: found[name] for name in names}


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
