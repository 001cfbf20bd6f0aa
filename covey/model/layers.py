"""How many layers a config claims, before anything is made of it: each would be built, if only to find that its weights
are missing.  Called by `files`."""

import json
from collections.abc import Iterator
from pathlib import Path

from safetensors import SafetensorError, safe_open

_COUNTS = {"num_hidden_layers", "num_layers", "n_layers", "n_layer", "decoder_layers"}
_LISTS = {"layer_types", "layers_block_type", "mlp_layer_types"}


def require_layers(folder: Path, weights: str) -> None:
    """Raise ValueError where `folder`/config.json names more layers than the file `weights` beside it has tensors.

    What is missing or cannot be read is for the loader to say.
    """
    if not (folder / "config.json").is_file() or not (folder / weights).is_file():
        return
    try:
        with safe_open(folder / weights, framework="pt") as file:
            tensors = len(file.keys())
    except SafetensorError:
        return
    claimed = max(_find_counts(json.loads((folder / "config.json").read_bytes())), default=0)
    if claimed > tensors:
        raise ValueError(f"its config names {claimed} layers, its weights are {tensors} tensors")


def _find_counts(config: object) -> Iterator[int]:
    for name, value in config.items() if isinstance(config, dict) else ():
        if name in _COUNTS and isinstance(value, int):
            yield value
        elif name in _LISTS and isinstance(value, list):
            yield len(value)
        else:
            yield from _find_counts(value)
