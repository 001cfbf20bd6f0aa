"""Models and their weights on disk. Engines load policies with this module, and the trainer saves them.

Weights are safetensors only, so loading runs no code. Equal weights have equal bytes, so the record hash of a
policy is reproducible.
"""

import copy
import hashlib
import json
from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast
from urllib.error import HTTPError
from urllib.request import urlopen

import torch
from huggingface_hub import constants, try_to_load_from_cache
from safetensors import SafetensorError
from safetensors.torch import save_file
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)
from transformers.utils import logging

from covey.errors import OperatorError
from covey.model.configs import CONFIG_FILE, require_attention, require_layers, require_one_meaning, require_windows
from covey.model.generation_config import read_end_tokens, save_generation
from covey.model.weight_files import require_weights
from covey.protocol.policy_record import PIECES_FILE, RECORD_FILE, WEIGHTS_FILE

DTYPES: Mapping[str, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_ORIGIN = {"is_local", "local_files_only", "name_or_path"}
"""Tokenizer settings that describe how the tokenizer was loaded."""
_HUB_SECONDS = 5.0
"""Timeout in seconds of the test whether the hub responds."""
_BROKEN = (
    OSError, RuntimeError, ValueError, KeyError, TypeError, AttributeError, ArithmeticError, SafetensorError,
)  # fmt: skip
"""Errors that transformers raises for an invalid config."""
_BROKEN_TOKENIZER = Exception
"""Error that the parser of tokenizer.json raises: a bare Exception."""


def save_policy(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: Path, dtype: str) -> None:
    """Write the files that `load_model` and `load_tokenizer` need: config, tokenizer files and weights in `dtype`.

    Files with the same names in `folder` are overwritten, and the folder is created if it is missing.
    """
    save_configuration(model, tokenizer, folder, dtype)
    _save(get_weights(model), folder / WEIGHTS_FILE, dtype)


def save_configuration(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: Path, dtype: str) -> None:
    """Write the files of a policy except its weights, which are stored in `dtype`: config and tokenizer files.

    A generation configuration is written if the model was loaded with one.
    """
    config = copy.deepcopy(model.config)
    config.dtype = _get_dtype(dtype)
    config.architectures = [type(model).__name__]
    folder.mkdir(parents=True, exist_ok=True)
    config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    _drop_origin(folder / "tokenizer_config.json")
    save_generation(model, folder)


def get_weights(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """Return the tensors of the model, sorted by name. Of tied tensors only the first is included.

    They are the live tensors, so writing into them changes the model.
    """
    names: dict[int, str] = {}
    state = model.state_dict(keep_vars=True)
    for name, tensor in state.items():
        names.setdefault(id(tensor), name)
    return {name: state[name] for name in sorted(names.values())}


def get_head(model: PreTrainedModel) -> torch.nn.Linear:
    """Return the language-model head, whose weight is [vocabulary, hidden]."""
    return cast(torch.nn.Linear, model.get_output_embeddings())  # type: ignore[no-untyped-call]


def load_config(name_or_folder: str | Path) -> PretrainedConfig:
    """Load the config of a causal language model, and check what can be checked without its weights.

    Raises OperatorError("model_unavailable") if it cannot be found or contains an adapter. Raises
    OperatorError("unsupported_model") if its attention is not `scaled_dot_product_attention`.
    """
    if (Path(name_or_folder) / "adapter_config.json").exists():
        # If peft is installed, transformers follows this file to another base model or to weights without a hash.
        raise _unavailable(name_or_folder, "it contains an adapter, which has to be merged into the weights first")
    try:
        _require_hub(str(name_or_folder))
        require_layers(Path(name_or_folder), WEIGHTS_FILE)
        config = AutoConfig.from_pretrained(str(name_or_folder), trust_remote_code=False)
    except _BROKEN as error:
        raise _unavailable(name_or_folder, str(error)) from error
    require_attention(config)
    return cast(PretrainedConfig, config)


def read_context(name_or_folder: str | Path) -> int | None:
    """Return the maximum sequence length of a model in tokens. None if its config does not limit it.

    Raises the errors of `load_config`.
    """
    context = getattr(load_config(name_or_folder).get_text_config(), "max_position_embeddings", None)
    return context if isinstance(context, int) and context > 1 else None


def load_model(name_or_folder: str | Path, dtype: str) -> PreTrainedModel:
    """Load a causal language model in evaluation mode. It computes in `dtype`, whatever the dtype in its file.

    Raises the errors of `load_config`, and OperatorError("model_unavailable") if its weights are not in safetensors.
    """
    load_config(name_or_folder)
    try:
        # Without use_safetensors, weights that are not in safetensors would be unpickled.
        with _without_progress_bar():
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                str(name_or_folder),
                dtype=_get_dtype(dtype),
                attn_implementation="sdpa",
                use_safetensors=True,
                trust_remote_code=False,
                output_loading_info=True,
            )
        require_windows(loaded[0].config)
    except _BROKEN as error:
        raise _unavailable(name_or_folder, str(error)) from error
    model, report = loaded
    if report["missing_keys"]:
        # transformers would fill the missing weights with random numbers and go on.
        raise _unavailable(name_or_folder, f"weights are missing: {sorted(report['missing_keys'])[:3]}")
    return cast(PreTrainedModel, model.train(False))


def load_tokenizer(name_or_folder: str | Path) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a model exactly as its tokenizer.json defines it.

    Raises OperatorError("model_unavailable") if it cannot be loaded, or if it has no end-of-sequence token. Without one
    no completion would end.
    """
    try:
        # AutoTokenizer goes by the model's family. With a Qwen2 it would rebuild a byte-level tokenizer with Qwen's
        # normalizer, word splitting and one token more than the model has.
        tokenizer = PreTrainedTokenizerFast.from_pretrained(str(name_or_folder))
    except _BROKEN_TOKENIZER as error:
        raise _unavailable(name_or_folder, str(error)) from error
    if not isinstance(tokenizer.eos_token_id, int):
        raise _unavailable(name_or_folder, "its tokenizer has no end-of-sequence token")
    return cast(PreTrainedTokenizerBase, tokenizer)


def load_end_tokens(name_or_folder: str | Path, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Return the ids of the tokens that end a completion, as `read_end_tokens` does.

    Raises OperatorError("model_unavailable") if the generation configuration is invalid or cannot be read.
    """
    try:
        return read_end_tokens(name_or_folder, tokenizer)
    except _BROKEN as error:
        raise _unavailable(name_or_folder, str(error)) from error


def require_vocabulary(tokenizer: PreTrainedTokenizerBase, end_tokens: Set[int], rows: int) -> None:
    """Check that a model whose head has `rows` rows has every token of the tokenizer and every end token.

    Raises OperatorError("model_unavailable") if not. An index beyond the embedding raises an exception on a CPU, but
    ends the process on a GPU.
    """
    last = max([*tokenizer.get_vocab().values(), *end_tokens])
    if last >= rows:
        raise _unavailable(
            tokenizer.name_or_path,
            f"its tokenizer has the token id {last}, but the largest token id of its model is {rows - 1}",
        )


def read_digests(folder: Path) -> Mapping[str, str]:
    """Return the digests of a downloaded policy's tensors, by name. Empty if the folder has no record."""
    try:
        rows = json.loads((folder / RECORD_FILE).read_bytes())["tensors"]
        return {str(row["name"]): str(row["digest"]) for row in rows}
    except (OSError, ValueError, KeyError, TypeError):
        return {}  # Without digests all tensors count as changed.


def find_changed(before: Mapping[str, str], after: Mapping[str, str]) -> frozenset[str] | None:
    """Return the names of the tensors whose digests differ. None means all, if either policy has no digests."""
    if not before or before.keys() != after.keys():
        return None
    return frozenset(name for name, digest in after.items() if before[name] != digest)


def require_policy(folder: Path, *, names: Set[str] | None = None) -> None:
    """Check that the weights in `folder` fit the model that its config describes, for every engine.

    No model is loaded, and one tensor is in memory at a time. Only the values of the tensors in `names` are read, if it
    is given. Raises the errors of `require_weights`, and OperatorError("model_unavailable") if the config does not
    describe a model.
    """
    try:
        require_layers(folder, WEIGHTS_FILE)
        config = AutoConfig.from_pretrained(str(folder), trust_remote_code=False)
        require_windows(config)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)  # type: ignore[no-untyped-call]
    except _BROKEN as error:
        raise _unavailable(folder, str(error)) from error
    require_one_meaning(folder, WEIGHTS_FILE, model)
    require_weights(get_weights(model), folder / WEIGHTS_FILE, names=names)


