"""Renders chat templates so that the prompt is the same on every machine and every day.

`render_chat` renders as transformers does, but refuses everything that is not a function of its arguments:
the date, the filter `random`, `lipsum`. A step limit stops a template that would render forever. Unlike a
time limit, it is reached by the same templates on every machine. `render_json` does the same in a subprocess
that may crash.
"""

import json
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NoReturn, cast

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from covey.errors import ProtocolError

MAX_STEPS = 10_000
"""Maximum number of loop iterations and macro calls in one rendering. Real templates take fewer than a hundred."""
_FAILURES = (
    jinja2.TemplateError, TypeError, ValueError, ArithmeticError, LookupError, AttributeError, RecursionError,
    MemoryError,
)  # fmt: skip
"""Errors that a template can raise while it compiles or renders."""


class _Unstable(jinja2.TemplateRuntimeError):
    """The template used the date or a random value."""


class _Environment(ImmutableSandboxedEnvironment):
    """A Jinja sandbox in which only numbers can be multiplied.

    A power, or a string repeated a billion times, would exhaust a role's time or memory.
    """

    intercepted_binops = frozenset({"*", "**"})

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "*" and isinstance(left, int | float) and isinstance(right, int | float):
            return left * right
        raise jinja2.TemplateRuntimeError("* is only allowed between numbers, and ** is not allowed")


class _Steps(Extension):
    """A Jinja extension that counts the steps of a rendering, separately in each thread."""

    def __init__(self, environment: jinja2.Environment) -> None:
        super().__init__(environment)
        self._local = threading.local()

    def begin(self) -> None:
        """Reset the count to 0."""
        self._local.steps = 0

    def step(self) -> bool:
        """Count one step and return True. Raises TemplateRuntimeError above `MAX_STEPS`."""
        self._local.steps += 1
        if self._local.steps > MAX_STEPS:
            raise jinja2.TemplateRuntimeError(f"the rendering exceeds {MAX_STEPS} steps")
        return True

    def instrument(self, tree: nodes.Template) -> None:
        """Make each loop, each loop condition and each macro of a parsed template count its steps."""
        loops: list[nodes.For] = list(tree.find_all(nodes.For))
        blocks: list[nodes.Macro | nodes.CallBlock] = [*tree.find_all(nodes.Macro), *tree.find_all(nodes.CallBlock)]
        for block in (*loops, *blocks):
            call = self.call_method("step", lineno=block.lineno)
            block.body.insert(0, nodes.ExprStmt(call, lineno=block.lineno))
            if isinstance(block, nodes.For) and block.test is not None:
                call = self.call_method("step", lineno=block.lineno)
                block.test = nodes.And(call, block.test, lineno=block.lineno)
        tree.set_environment(self.environment)


class _Generation(Extension):
    """The tag `generation`, which marks the assistant's text. It does not affect the rendering."""

    tags = {"generation"}  # noqa: RUF012, jinja2 declares it so

    def parse(self, parser: Parser) -> nodes.Node:
        """Parse the tag's body as a block that is called in place."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("call"), [], [], body).set_lineno(line)

    def call(self, caller: Macro) -> str:
        """Render the tag's body without changing it."""
        return caller()


class _SafeNamespace(Namespace):
    """Jinja's namespace without names that begin with an underscore, which would give access to the interpreter."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        # `self` is not a parameter, because a template may name a value "self".
        self, *rest = args
        values = dict(*rest, **kwargs)
        for name in values:
            _require_public(name)
        Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _require_public(name)
        super().__setitem__(name, value)


def _require_public(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a namespace contains the private name {name!r}")


def render_chat(
    template: str, messages: Sequence[Mapping[str, str]], variables: Mapping[str, object], *, is_open: bool = True
) -> str:
    """Return the text of `messages`, followed by the opening of the assistant's turn if `is_open`.

    Each message has "role" and "content". `variables` contains the other values that the template can read, including
    the special tokens' texts.

    Raises ProtocolError("unstable_template") if the text would depend on the date or on chance, and
    ProtocolError("broken_template") if the template does not compile or render. Both errors contain the line.
    """
    try:
        environment, compiled = _compile(template)
        cast(_Steps, environment.extensions[_Steps.identifier]).begin()
        arguments = {"messages": [dict(each) for each in messages], "tools": None, "documents": None}
        return compiled.render({**variables, **arguments, "add_generation_prompt": is_open})
    except _FAILURES as error:
        code = "unstable_template" if isinstance(error, _Unstable) else "broken_template"
        raise ProtocolError(code, f"{_find_line(error)}{str(error) or type(error).__name__}") from error


def build_renderer(_: bytes) -> Callable[[bytes], bytes]:
    """Return `render_json`. A sandbox calls this factory. The argument is not used."""
    return render_json


def render_json(payload: bytes) -> bytes:
    """Render a template in a subprocess that may crash.

    `payload` is the JSON object {"template", "messages", "variables"} with the arguments of `render_chat`. Returns the
    text in UTF-8. Raises the errors of `render_chat`.
    """
    arguments = json.loads(payload)
    text = render_chat(arguments["template"], arguments["messages"], arguments["variables"])
    return text.encode("utf-8", "surrogatepass")


@lru_cache(maxsize=8)
def _compile(template: str) -> tuple[jinja2.Environment, jinja2.Template]:
    environment = _Environment(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols, _Steps])
    environment.filters["tojson"] = _to_json
    environment.filters["random"] = _refuse("the filter random")
    environment.globals["lipsum"] = _refuse("lipsum")
    environment.globals["strftime_now"] = _refuse("the date, strftime_now,")
    environment.globals["raise_exception"] = _raise
    environment.globals["dict"] = _make_dict
    environment.globals["namespace"] = _SafeNamespace
    tree = environment.parse(template)
    _require_no_chance(tree)
    cast(_Steps, environment.extensions[_Steps.identifier]).instrument(tree)
    return environment, environment.from_string(tree)


def _require_no_chance(tree: nodes.Template) -> None:
    """Raise `_Unstable` if the filter `random` is used anywhere, even where no trial rendering would reach it."""
    for node in tree.find_all(nodes.Filter):
        mapped = [each.value for each in node.args[:1] if isinstance(each, nodes.Const)]
        if node.name == "random" or (node.name == "map" and mapped == ["random"]):
            raise _Unstable(f"the filter random is used in line {node.lineno}")


def _refuse(what: str) -> Any:
    def refuse(*_: object, **__: object) -> NoReturn:
        raise _Unstable(f"{what} makes the text differ between renderings")

    return refuse


def _raise(message: object) -> NoReturn:
    raise jinja2.TemplateError(str(message))


def _make_dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    return dict(*args, **kwargs)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return the value as JSON. Nothing is escaped for HTML, because a model reads it."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _find_line(error: Exception) -> str:
    if isinstance(error, jinja2.TemplateSyntaxError):
        return f"line {error.lineno} of the chat template: "
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == "<template>"]
    return f"line {lines[-1]} of the chat template: " if lines else "the chat template: "
