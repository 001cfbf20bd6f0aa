"""What a stranger's config.json may say: so many layers as there are weights for, and one model to every engine.
Called by `files`."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from transformers import PreTrainedModel

from covey.errors import ProtocolError

CONFIG_FILE = "config.json"
_COUNTS = {"num_hidden_layers", "num_layers", "n_layers", "n_layer", "decoder_layers"}
_LISTS = {"layer_types", "layers_block_type", "mlp_layer_types"}
_VLLM = {
    "quantization_config": None,
    "compression_config": None,
    "dual_chunk_attention_config": None,
    "is_causal": True,
    "logit_scale": 1.0,
}
"""What vLLM reads of every config, and the value that changes nothing; transformers reads it of few."""


def require_layers(folder: Path, weights: str) -> None:
    """Raise ValueError where config.json names more layers than the file `weights` beside it has tensors.

    Each would be built, if only to find that its weights are missing.  What is missing or cannot be read is for the
    loader to say.
    """
    if not (folder / CONFIG_FILE).is_file() or not (folder / weights).is_file():
        return
    try:
        with safe_open(folder / weights, framework="pt") as file:
            tensors = len(file.keys())
    except SafetensorError:
        return
    claimed = max(_find_counts(json.loads((folder / CONFIG_FILE).read_bytes())), default=0)
    if claimed > tensors:
        raise ValueError(f"its config names {claimed} layers, its weights are {tensors} tensors")


def require_one_meaning(folder: Path, model: PreTrainedModel) -> None:
    """Return if vLLM makes the same of config.json as transformers did, which is `model`.

    vLLM goes by `architectures` and not by `model_type`: honest work of the one would be a cheat's to the other.
    Raises ProtocolError("policy_mismatch").
    """
    written: dict[str, Any] = json.loads((folder / CONFIG_FILE).read_bytes())
    named, kind = written.get("architectures"), type(model).__name__
    if named != [kind]:
        raise ProtocolError("policy_mismatch", f"the config names the architectures {str(named)[:100]}, not {kind}")
    known = type(model.config)().to_dict()
    for name, neutral in _VLLM.items():
        if name not in known and written.get(name, neutral) not in (None, neutral):
            raise ProtocolError("policy_mismatch", f"the config has a {name}, which {kind} does not know")


def _find_counts(config: object) -> Iterator[int]:
    for name, value in config.items() if isinstance(config, dict) else ():
        if name in _COUNTS and isinstance(value, int):
            yield value
        elif name in _LISTS and isinstance(value, list):
            yield len(value)
        else:
            yield from _find_counts(value)
