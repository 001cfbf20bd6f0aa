"""What a stranger's config.json may say: so many layers as there are weights for, and one model to every engine.
Called by `files`."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, PretrainedConfig, PreTrainedModel

from covey.errors import OperatorError, ProtocolError

CONFIG_FILE = "config.json"
_COUNTS = {"num_hidden_layers", "num_layers", "n_layers", "n_layer", "decoder_layers"}
_LISTS = {"layer_types", "layers_block_type", "mlp_layer_types"}
_SLIDING = "sliding_attention"
_VLLM = {
    "attention_chunk_size": None,
    "quantization_config": None,
    "compression_config": None,
    "dual_chunk_attention_config": None,
    "is_causal": True,
    "layer_types": None,
    "logit_scale": 1.0,
    "sliding_window": None,
}
"""What vLLM, or transformers' cache, reads of every config, and the value that changes nothing; few models read it."""


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


def require_one_meaning(folder: Path, weights: str, model: PreTrainedModel) -> None:
    """Return if vLLM makes the same of config.json and the file `weights` as transformers did, which is `model`.

    vLLM goes by `architectures` and not by `model_type`: honest work of the one would be a cheat's to the other.
    Raises ProtocolError("policy_mismatch").
    """
    written: dict[str, Any] = json.loads((folder / CONFIG_FILE).read_bytes())
    named, kind = written.get("architectures"), type(model).__name__
    if named != [kind]:
        raise ProtocolError("policy_mismatch", f"the config names the architectures {str(named)[:100]}, not {kind}")
    _require_one_source(folder, weights)
    known = type(model.config)().to_dict()
    for name, neutral in _VLLM.items():
        if name not in known and written.get(name, neutral) not in (None, neutral):
            raise ProtocolError("policy_mismatch", f"the config has a {name}, which {kind} does not know")
    window = getattr(model.config, "sliding_window", None)
    others = set(getattr(model.config, "layer_types", None) or ()) - {_SLIDING}
    if window is not None and (window < 1 or others):  # of 0 vLLM makes none, and most models have one in all layers
        raise ProtocolError("policy_mismatch", f"a window of {window}, beside {sorted(others)}, differs in vLLM")


def require_windows(config: PretrainedConfig) -> None:
    """Raise ValueError where layers slide and no window says how far: such a model loads, and fails over a prompt."""
    if _SLIDING in (getattr(config, "layer_types", None) or ()) and getattr(config, "sliding_window", None) is None:
        raise ValueError("its config has sliding layers without a window")


def require_attention(config: PretrainedConfig) -> None:
    """Raise OperatorError("unsupported_model") where the model's attention is none that proofs can be computed with:
    it caps its scores or has sinks, which `scaled_dot_product_attention` knows nothing of."""
    kind: Any = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    if kind is not None and not kind._supports_sdpa:
        raise OperatorError(
            "unsupported_model",
            f"{kind.__name__} has an attention that torch's scaled_dot_product_attention does not compute",
            fix="Use a model of another architecture, for example Qwen3, Llama, Mistral or Gemma 3",
        )


def _require_one_source(folder: Path, weights: str) -> None:
    """vLLM loads every safetensors file there is, or those that an index names; what comes last counts.  And it goes by
    a file of quantisation that transformers does not know."""
    surplus = sorted(path.name for path in folder.glob("*.safetensors*") if path.name != weights)
    surplus += [path.name for path in folder.glob("hf_quant_config.json")]
    if surplus:
        raise ProtocolError("policy_mismatch", f"vLLM reads more than {weights}: {surplus[:3]}")


def _find_counts(config: object) -> Iterator[int]:
    for name, value in config.items() if isinstance(config, dict) else ():
        if name in _COUNTS and isinstance(value, int):
            yield value
        elif name in _LISTS and isinstance(value, list):
            yield len(value)
        else:
            yield from _find_counts(value)
