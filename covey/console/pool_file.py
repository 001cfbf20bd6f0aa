"""A pool's TOML file for commands that prepare it. Comments are kept, and [params] is checked.

`account.read_pool_file` also reads its terms and sets its fingerprint.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from covey.errors import OperatorError

if TYPE_CHECKING:
    from pydantic import JsonValue
    from tomlkit import TOMLDocument

    from covey.environments.base import Environment
    from covey.protocol.params import PoolParams

TABLES = ("terms", "params")


def read_document(file: Path) -> "TOMLDocument":
    """Parse the file with its comments. Raises OperatorError("no_pool_file") or OperatorError("bad_pool_file")."""
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    try:
        return tomlkit.parse(file.read_text())
    except OSError as error:
        raise OperatorError(
            "no_pool_file", f"the pool file {file} cannot be read", fix="Use an existing TOML file"
        ) from error
    except (TOMLKitError, UnicodeDecodeError) as error:
        raise OperatorError(
            "bad_pool_file", f"{file} is not valid TOML: {error}", fix=f"Correct the syntax of {file}"
        ) from error


def read_table(file: Path, document: "TOMLDocument", name: str) -> dict[str, Any]:
    """Return one of TABLES as plain values. Raises OperatorError("bad_pool_file") if it is missing."""
    values = document.unwrap().get(name)
    if not isinstance(values, dict):
        raise OperatorError("bad_pool_file", f"{file} has no table [{name}]", fix=f"Add the table [{name}] to {file}")
    return values


def build_params(file: Path, document: "TOMLDocument", changes: Mapping[str, Mapping[str, Any]]) -> "PoolParams":
    """Build the parameters from [params], with some values replaced. Raises OperatorError("bad_pool_file")."""
    from pydantic import ValidationError

    from covey.protocol.params import PoolParams
    from covey.runtime.validation import explain

    values = read_table(file, document, "params")
    for table, change in changes.items():
        current = values.get(table, {})
        values[table] = {**current, **change} if isinstance(current, dict) else current
    try:
        return PoolParams.model_validate(values)
    except ValidationError as error:
        wrong = explain(error, PoolParams)
        raise OperatorError(
            "bad_pool_file", f"the table [params] of {file} is wrong: {wrong}", fix=f"Correct {file}"
        ) from error


def write_document(file: Path, document: "TOMLDocument") -> None:
    """Replace the file. Comments and unchanged values are kept."""
    import tomlkit

    from covey.runtime.files import write_atomically

    write_atomically(file, tomlkit.dumps(document).encode())


def pin_model(params: "PoolParams", source: str | Path, *, datasets: Sequence[Path] = ()) -> "PoolParams":
    """Return `params` with the end tokens of the pool's first model and, in the format "chat", its template's hash.

    `source` is the name or folder of the model, of which only the tokenizer and the generation configuration are read.
    `datasets` are folders of the data sets that the environment uses. A line on standard error warns if the template
    ends a turn with a token that does not end a completion, as is usual for base models.

    Raises ProtocolError("policy_mismatch") if `params` contains different values, and the OperatorError of
    `require_stable_template`.
    """
    from covey.environments import registry
    from covey.environments.base import EnvironmentSpec
    from covey.model.policy_files import load_end_tokens, load_tokenizer
    from covey.model.prompts import (
        PromptFormat,
        compute_template_hash,
        find_turn_end,
        require_policy_format,
        require_stable_template,
    )
    from covey.tasks.catalog import DataSetCatalog

    tokenizer = load_tokenizer(source)
    end_tokens = load_end_tokens(source, tokenizer)
    require_policy_format(tokenizer, end_tokens, params.model)
    pinned: dict[str, object] = {"end_tokens": tuple(sorted(end_tokens))}
    if params.model.prompt_format == "chat":
        named = params.environment
        spec = EnvironmentSpec(kind=named.kind, options=named.options)
        environment = registry.load(spec, DataSetCatalog(datasets))
        require_stable_template(
            tokenizer,
            PromptFormat.of(params.model),
            has_system=_has_system_text(environment),
            unopened=environment.unopened_tags,
        )
        pinned["chat_template_hash"] = compute_template_hash(tokenizer)
        turn_end = find_turn_end(tokenizer, PromptFormat.of(params.model))
        if turn_end is not None and turn_end[1] not in end_tokens:
            typer.echo(
                f"warn: the model's chat template ends a turn with {turn_end[0]!r} (token {turn_end[1]}), which is not "
                f"in end_tokens {sorted(end_tokens)}. Answers that end with it run on to max_completion_tokens. Add "
                f"{turn_end[1]} to eos_token_id in the model's generation_config.json",
                err=True,
            )
    return params.model_copy(update={"model": params.model.model_copy(update=pinned)})


def _has_system_text(environment: "Environment") -> bool:
    """Return whether any of the first prompts has a system message.

    Prompts of remote data sets are not fetched for this.
    """
    for draw in range(64):
        mark: JsonValue = dict(environment.identify(draw))
        while isinstance(mark, dict) and isinstance(mark.get("prompt"), dict):  # the prompt of a mixture's part
            mark = mark["prompt"]
        if isinstance(mark, dict) and mark.get("system"):
            return True
    return False


def save_model(source: str, folder: Path) -> Path:
    """Save a model as the trainer publishes it. The weights are converted to bfloat16."""
    from covey.model.policy_files import load_model, load_tokenizer, save_policy

    save_policy(load_model(source, "float32"), load_tokenizer(source), folder, "bfloat16")
    return folder
