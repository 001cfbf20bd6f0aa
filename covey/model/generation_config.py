"""The generation configuration of a model. Covey reads only its end tokens.

Policies keep its other settings, such as a temperature, but these never affect sampling.
"""

from pathlib import Path

from huggingface_hub import hf_hub_download
from huggingface_hub.errors import EntryNotFoundError
from pydantic_core import from_json
from transformers import PreTrainedModel, PreTrainedTokenizerBase

GENERATION_FILE = "generation_config.json"
MAX_BYTES = 1 << 20
"""Maximum size of generation_config.json in bytes. Real files have a few hundred bytes."""
MAX_END_TOKENS = 16
"""Maximum number of end tokens of a policy. The limit of a pool is the same."""


def read_end_tokens(name_or_folder: str | Path, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Return the ids of the tokens that end a completion.

    They are `eos_token_id` in generation_config.json, or else the tokenizer's. Raises ValueError if the file is
    invalid or does not have 1 to 16 ids, and OSError if the file cannot be read.
    """
    path = _find(name_or_folder)
    if path is not None:
        if path.stat().st_size > MAX_BYTES:
            raise ValueError(f"{GENERATION_FILE} exceeds {MAX_BYTES} bytes")
        values = from_json(path.read_bytes())
        if not isinstance(values, dict):
            raise ValueError(f"{GENERATION_FILE} is not a JSON object")
        if values.get("eos_token_id") is not None:
            return _require_ids(values["eos_token_id"])
    return _require_ids(tokenizer.eos_token_id)


def get_end_tokens(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Return the end tokens of a model in memory. They equal those of the policy that `save_generation` writes."""
    if has_generation(model) and model.generation_config.eos_token_id is not None:
        return _require_ids(model.generation_config.eos_token_id)
    return _require_ids(tokenizer.eos_token_id)


def has_generation(model: PreTrainedModel) -> bool:
    """Return whether the model was loaded from a folder with a generation configuration.

    transformers derives one from the config for every other model.
    """
    config = model.generation_config
    return config is not None and not getattr(config, "_from_model_config", False)


def save_generation(model: PreTrainedModel, folder: Path) -> None:
    """Write generation_config.json if the model has a generation configuration, and otherwise remove the file.

    The file does not contain the version of transformers, so equal configurations have equal bytes.
    """
    path = folder / GENERATION_FILE
    if not has_generation(model):
        path.unlink(missing_ok=True)
        return
    path.write_text(
        model.generation_config.to_json_string(ignore_metadata=True, keys_to_pop=["compile_config"]), "utf-8"
    )


def _find(name_or_folder: str | Path) -> Path | None:
    folder = Path(name_or_folder)
    if folder.is_dir():
        return folder / GENERATION_FILE if (folder / GENERATION_FILE).is_file() else None
    try:
        return Path(hf_hub_download(str(name_or_folder), GENERATION_FILE))
    except EntryNotFoundError:
        return None


def _require_ids(value: object) -> frozenset[int]:
    ids = value if isinstance(value, list) else [value]
    if not 1 <= len(ids) <= MAX_END_TOKENS or not all(type(each) is int and each >= 0 for each in ids):
        raise ValueError(f"eos_token_id is {str(value)[:100]}, but must be 1 to {MAX_END_TOKENS} token ids")
    return frozenset(ids)
