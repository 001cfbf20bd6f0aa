"""`covey config show`: every setting of a role or of covey train with its value, its origin and its description."""

import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from covey.console.options import ConfigFile, Json, Sets, load_settings

if TYPE_CHECKING:
    from pydantic import BaseModel

    from covey.runtime.settings import Settings

config = typer.Typer(
    help="Show the settings of coordinator, worker, validator, trainer and train.", no_args_is_help=True
)

Role = Literal["coordinator", "worker", "validator", "trainer", "train"]
ABSENT = "required, not set"
_PASSWORD = re.compile(r"(?<=://)([^/?#:@]*):.*@")
"""Matches up to the last @, because a password that is not percent-encoded can contain any character."""
_SECRET = re.compile(r"([?&][^=&]*(?:password|secret|token|key)[^=&]*=)[^&]+", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A setting and its value. Example: Setting(name="pool", value=1, origin="default", sentence="...")."""

    name: str
    value: Any
    """Value in its JSON form, with passwords masked."""
    origin: str
    """Source of the value: "default", "file NAME", "environment COVEY_NAME", "--set", or `ABSENT` for a required
    setting without a value.
    """
    sentence: str


@config.command("show")
def config_show(
    role: Annotated[
        Role,
        typer.Argument(
            help="Role whose settings are shown: coordinator, worker, validator or trainer; or train, for covey train."
        ),
    ],
    file: ConfigFile = None,
    sets: Sets = None,
    as_json: Json = False,
) -> None:
    """Show every setting of a role with its value, the source of the value, and a description.

    Passwords in URLs are masked. The command starts nothing and accepts missing required settings.

    Example: `covey config show worker --config worker.toml --set batch=32`
    """
    settings = list_settings(role, file, sets or [])
    if as_json:
        typer.echo(json.dumps({"settings": [asdict(setting) for setting in settings]}))
        return
    for setting in settings:
        value = "none" if setting.value is None else json.dumps(setting.value)
        assignment = "" if setting.origin == ABSENT else f" = {value}"
        typer.echo(f"{setting.name}{assignment}  ({setting.origin})\n    {setting.sentence}")


def get_settings_class(role: Role) -> "type[Settings]":
    from coordinator.config import CoordinatorConfig
    from covey.standalone.config import TrainConfig
    from trainer.config import TrainerConfig
    from validator.config import ValidatorConfig
    from worker.config import WorkerConfig

    classes: dict[Role, type[Settings]] = {
        "coordinator": CoordinatorConfig,
        "worker": WorkerConfig,
        "validator": ValidatorConfig,
        "trainer": TrainerConfig,
        "train": TrainConfig,
    }
    return classes[role]


def list_settings(role: Role, file: Path | None, sets: list[str]) -> list[Setting]:
    """List the settings as the role would load them.

    Raises the OperatorError that the role would raise, except for missing required settings.
    """
    kind = get_settings_class(role)
    loaded = load_settings(_let_absent(kind), file, sets)
    on_command_line = {item.partition("=")[0] for item in sets}

    def find_origin(name: str, is_set: bool, is_required: bool) -> str:
        variable = f"COVEY_{name.replace('.', '__').upper()}"
        if name in on_command_line:
            return "--set"
        if not is_set:
            return ABSENT if is_required else "default"
        return f"environment {variable}" if variable in os.environ else f"file {file}"

    return list(_describe(loaded, kind, find_origin))


def _let_absent(kind: "type[Settings]") -> "type[Settings]":
    """Return a copy of the settings class in which required settings default to None."""
    from pydantic import Field, create_model

    fields: dict[str, Any] = {
        name: (Annotated[(field.annotation, *field.metadata, Field(validate_default=False))], None)
        for name, field in kind.model_fields.items()
        if field.is_required()
    }
    return create_model(kind.__name__, __base__=kind, **fields)


def _describe(
    values: "BaseModel", kind: "type[BaseModel]", find_origin: Callable[[str, bool, bool], str], prefix: str = ""
) -> Iterator[Setting]:
    from pydantic import BaseModel
    from pydantic_core import to_jsonable_python

    from covey.console.docstrings import read_attribute_docstrings

    sentences = read_attribute_docstrings(type(values))
    for name, field in kind.model_fields.items():
        value = getattr(values, name)
        if isinstance(value, BaseModel):
            yield from _describe(value, type(value), find_origin, f"{prefix}{name}.")
        else:
            origin = find_origin(prefix + name, name in values.model_fields_set, field.is_required())
            shown = _mask(to_jsonable_python(value))
            yield Setting(name=prefix + name, value=shown, origin=origin, sentence=sentences.get(name, ""))


def _mask(value: Any) -> Any:
    """Return the value with the passwords and keys in its URLs masked."""
    if isinstance(value, list):
        return [_mask(each) for each in value]
    return _SECRET.sub(r"\1***", _PASSWORD.sub(r"\1:***@", value)) if isinstance(value, str) else value
