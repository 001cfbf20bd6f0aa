"""A config is refused if it names more layers than there are weights for, or means different models to engines."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM, Gemma2Config, GptOssConfig, LlamaConfig, LlamaForCausalLM

from covey.errors import OperatorError, ProtocolError
from covey.model.configs import require_layers
from covey.model.policy_files import load_model, load_tokenizer, require_policy, save_policy
from covey.model.tiny import build_model, build_tokenizer
from covey.protocol.policy_record import WEIGHTS_FILE

pytestmark = pytest.mark.unit

TENSORS = 2 * 12 + 2
"""Number of tensors of the tiny Qwen2.

Each of its two layers has seven matrices, three biases and two norms. The embedding and a norm come in addition.
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_policy(build_model(3), build_tokenizer(), tmp_path / "policy", "bfloat16")
    return tmp_path / "policy"


def change(folder: Path, **values: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


@pytest.mark.parametrize(
    "values",
    [
        {"num_hidden_layers": 1_000_000_000},
        {"text_config": {"n_layer": TENSORS + 1}},
        {"layer_types": ["full_attention"] * (TENSORS + 1)},
    ],
    ids=["billions", "nested", "list"],
)
@pytest.mark.parametrize("load", [require_policy, lambda folder: load_model(folder, "float32")], ids=["look", "load"])
def test_load__more_layers_than_tensors__is_refused_before_any_is_built(
    folder: Path, values: dict[str, Any], load: Any
) -> None:
    change(folder, **values)
    with pytest.raises(
        OperatorError, match=rf"claims \d+ layers, but its weights contain only {TENSORS} tensors"
    ) as caught:
        load(folder)
    assert caught.value.code == "model_unavailable"


def test_require_layers__as_many_layers_as_tensors__is_left_to_the_loader(folder: Path) -> None:
    change(folder, num_hidden_layers=TENSORS, max_window_layers=1_000_000, hidden_size=1 << 60)
    require_layers(folder, WEIGHTS_FILE)


def test_require_layers__unreadable_weights__are_left_to_the_loader(folder: Path) -> None:
    (folder / WEIGHTS_FILE).write_bytes(b"\xff" * 64)
    require_layers(folder, WEIGHTS_FILE)
    with pytest.raises(ProtocolError, match="not a readable safetensors"):
        require_policy(folder)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"architectures": ["LlamaForCausalLM"]},
            r"architectures \['LlamaForCausalLM'\] instead of Qwen2ForCausalLM",
        ),
        ({"architectures": ["Qwen2ForCausalLM", "LlamaForCausalLM"]}, "lists the architectures"),
        ({"architectures": None}, "lists the architectures None"),
        ({"quantization_config": {"quant_method": "fp8"}}, "sets quantization_config"),
        ({"is_causal": False}, "sets is_causal"),
        ({"logit_scale": 0.5}, "sets logit_scale"),
        ({"attention_chunk_size": 4}, "sets attention_chunk_size"),
        (
            {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1},
            r"interpret a sliding window of 4 with the layer types \['full_attention'\] differently",
        ),
        (
            {"layer_types": ["full_attention"] * 2, "use_sliding_window": True, "sliding_window": 4},
            r"interpret a sliding window of 4 with the layer types \['full_attention'\] differently",
        ),
        (
            {"layer_types": ["sliding_attention"] * 2, "use_sliding_window": True, "sliding_window": 0},
            "a sliding window of 0",
        ),
    ],
)
def test_require_policy__config_that_vllm_interprets_differently__is_refused(
    folder: Path, values: dict[str, Any], message: str
) -> None:
    change(folder, is_causal=True, logit_scale=1.0, quantization_config=None)
    require_policy(folder)
    change(folder, **values)
    with pytest.raises(ProtocolError, match=message) as caught:
        require_policy(folder)
    assert caught.value.code == "policy_mismatch"


def test_require_policy__window_in_all_layers_or_in_none__means_the_same_to_both(folder: Path) -> None:
    change(folder, sliding_window=4096, use_sliding_window=False)  # as in published models
    require_policy(folder)
    change(folder, use_sliding_window=True, layer_types=["sliding_attention"] * 2)
    require_policy(folder)


@pytest.mark.parametrize("load", [require_policy, lambda folder: load_model(folder, "float32")], ids=["look", "load"])
def test_load__layers_that_slide_without_a_window__is_refused(folder: Path, load: Any) -> None:
    change(folder, use_sliding_window=False, layer_types=["sliding_attention"] * 2)
    with pytest.raises(OperatorError, match="sliding-window attention but no sliding_window"):
        load(folder)


@pytest.mark.parametrize("values", [{"sliding_window": 4}, {"layer_types": ["full_attention"] * 2}])
def test_require_policy__window_for_a_llama__is_refused(tmp_path: Path, values: dict[str, Any]) -> None:
    sizes = {"vocab_size": 259, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    folder = tmp_path / "llama"
    save_policy(LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=2)), build_tokenizer(), folder, "bfloat16")
    require_policy(folder)
    change(folder, **values)
    with pytest.raises(ProtocolError, match="which LlamaForCausalLM does not support"):
        require_policy(folder)


@pytest.mark.parametrize("name", ["z.safetensors", "model.safetensors.index.json", "hf_quant_config.json"])
def test_require_policy__additional_weights__are_refused(folder: Path, name: str) -> None:
    (folder / name).write_bytes((folder / WEIGHTS_FILE).read_bytes())
    with pytest.raises(
        ProtocolError, match=rf"besides {WEIGHTS_FILE}, the policy has files that vLLM would also read: \['{name}'\]"
    ):
        require_policy(folder)


@pytest.mark.parametrize(
    ("file", "values", "message"),
    [
        ("tokenizer.json", {"normalizer": {"type": "Replace", "pattern": {"Regex": "("}, "content": ""}}, "Oniguruma"),
        ("tokenizer_config.json", {"eos_token": None}, "no end-of-sequence token"),
    ],
)
def test_load_tokenizer__invalid_files__are_refused_with_the_reason(
    folder: Path, file: str, values: dict[str, Any], message: str
) -> None:
    load_tokenizer(folder)
    (folder / file).write_text(json.dumps(json.loads((folder / file).read_text()) | values))
    with pytest.raises(OperatorError, match=message) as caught:
        load_tokenizer(folder)
    assert caught.value.code == "model_unavailable"


SMALL = {
    "vocab_size": 16,
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 4,
}


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        (Gemma2Config(**SMALL), "Gemma2ForCausalLM"),
        (GptOssConfig(**SMALL, num_local_experts=2, num_experts_per_tok=1), "GptOssForCausalLM"),
    ],
    ids=["gemma2", "gpt-oss"],
)
def test_load_model__attention_that_proofs_cannot_use__raises_unsupported_model(
    tmp_path: Path, config: Any, kind: str
) -> None:
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    with pytest.raises(OperatorError, match=f"unsupported_model: {kind} has an attention"):
        load_model(tmp_path, "float32")
