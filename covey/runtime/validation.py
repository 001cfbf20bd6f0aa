"""Error messages for hand-written files: missing names, and unknown names with the most similar known one."""

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, ClassVar, Protocol, get_args, runtime_checkable

from pydantic import BaseModel, ValidationError


@runtime_checkable
class HasRenamed(Protocol):
    """Base of tables whose settings have been renamed."""

    renamed: ClassVar[Mapping[str, str]]
    """New names of settings, by old name. Both are relative to the table, for example "log.level" to "log_level"."""


def explain(error: ValidationError, model: type[BaseModel]) -> str:
    """Return all errors that pydantic found, in one line.

    Example: "coordinater_url: unknown name; did you mean coordinator_url?; home: missing; pool: Input should be ...".
    """
    return "; ".join(_explain_one(model, item["type"], item["loc"], item["msg"]) for item in error.errors())


def explain_unknown(name: str, known: Iterable[str]) -> str:
    """Return a message for an unknown name, for example "min_steak: unknown name; did you mean min_stake?"."""
    near = get_close_matches(name, known, n=1, cutoff=0.6)
    return f"{name}: unknown name" + (f"; did you mean {near[0]}?" if near else "")


def _explain_one(model: type[BaseModel], kind: str, location: Sequence[int | str], message: str) -> str:
    path = ".".join(map(str, location))
    if kind == "extra_forbidden":
        table = "".join(f"{level}." for level in location[:-1])
        name, owner = str(location[-1]), _find_table(model, location[:-1])
        for above, start, old in ((model, "", path), (owner, table, name)):
            if isinstance(above, HasRenamed) and old in above.renamed:
                return f"{path}: old name; use {start}{above.renamed[old]} instead"
        return table + explain_unknown(name, [] if owner is None else owner.model_fields)
    words = "missing" if kind == "missing" else message.removeprefix("Value error, ")
    return f"{path}: {words}" if path else words


def _find_table(model: type[BaseModel], path: Sequence[int | str]) -> type[BaseModel] | None:
    """Return the class of the settings table at `path`. None if there is none."""
    for name in path:
        field = model.model_fields.get(str(name))
        tables = [] if field is None else [kind for kind in _list_types(field.annotation) if _is_table(kind)]
        if not tables:
            return None
        model = tables[0]
    return model


def _list_types(annotation: Any) -> tuple[Any, ...]:
    """Return the members of a union, or the type itself if it is not a union."""
    return get_args(annotation) or (annotation,)


def _is_table(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)
