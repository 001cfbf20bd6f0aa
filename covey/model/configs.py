"""Checks of an untrusted config.json.

A config must not declare more layers than there are weights for, and it must describe the same model to every engine.
"""

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
"""Settings that vLLM or transformers' cache reads from any config, with the value that has no effect.

Few models read these settings themselves.
"""


def require_layers(folder: Path, weights: str) -> None:
    """Raise ValueError if config.json declares more layers than the file `weights` in `folder` has tensors.

    Otherwise each layer would be built before the loader notices that its weights are missing. The loader reports files
    that are missing or cannot be read.
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
        raise ValueError(f"its config claims {claimed} layers, but its weights contain only {tensors} tensors")


def require_one_meaning(folder: Path, weights: str, model: PreTrainedModel) -> None:
    """Check that config.json and the file `weights` describe the same model to vLLM and to transformers.

    `model` is the model that transformers builds. vLLM selects the model by `architectures` and transformers by
    `model_type`. If the two differed, honest work with one engine would look like a cheat to the other. Raises
    ProtocolError("policy_mismatch").
    """
    config: dict[str, Any] = json.loads((folder / CONFIG_FILE).read_bytes())
    architectures, kind = config.get("architectures"), type(model).__name__
    if architectures != [kind]:
        names = str(architectures)[:100]
        raise ProtocolError("policy_mismatch", f"the config lists the architectures {names} instead of {kind}")
    _require_one_source(folder, weights)
    known = type(model.config)().to_dict()
    for name, neutral in _VLLM.items():
        if name not in known and config.get(name, neutral) not in (None, neutral):
            raise ProtocolError("policy_mismatch", f"the config sets {name}, which {kind} does not support")
    window = getattr(model.config, "sliding_window", None)
    others = set(getattr(model.config, "layer_types", None) or ()) - {_SLIDING}
    # vLLM treats a window of 0 as none, and gives most models the window in all layers.
    if window is not None and (window < 1 or others):
        raise ProtocolError(
            "policy_mismatch",
            f"vLLM and transformers interpret a sliding window of {window} with the layer types "
            f"{sorted(others)} differently",
        )


def require_windows(config: PretrainedConfig) -> None:
    """Raise ValueError if a model has sliding-window layers but no window.

    It would load, and fail at the first prompt.
    """
    if _SLIDING in (getattr(config, "layer_types", None) or ()) and getattr(config, "sliding_window", None) is None:
        raise ValueError("its config has layers with sliding-window attention but no sliding_window")


def require_attention(config: PretrainedConfig) -> None:
    """Raise OperatorError("unsupported_model") if proofs cannot be computed with the model's attention.

    For example, `scaled_dot_product_attention` does not support capped scores and attention sinks.
    """
    kind: Any = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    if kind is not None and not kind._supports_sdpa:
        raise OperatorError(
            "unsupported_model",
            f"{kind.__name__} has an attention that cannot be computed with torch's scaled_dot_product_attention",
            fix="Use a model with another architecture, for example Qwen3, Llama, Mistral or Gemma 3",
        )


def _require_one_source(folder: Path, weights: str) -> None:
    """Raise ProtocolError("policy_mismatch") if vLLM would read files other than `weights`.

    vLLM loads every safetensors file of the folder, or those listed in an index, and the last value of a tensor wins.
    It also reads a quantization file that transformers ignores.
    """
    surplus = sorted(path.name for path in folder.glob("*.safetensors*") if path.name != weights)
    surplus += [path.name for path in folder.glob("hf_quant_config.json")]
    if surplus:
        raise ProtocolError(
            "policy_mismatch",
            f"besides {weights}, the policy has files that vLLM would also read: {surplus[:3]}",
        )


def _find_counts(config: object) -> Iterator[int]:
    for name, value in config.items() if isinstance(config, dict) else ():
        if name in _COUNTS and isinstance(value, int):
            yield value
        elif name in _LISTS and isinstance(value, list):
            yield len(value)
        else:
            yield from _find_counts(value)
