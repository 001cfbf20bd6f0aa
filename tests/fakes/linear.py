"""Layers of any size by oneDNN on any processor: what tests compute then goes the way of a validator on AMD's."""

from covey.model import linear


def force_quick_layers() -> None:
    """From now on in this process; a fixture sets the same for one test."""
    for name, value in QUICK.items():
        setattr(linear, name, value)


QUICK = {"BLOCK": 8, "NARROWEST": 1, "WORTH": 1, "is_worth_it": linear.has_onednn}
