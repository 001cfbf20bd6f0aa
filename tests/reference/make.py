"""Pages of docs/reference, generated from the code. `make reference` writes them, and a test compares them.

settings.md and commands.md come from the docstrings of settings classes and commands, errors.md from `codes`,
metrics.md from `METRICS`, environments.md from the kinds of `registry.KINDS` and their options, and api.md from the
OpenAPI document. The table of alarms in the guide monitor.md comes from `ALARMS`.
"""

import dataclasses
import inspect
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

import typer
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined, to_jsonable_python

from coordinator.api.application import build_routes
from coordinator.pages import pages_application
from coordinator.pages.pool_alarms import ALARMS
from covey import cli
from covey.chain.structs import PoolTerms
from covey.cli.config import Role, get_settings_class
from covey.console.docstrings import read_attribute_docstrings
from covey.environments.answer_extraction import EXTRACTIONS
from covey.environments.base import TaskSource
from covey.environments.environment import SharedOptions
from covey.environments.kinds.dataset_rows import RowSource
from covey.environments.kinds.reasoning_gym.puzzle_checks import CHECKS
from covey.environments.kinds.reasoning_gym.reasoning_answers import FORMS, INTEGRATION
from covey.environments.kinds.reasoning_gym.reasoning_items import REFUSED
from covey.environments.mixture import MixtureOptions, MixturePart
from covey.environments.registry import KINDS, find_source
from covey.protocol.params import PoolParams
from tests.reference.advice import ADVICE
from tests.reference.codes import Raise, find_raises
from trainer.monitoring.metric_names import METRICS

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "reference"
NOTE = "<!-- Made by `make reference` from the code: edit that. -->"
MONITOR = FOLDER.parent / "guides" / "monitor.md"
ALARMS_MARK = "<!-- Alarms, made by `make reference` from coordinator/pages/pool_alarms.py: edit that. -->"
END_MARK = "<!-- End of the alarms. -->"
NAMES = {int: "integer", float: "number", str: "text", bool: "boolean", Path: "path"}
TERMS = {
    "quorum": None,
    "params_hash": None,
    "epoch_length": "from `epoch_seconds`",
    "header_quorum": "`quorum`",
    "token": "the deployment's",
}
"""Defaults that `covey pool create` uses. None means that the file does not have this term."""
WHO = {
    "wait": "Covey tries again by itself: what is asked may be away for a while.",
    "refused": "The request, the file or the message is refused: who made it must change it.",
    "operator": "The process stops: its operator must do what the message says.",
}


def build_pages() -> dict[str, str]:
    """Return the text of every page by file name."""
    return {
        "settings.md": build_settings(),
        "commands.md": build_commands(),
        "errors.md": build_errors(),
        "metrics.md": build_metrics(),
        "environments.md": build_environments(),
        "api.md": build_api(),
    }


def fill_alarms(guide: str) -> str:
    """Return a guide with the table of the alarms on pages between its two marks."""
    head, _, rest = guide.partition(ALARMS_MARK)
    _, _, tail = rest.partition(END_MARK)
    rows = ((f"`{code}`", kind.meaning, kind.advice) for code, kind in ALARMS.items())
    return f"{head}{ALARMS_MARK}\n\n{_table(('code', 'meaning', 'what to do'), rows)}\n{END_MARK}{tail}"


def _table(heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    cells = [heads, tuple("---" for _ in heads), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in cells) + "\n"


# Settings


def build_settings() -> str:
    parts = [
        NOTE,
        "# Settings",
        "A role reads its TOML file, then `COVEY_NAME` in the environment, then `--set NAME=VALUE`; the last one\n"
        "wins. Unknown names are refused. In environment and `--set` a list is written `a,b`. A dotted name is a key\n"
        "of a table: `--set optim.learning_rate=1e-5`, and `COVEY_OPTIM__LEARNING_RATE` in the environment.\n"
        "`covey config show ROLE` prints the values that count, and where each comes from.",
        "`covey up`, `covey pool open` and `covey worker enroll` ignore the variables of chain commands, because each\n"
        "role of a folder has values of its own: `COVEY_KEY_FILE`, `COVEY_POOL`, `COVEY_DEPLOYMENT`, `COVEY_RPC_URL`\n"
        "and `COVEY_COORDINATOR_URL`.",
    ]
    for role in get_args(Role):
        kind = get_settings_class(role)
        parts += [f"## {role}", _table(("name", "type", "default", "what it is"), _list_fields(kind))]
    parts += [
        "## A pool's [terms]",
        "The table `[terms]` of a pool's file, for `covey pool create`. The contract enforces them; they are fixed at\n"
        "creation. Amounts are in the token's smallest unit.",
        _table(("name", "type", "default", "what it is"), _list_terms()),
        "## A pool's [params]",
        "The table `[params]` of a pool's file. The chain keeps them as text with their hash; they are fixed at\n"
        "creation.",
        _table(("name", "type", "default", "what it is"), _list_fields(PoolParams)),
    ]
    return "\n\n".join(part.rstrip() for part in parts) + "\n"


def _list_fields(kind: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, str, str, str]]:
    sentences = read_attribute_docstrings(kind)
    for name, field in kind.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from _list_fields(field.annotation, f"{prefix}{name}.")
        else:
            default = field.get_default(call_default_factory=True)
            yield f"`{prefix}{name}`", _describe_field(field), _describe_default(default), sentences[name]


