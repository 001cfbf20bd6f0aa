"""Tells whether the current process belongs to a sandbox."""

import sys

_ZYGOTE = "covey.sandbox.zygote"


def is_inside() -> bool:
    """Return whether this process is a zygote or runs a zygote's call.

    In all these processes a string has the same `hash`, and no change by an earlier call is visible.
    """
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec is not None and spec.name == _ZYGOTE