def describe_policy(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of every file that configures a policy, by relative path.

    If one of these files changes, the weights alone cannot be reloaded. The files that describe the weights do not
    count: the record and the hashes of pieces.
    """
    left_out = {WEIGHTS_FILE, RECORD_FILE, PIECES_FILE}
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name not in left_out)
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def _save(weights: Mapping[str, torch.Tensor], path: Path, dtype: str) -> None:
    target = _get_dtype(dtype)
    tensors = {name: each.detach().to("cpu", target).contiguous() for name, each in weights.items()}
    save_file(tensors, path, metadata={"format": "pt"})
    path.chmod(0o644)  # safetensors makes the file private to the user, but other processes serve policies


def _drop_origin(path: Path) -> None:
    # transformers also records how the tokenizer was loaded, which would make equal policies differ.
    settings = json.loads(path.read_text("utf-8"))
    kept = {key: value for key, value in settings.items() if key not in _ORIGIN}
    path.write_text(json.dumps(kept, indent=2, sort_keys=True, ensure_ascii=False) + "\n", "utf-8")


def _require_hub(name: str) -> None:
    """Raise OperatorError("model_unavailable") if `name` must be fetched and the hub does not respond.

    The hub's own client would retry for half a minute.
    """
    is_here = Path(name).exists() or isinstance(try_to_load_from_cache(name, CONFIG_FILE), str)
    if is_here or constants.HF_HUB_OFFLINE:
        return
    try:
        with urlopen(constants.ENDPOINT, timeout=_HUB_SECONDS):  # noqa: S310, the endpoint is not an untrusted input
            pass
    except HTTPError:
        pass  # the hub answers
    except OSError as error:
        why = f"the folder does not exist, and {constants.ENDPOINT} does not respond: {error}"
        raise _unavailable(name, why) from error


@contextmanager
def _without_progress_bar() -> Iterator[None]:
    # A progress bar would break a service's structured log. The caller's own setting is restored afterwards.
    was_enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        if was_enabled:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]


def _get_dtype(name: str) -> torch.dtype:
    if name not in DTYPES:
        raise OperatorError("bad_dtype", f"there is no data type called {name!r}", fix=f"Use one of {sorted(DTYPES)}")
    return DTYPES[name]


def _unavailable(name: str | Path, reason: str) -> OperatorError:
    return OperatorError(
        "model_unavailable",
        f"the model {name} could not be loaded: {reason}",
        fix="Use a model in safetensors format: a folder, or a repository that this machine can download",
    )