def _list_terms() -> Iterator[tuple[str, str, str, str]]:
    sentences = read_attribute_docstrings(PoolTerms)
    yield "`validators`", "list of text", "required", "Addresses of the validators, at least `quorum` of them."
    for field in dataclasses.fields(PoolTerms):
        default = PydanticUndefined if field.default is dataclasses.MISSING else field.default
        shown = TERMS.get(field.name, _describe_default(default))
        if shown is not None:
            yield f"`{field.name}`", _describe_type(field.type), shown, sentences[field.name]


def _describe_default(value: Any) -> str:
    if value is PydanticUndefined:
        return "required"
    return "none" if value is None else f"`{json.dumps(to_jsonable_python(value))}`"


def _describe_field(field: FieldInfo) -> str:
    bounds = _describe_bounds(field.metadata)
    return _describe_type(field.annotation) + (f", {bounds}" if bounds else "")


def _describe_type(kind: Any) -> str:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Literal:
        return ", ".join(f"`{json.dumps(each)}`" for each in arguments)
    if origin in (Union, UnionType):
        return " or ".join(_describe_type(each) for each in arguments if each is not NoneType)
    if origin is tuple:
        names = {str: "texts"}.get(arguments[0], "numbers")
        return f"list of {_describe_type(arguments[0])}" if arguments[-1] is ... else f"{len(arguments)} {names}"
    if origin is list:
        return f"list of {_describe_type(arguments[0])}"
    if origin is not None and hasattr(kind, "__metadata__"):
        return _describe_type(kind.__origin__)
    if origin is dict:
        return "table"
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return f"table of {', '.join(f'`{name}`' for name in kind.model_fields)}"
    return NAMES[getattr(kind, "__supertype__", kind)]


def _describe_bounds(metadata: Iterable[Any]) -> str:
    found = {name: getattr(each, name) for each in metadata for name in ("ge", "gt", "le", "lt") if hasattr(each, name)}
    words = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}
    return ", ".join(f"{words[name]} {value:,}" for name, value in found.items() if value is not None)


# Commands


def build_commands() -> str:
    parts = [NOTE, "# Commands", "`covey COMMAND --help` says the same. The usage shows the required options."]
    for path, command in _walk(typer.main.get_command(cli.app), ("covey",)):
        options = [each for each in command.params if each.name != "help"]
        is_group = hasattr(command, "commands")
        parts += [f"{'##' if is_group else '###'} {' '.join(path)}", _reflow(command.help)]
        parts += [] if is_group else [f"```\n{_spell_usage(path, options)}\n```"]
        if options:
            heads = ("argument or option", "default", "what it is")
            parts.append(_table(heads, map(_describe_parameter, options)))
    return "\n\n".join(part.rstrip() for part in parts) + "\n"


def _walk(command: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield path, command
    for name, child in getattr(command, "commands", {}).items():
        if not child.hidden:
            yield from _walk(child, (*path, name))


def _reflow(text: str) -> str:
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))


def _spell_usage(path: tuple[str, ...], parameters: list[Any]) -> str:
    needed = [_spell_parameter(each) for each in parameters if each.required]
    return " ".join([*path, *needed, *(["[OPTIONS]"] if any(not each.required for each in parameters) else [])])


