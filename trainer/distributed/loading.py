"""Loads a model of which each rank holds only shards. No rank ever has all weights in memory.

The model is built on the meta device, which stores no values. After it is sharded, each rank reads its slices of the
safetensors files.
"""

import hashlib
import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors import SafetensorError, safe_open
from torch import Tensor
from torch.distributed.tensor import DTensor
from transformers import AutoModelForCausalLM, GenerationConfig, PreTrainedModel
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME
from transformers.utils.hub import cached_file

from covey.errors import OperatorError
from covey.model.policy_files import DTYPES, get_weights, load_config

_BASE = ".base_layer."
"""Part of the name of a weight to which an adapter is added. Files have the name without it."""


def build_empty_model(source: str | Path, dtype: str) -> PreTrainedModel:
    """Build the model that `load_model` loads, without values. Raises the errors of `load_config`."""
    config = load_config(source)
    with torch.device("meta"):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
            config, dtype=DTYPES[dtype], attn_implementation="sdpa", trust_remote_code=False
        )
    with suppress(OSError):  # if there is none, the model has one that is derived from its config
        model.generation_config = GenerationConfig.from_pretrained(str(source))
    model.train(False)
    return model


@torch.no_grad()
def materialize(model: PreTrainedModel, device: torch.device) -> None:
    """Give a model on the meta device memory on `device`. Its buffers get their values, and its weights get none.

    A sharded model gets memory for this rank's shards.
    """
    model.to_empty(device=device)
    model.tie_weights(recompute_mapping=False)
    for tensor in model.state_dict(keep_vars=True).values():  # so that only other buffers are initialized
        setattr(tensor, "_is_hf_initialized", True)  # noqa: B010
    model.initialize_weights()  # type: ignore[no-untyped-call]


@torch.no_grad()
def load_shards(model: PreTrainedModel, source: str | Path) -> None:
    """Fill this rank's shards of the model from the files of `source`. All ranks call this at the same time.

    Adapters are left as they are. Tensors that the model does not have are ignored, as in `load_model`.

    Raises OperatorError("model_unavailable") if weights are missing or cannot be read. Raises
    OperatorError("other_weights") if the files of this rank differ from those of rank 0.
    """
    weights = {name.replace(_BASE, "."): each for name, each in get_weights(model).items() if ".lora_" not in name}
    digest, missing = hashlib.sha256(), dict(weights)
    try:
        for path in _find_files(source):
            with safe_open(path, framework="pt") as file:
                for name in sorted(missing.keys() & set(file.keys())):
                    _read(file.get_slice(name), missing.pop(name), source, name)
                    digest.update(_sign(name, file.get_slice(name)))
    except (OSError, SafetensorError) as error:
        raise _unavailable(source, str(error)) from error
    if missing:
        raise _unavailable(source, f"weights are missing: {sorted(missing)[:3]}")
    _require_equal(digest.digest(), source)


@torch.no_grad()
def copy_shard(target: Tensor, whole: Tensor) -> None:
    """Set a tensor, or this rank's shard of it, to the values of a whole tensor that every rank has."""
    for part, local in find_shards(target):
        local.copy_(whole[part])


def find_shards(tensor: Tensor) -> Iterator[tuple[tuple[slice, ...], Tensor]]:
    """Yield the part of a tensor that this rank holds, as slices and values. Nothing if it holds none."""
    if not isinstance(tensor, DTensor):
        yield tuple(slice(0, size) for size in tensor.shape), tensor
        return
    for chunk in tensor.__create_chunk_list__():  # type: ignore[no-untyped-call]
        if all(chunk.sizes):
            sides = zip(chunk.offsets, chunk.sizes, strict=True)
            yield tuple(slice(start, start + size) for start, size in sides), tensor.to_local()


def _read(entry: Any, target: Tensor, source: str | Path, name: str) -> None:
    if list(entry.get_shape()) != list(target.shape):
        shapes = f"{entry.get_shape()} instead of {list(target.shape)}"
        raise _unavailable(source, f"the tensor {name} has the shape {shapes}")
    for part, local in find_shards(target):
        local.copy_(entry[part] if target.ndim else entry[...])


def _sign(name: str, entry: Any) -> bytes:
    """Return what identifies a tensor without reading all of it: its name, shape, data type and first row."""
    row = entry[:1] if entry.get_shape() else entry[...]
    header = json.dumps([name, entry.get_shape(), entry.get_dtype()])
    values: bytes = row.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return header.encode() + values


def _require_equal(digest: bytes, source: str | Path) -> None:
    """Raise OperatorError("other_weights") on the ranks whose digest differs from that of rank 0."""
    own = torch.tensor(list(digest), dtype=torch.uint8)
    first = own.clone()
    dist.broadcast(first, 0)
    if not torch.equal(own, first):
        raise OperatorError(
            "other_weights",
            f"the weights of {source} on this rank differ from those of rank 0",
            fix="Set model.path to copies of one model on all machines of the trainer",
        )


def _find_files(source: str | Path) -> list[str]:
    """Return the paths of the safetensors files of a folder or repository. A missing file is downloaded."""
    whole = cached_file(str(source), SAFE_WEIGHTS_NAME, _raise_exceptions_for_missing_entries=False)
    if whole is not None:
        return [whole]
    index = cached_file(str(source), SAFE_WEIGHTS_INDEX_NAME, _raise_exceptions_for_missing_entries=False)
    if index is None:
        raise _unavailable(source, f"it has neither {SAFE_WEIGHTS_NAME} nor {SAFE_WEIGHTS_INDEX_NAME}")
    names = sorted(set(json.loads(Path(index).read_bytes())["weight_map"].values()))
    return [str(cached_file(str(source), name)) for name in names]


def _unavailable(source: str | Path, reason: str) -> OperatorError:
    return OperatorError(
        "model_unavailable",
        f"the shards of the model {source} could not be loaded: {reason}",
        fix="Use a model in safetensors format whose tensors have transformers' names; one process of a trainer "
        "writes such a copy to home/exports/0",
    )
