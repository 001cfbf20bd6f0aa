"""Counts where a host would wait for a GPU, on a CPU.

Use it with the code for GPUs, for example with `compute_tops_tensor`: code for CPUs reads tensors freely.
"""

from collections import Counter
from typing import Any

import torch
from torch.overrides import TorchFunctionMode, resolve_name
from torch.utils._python_dispatch import TorchDispatchMode

COPIES = {"torch.Tensor.cpu", "torch.Tensor.tolist"}
"""Python calls that copy a tensor to main memory."""
READS = {"aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::_unique2"}
"""Operators that wait for a value. `item`, `bool`, `int` and `float` of a tensor call the first."""
INDEXED = {"aten::index", "aten::index_put", "aten::index_put_"}
"""Operators that wait if an index is boolean."""


class DeviceWaits(TorchDispatchMode):
    """A context in which `found` counts the calls that would wait, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()
        self._calls = _Calls(self.found)

    @property
    def total(self) -> int:
        """Number of waits so far."""
        return self.found.total()

    def __enter__(self) -> "DeviceWaits":
        self._calls.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._calls.__exit__(*error)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name
        has_mask = name in INDEXED and any(each is not None and each.dtype is torch.bool for each in args[1])
        if name in READS or has_mask:
            self.found[name] += 1
        return func(*args, **(kwargs or {}))


class _Calls(TorchFunctionMode):
    def __init__(self, found: "Counter[str]") -> None:
        super().__init__()
        self._found = found

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if (name := resolve_name(func)) in COPIES:
            self._found[name] += 1
        return func(*args, **(kwargs or {}))