def _spell_parameter(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return (parameter.metavar or parameter.name.upper()) + ("..." if parameter.nargs == -1 else "")
    return parameter.opts[0] if parameter.is_flag else f"{parameter.opts[0]} {_spell_value(parameter)}"


def _spell_value(parameter: Any) -> str:
    kind = parameter.type_descriptor.annotation
    if get_origin(kind) is Literal:
        return "|".join(get_args(kind))
    return NAMES[get_args(kind)[0] if get_origin(kind) is list else kind].upper()


def _describe_parameter(parameter: Any) -> tuple[str, str, str]:
    default = parameter.default
    is_shown = default is not None and not getattr(parameter, "is_flag", False)
    shown = "required" if parameter.required else f"`{default}`" if is_shown else ""
    variable = f" Environment: `{parameter.envvar}`." if parameter.envvar else ""
    return f"`{_spell_parameter(parameter)}`", shown, parameter.help + variable


# Errors


def build_errors() -> str:
    by_code: dict[str, list[Raise]] = {}
    for each in find_raises()[0]:
        by_code.setdefault(each.code, []).append(each)
    kinds = [f"- **{kind}**: {text}" for kind, text in WHO.items()]
    parts = [
        NOTE,
        "# Error codes",
        "A command prints `covey: CODE: MESSAGE` and exits with 1, or with 75 for a code that says **wait**.\n"
        "The API answers with `code`, `message` and `time`,\n"
        "its clock, and with the HTTP status of the table: 400 where the table names none, 503 for what is tried\n"
        "again. Codes are stable: scripts and peers may compare them. Words in braces are values.",
        "\n".join(kinds),
        _table(
            ("code", "who acts", "message, and what to do"),
            ((f"`{code}`", _describe_kinds(found), _describe_ways(code, found)) for code, found in by_code.items()),
        ),
    ]
    return "\n\n".join(part.rstrip() for part in parts) + "\n"


def _describe_kinds(found: list[Raise]) -> str:
    statuses = sorted({str(each.status) for each in found if each.status})
    kinds = ", ".join(dict.fromkeys(each.kind for each in found))
    return kinds + (f" ({', '.join(statuses)})" if statuses else "")


def _describe_ways(code: str, found: list[Raise]) -> str:
    """Return each distinct message with its fix. A message that only quotes another error is skipped."""
    ways = [
        " ".join([*([] if each.is_quoted else [_end(each.message)]), *([_end(each.fix)] if each.fix else [])])
        for each in found
    ]
    advice = [ADVICE[code]] if code in ADVICE else []
    return "<br>".join([*dict.fromkeys(filter(None, ways)), *advice])


def _end(text: str) -> str:
    """Return a text as one sentence on one line, without characters that Markdown would take for markup."""
    line = " ".join(text.split()).replace("*", "\\*").replace("<", "&lt;")
    return line if line.endswith((".", "?", "!")) else f"{line}."


# Metrics


def build_metrics() -> str:
    parts = [
        NOTE,
        "# Metrics",
        "A line of the trainer's `metrics.jsonl` is a JSON object with `event`, `step` and the values below. Hashes\n"
        "and names are text, and all other values are numbers.",
    ]
    for event, meanings in METRICS.items():
        rows = ((f"`{name}`", meaning) for name, meaning in meanings.items())
        parts += [f"## {event}", _table(("name", "meaning"), rows)]
    return "\n\n".join(part.rstrip() for part in parts) + "\n"


# Environments


def build_environments() -> str:
    heads = ("name", "type", "default", "what it is")
    parts = [
        NOTE,
        "# Environment options",
        "The environment of a pool sets the questions and grades the answers. A pool's file names it under\n"
        "`environment` in `[params]`: a kind and its options. They are fixed at creation. Unknown options are refused.",
        '```toml\n[params.environment]\nkind = "reasoning_gym"\n\n[params.environment.options]\n'
        'name = "gcd"\nextraction = "answer_tag"\ninstruction = "Put the answer between <answer> and </answer>."\n```',
        "## Options of every kind",
        _table(heads, _list_fields(SharedOptions)),
        "## Extractions",
        "The option `extraction` names the rule that takes the answer from what follows the thinking part. A\n"
        "completion without an answer earns nothing.",
        _table(
            ("name", "what the answer is"), ((f"`{name}`", _read_prose(rule)) for name, rule in EXTRACTIONS.items())
        ),
    ]
    for kind in sorted(KINDS):
        source = find_source(kind)
        default = f"The default of `extraction` is `{source.extraction}`."
        parts += [f"## {kind}", f"{_read_summary(source)} {default}"]
        if issubclass(source, RowSource):
            parts.append("[Bring a data set to a pool](../guides/bring-a-data-set.md) shows what its rows contain.")
        parts.append(_table(heads, _list_fields(_find_options(source))))
        parts += _describe_generators() if kind == "reasoning_gym" else []
    parts += [
        "## mixture",
        f"{_read_summary(MixtureOptions)} The options of every kind belong to its parts.",
        _table(heads, _list_fields(MixtureOptions)),
        "Each part has these options.",
        _table(heads, _list_fields(MixturePart)),
    ]
    return "\n\n".join(part.rstrip() for part in parts) + "\n"


def _describe_generators() -> list[str]:
    many = ", ".join(f"`{name}`" for name in sorted({*FORMS, *INTEGRATION}))
    own = ", ".join(f"`{name}`" for name in sorted(CHECKS))
    refused = "\n".join(f"- `{name}` {reason}." for name, reason in sorted(REFUSED.items()))
    return [
        "An answer is right if it agrees with the item's own answer, or if the generator accepts it and it consists\n"
        "of the same numbers and words. These generators accept other answers of the form that the question asks for:\n"
        f"{many}. Covey decides itself for {own}.",
        f"These generators are refused:\n\n{refused}",
    ]


def _find_options(source: type[TaskSource]) -> type[BaseModel]:
    """Return the class of a kind's own options, which the module of its source or of a base of it names."""
    for base in source.__mro__:
        names = vars(sys.modules[base.__module__])
        for name, value in names.items():
            if name.endswith("Options") and value is not SharedOptions and issubclass(value, BaseModel):
                return value
    raise LookupError(f"{source.__name__} has no class of options")


def _read_summary(subject: Any) -> str:
    return " ".join((inspect.getdoc(subject) or "").partition("\n\n")[0].split())


def _read_prose(subject: Any) -> str:
    """Return what a function returns by its docstring, on one line and without markup of Markdown."""
    text = " ".join((inspect.getdoc(subject) or "").split()).removeprefix("Return ")
    return (text[:1].upper() + text[1:]).replace("<", "&lt;").replace("*", "\\*")


# HTTP API


def build_api() -> str:
    document, public = build_routes().openapi(), pages_application.build_routes().openapi()
    for path, methods in public["paths"].items():
        document["paths"].setdefault(path, {}).update(methods)
    document["components"]["schemas"] |= public["components"]["schemas"]
    schemes = document["components"]["securitySchemes"]
    parts = [
        NOTE,
        "# HTTP API",
        "Routes of a coordinator. Its OpenAPI document is at `/openapi.json`, and no page of it loads anything from\n"
        "another server. Every error is an `ErrorBody`; [error codes](errors.md) lists the codes. A column says whose\n"
        "wallet signs a request; the other routes need no signature. Routes under *Pages* are served by\n"
        "`covey coordinator pages`, on its own port.",
        "## Signed requests",
        _table(("header", "content"), ((f"`{name}`", scheme["description"]) for name, scheme in schemes.items())),
    ]
    by_tag: dict[str, list[tuple[str, str, dict[str, Any]]]] = {}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            by_tag.setdefault(operation["tags"][0], []).append((method.upper(), path, operation))
    for tag, operations in by_tag.items():
        rows = (
            (
                f"`{method} {path}`",
                tag if "security" in operation else "",
                _name_body(operation),
                _name_answer(operation),
            )
            for method, path, operation in operations
        )
        meanings = (
            f"`{method} {path}`: {_end(operation.get('description', operation['summary']).partition(chr(10) * 2)[0])}"
            for method, path, operation in operations
        )
        parts += [
            f"## {tag.capitalize()}",
            _table(("route", "signed by", "body", "answer"), rows),
            "\n".join(f"- {line}" for line in meanings),
        ]
    parts.append("## Bodies")
    for name, schema in sorted(document["components"]["schemas"].items()):
        if "properties" in schema:
            fields = (
                (f"`{field}`", _name_schema(value), "required" if field in schema.get("required", ()) else "")
                for field, value in schema["properties"].items()
            )
            parts += [f"### {name}", _table(("field", "type", ""), fields)]
        elif "enum" in schema:
            parts += [f"### {name}", f"One of {', '.join(f'`{value}`' for value in schema['enum'])}."]
    return "\n\n".join(part.rstrip() for part in parts) + "\n"


def _name_body(operation: dict[str, Any]) -> str:
    contents = operation.get("requestBody", {}).get("content", {})
    return ", ".join(_name_schema(content.get("schema", {})) for content in contents.values())


def _name_answer(operation: dict[str, Any]) -> str:
    """Return the statuses of success with what they contain."""
    answers = []
    for status, answer in operation["responses"].items():
        if status.startswith("2"):
            kinds = ", ".join(_name_schema(content.get("schema", {})) for content in answer.get("content", {}).values())
            answers.append(f"{status} {kinds}".strip())
    return ", ".join(answers)


def _name_schema(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if kinds := schema.get("anyOf") or schema.get("oneOf"):
        return " or ".join(_name_schema(kind) for kind in kinds)
    if "items" in schema:
        return f"list of {_name_schema(schema['items'])}"
    if isinstance(more := schema.get("additionalProperties"), dict):
        return f"object of {_name_schema(more)}"
    return str(schema.get("format") or schema.get("type") or "any")


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, text in build_pages().items():
        (FOLDER / name).write_text(text)
    MONITOR.write_text(fill_alarms(MONITOR.read_text()))
