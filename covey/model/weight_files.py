"""Weights in safetensors files: each file is read once and checked, before it changes anything.

Tensors in main memory are views of the mapped file, so they take no memory of their own.
"""

from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, cast

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from covey.errors import ProtocolError, TransientError
from covey.model.finite_check import find_ranges, is_finite
from covey.model.weight_copies import WeightCopies

_FILE_DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}
_ROOM = 2
"""Free memory of a GPU that staging requires, in sizes of what is staged. The engine generates meanwhile."""


class _Entry(Protocol):
    def get_shape(self) -> list[int]: ...

    def get_dtype(self) -> str: ...


class _WeightsFile(Protocol):
    """Type annotations for the untyped `safetensors.safe_open`."""

    def keys(self) -> list[str]: ...

    def get_slice(self, name: str) -> _Entry: ...

    def get_tensor(self, name: str) -> Tensor: ...


@dataclass(frozen=True, slots=True, eq=False)
class StagedWeights:
    """Checked values of a policy, next to the weights of a model that they replace."""

    pairs: Sequence[tuple[Tensor, Tensor]]
    """Weight of the model and its new value. The values are on the model's device, or else in main memory."""

    @torch.no_grad()
    def apply(self) -> None:
        """Replace the weights in place. They are converted to the model's own dtype."""
        if not self.pairs:
            return
        copies = WeightCopies(self.pairs[0][0].device)
        for weight, value in self.pairs:
            copies.copy(weight, value)
        copies.finish()


def stage_weights(
    weights: Mapping[str, Tensor], path: Path, dtype: str | None = None, *, names: Set[str] | None = None
) -> StagedWeights:
    """Read and check the new values of `weights`, or only of those in `names`. Nothing is changed yet.

    Names and shapes must be exactly those of the weights. All tensors must have one floating-point dtype (`dtype` if it
    is given), and all values must be finite. A GPU with enough free memory gets the values at once and checks them.

    If the file does not fit, raises ProtocolError("policy_mismatch"). Raises TransientError("disk_failed") if a part of
    the file cannot be read.
    """
    device = next(iter(weights.values())).device
    with _open(path, weights, dtype) as file:
        found = {name: file.get_tensor(name) for name in weights if names is None or name in names}
    if _has_room(device, sum(each.nbytes for each in found.values())):
        found = _send(found, device)
    else:
        _require_finite(found)
    return StagedWeights([(weights[name], value) for name, value in found.items()])


def read_weights(weights: Mapping[str, Tensor], path: Path) -> dict[str, Tensor]:
    """Return new values of all `weights` in main memory, by name, with the checks and errors of `stage_weights`."""
    with _open(path, weights, None) as file:
        found = {name: file.get_tensor(name) for name in weights}
    _require_finite(found)
    return found


def require_weights(weights: Mapping[str, Tensor], path: Path, *, names: Set[str] | None = None) -> None:
    """Make the checks of `stage_weights`, and raise its errors. Only the values of `names` are read, if it is given."""
    with _open(path, weights, None) as file:
        for name in weights:
            if names is None or name in names:
                _require_finite({name: file.get_tensor(name)})


def load_weights(
    weights: Mapping[str, Tensor], path: Path, dtype: str | None = None, *, names: Set[str] | None = None
) -> None:
    """Replace `weights` in place with the values in a file, or only those in `names`.

    The errors are those of `stage_weights`, and are raised before anything is changed.
    """
    stage_weights(weights, path, dtype, names=names).apply()


def _has_room(device: torch.device, size: int) -> bool:
    """Return whether a policy of `size` bytes can be on the device next to the one that is loaded."""
    return device.type == "cuda" and torch.cuda.mem_get_info(device)[0] >= _ROOM * size


def _send(found: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    """Copy tensors to a GPU, which checks them while the next ones arrive."""
    copies, sent, ranges = WeightCopies(device), dict[str, Tensor](), []
    for name, value in found.items():
        sent[name] = copies.send(value)
        ranges.append(find_ranges(sent[name]))
    copies.finish()
    if ranges:
        are_finite = torch.stack(ranges).isfinite().all(dim=1).tolist()  # the only wait for the device
        _require(dict(zip(sent, are_finite, strict=True)))
    return sent


def _require_finite(found: Mapping[str, Tensor]) -> None:
    for name, value in found.items():
        _require({name: is_finite(value)})


def _require(are_finite: Mapping[str, bool]) -> None:
    for name, is_good in are_finite.items():
        if not is_good:
            # With such weights honest work cannot be distinguished from false work.
            raise ProtocolError("policy_mismatch", f'tensor "{name}" contains NaN or Inf')


@contextmanager
def _open(path: Path, weights: Mapping[str, Tensor], dtype: str | None) -> Iterator[_WeightsFile]:
    """Open a file and check its names, shapes and dtypes."""
    is_known = False
    try:
        with safe_open(path, framework="pt") as opened:
            file = cast(_WeightsFile, opened)
            _require_match(file, weights, dtype)
            is_known = True
            yield file
    except (OSError, SafetensorError) as error:
        if is_known:
            raise TransientError("disk_failed", f"{path} could not be read: {error}") from error
        raise ProtocolError("policy_mismatch", f"the file {path.name} is not a readable safetensors file") from error


def _require_match(file: _WeightsFile, weights: Mapping[str, Tensor], dtype: str | None) -> None:
    found = set(file.keys())
    if found != set(weights):
        missing, surplus = sorted(set(weights) - found), sorted(found - set(weights))
        raise ProtocolError(
            "policy_mismatch",
            f"{len(missing)} weights are missing, for example {missing[:3]}, and {len(surplus)} "
            f"are unexpected, for example {surplus[:3]}",
        )
    required = dtype
    for name, tensor in weights.items():
        entry = file.get_slice(name)
        if list(entry.get_shape()) != list(tensor.shape):
            raise ProtocolError(
                "policy_mismatch",
                f"the tensor {name} has the shape {entry.get_shape()} instead of {list(tensor.shape)}",
            )
        file_dtype = _FILE_DTYPES.get(entry.get_dtype())
        required = required or file_dtype
        if file_dtype is None or file_dtype != required:
            raise ProtocolError(
                "policy_mismatch",
                f"the tensor {name} has the data type {entry.get_dtype()} instead of "
                f"{required or 'a floating-point type'}",
            )
