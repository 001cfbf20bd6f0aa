"""Chat templates: Jinja text to prompt text, the same on every machine and every day.

`render_chat` renders as transformers does and refuses whatever is not a function of its arguments: the date, the filter
`random`, `lipsum`.  A limit on steps, not on time, ends a template that would render for ever, so that all parties
refuse the same ones.  `render_json` is the same in a process that may die.
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
"""Passes through loops and calls of macros of one rendering, at most; templates in use take fewer than a hundred."""
_FAILURES = (
    jinja2.TemplateError, TypeError, ValueError, ArithmeticError, LookupError, AttributeError, RecursionError,
    MemoryError,
)  # fmt: skip
"""What a template that compiles may raise while it renders."""


class _Unstable(jinja2.TemplateRuntimeError):
    """The template asked for the date or for chance."""


class _Environment(ImmutableSandboxedEnvironment):
    """Multiplies numbers only: a power, or a text repeated a billion times, would exhaust a role's time or memory."""

    intercepted_binops = frozenset({"*", "**"})

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "*" and isinstance(left, int | float) and isinstance(right, int | float):
            return left * right
        raise jinja2.TemplateRuntimeError("* is only allowed between numbers, and ** nowhere")


class _Steps(Extension):
    """Counts the steps of a rendering, separately in each thread."""

    def __init__(self, environment: jinja2.Environment) -> None:
        super().__init__(environment)
        self._local = threading.local()

    def begin(self) -> None:
        """Start to count at 0."""
        self._local.steps = 0

    def step(self) -> bool:
        """Count one step, and return True; raise TemplateRuntimeError for one too many."""
        self._local.steps += 1
        if self._local.steps > MAX_STEPS:
            raise jinja2.TemplateRuntimeError(f"the rendering takes more than {MAX_STEPS} steps")
        return True

    def instrument(self, tree: nodes.Template) -> None:
        """Let each loop, its condition and each macro of a parsed template count."""
        loops: list[nodes.For] = list(tree.find_all(nodes.For))
        blocks: list[nodes.Macro | nodes.CallBlock] = [*tree.find_all(nodes.Macro), *tree.find_all(nodes.CallBlock)]
        for found in (*loops, *blocks):
            call = self.call_method("step", lineno=found.lineno)
            found.body.insert(0, nodes.ExprStmt(call, lineno=found.lineno))
            if isinstance(found, nodes.For) and found.test is not None:
                call = self.call_method("step", lineno=found.lineno)
                found.test = nodes.And(call, found.test, lineno=found.lineno)
        tree.set_environment(self.environment)


class _Generation(Extension):
    """The tag `generation`, which marks what an assistant wrote: here it changes nothing."""

    tags = {"generation"}  # noqa: RUF012, jinja2 declares it so

    def parse(self, parser: Parser) -> nodes.Node:
        """Read the tag's body as a block that is called where it stands."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("call"), [], [], body).set_lineno(line)

    def call(self, caller: Macro) -> str:
        """Render the body."""
        return caller()


class _SafeNamespace(Namespace):
    """Jinja's namespace without names that begin with an underscore, which lead into the interpreter."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        # A template may name a value "self".
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
        raise jinja2.exceptions.SecurityError(f"a namespace holds no name like {name!r}")


def render_chat(template: str, messages: Sequence[Mapping[str, str]], variables: Mapping[str, object]) -> str:
    """Text of `messages`, each with "role" and "content", with the opening of the assistant's turn after them.

    `variables`: what the template may read besides, the names of special tokens among them.
    Raises ProtocolError("unstable_template") where the text would depend on the date or on chance, and
    ProtocolError("broken_template") where the template does not compile or render; both name its line.
    """
    try:
        environment, compiled = _compile(template)
        cast(_Steps, environment.extensions[_Steps.identifier]).begin()
        told = {"messages": [dict(each) for each in messages], "tools": None, "documents": None}
        return compiled.render({**variables, **told, "add_generation_prompt": True})
    except _FAILURES as error:
        code = "unstable_template" if isinstance(error, _Unstable) else "broken_template"
        raise ProtocolError(code, f"{_find_line(error)}{str(error) or type(error).__name__}") from error


def build_renderer(_: bytes) -> Callable[[bytes], bytes]:
    """Factory of `render_json` for a sandbox."""
    return render_json


def render_json(payload: bytes) -> bytes:
    """Render in a process that may die.

    In: {"template", "messages", "variables"} as `render_chat` takes them.  Out: the text in UTF-8.  Raises as it does.
    """
    order = json.loads(payload)
    return render_chat(order["template"], order["messages"], order["variables"]).encode("utf-8", "surrogatepass")


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
    """Refuse the filter `random` anywhere, also where no probe would come to it."""
    for found in tree.find_all(nodes.Filter):
        named = [each.value for each in found.args[:1] if isinstance(each, nodes.Const)]
        if found.name == "random" or (found.name == "map" and named == ["random"]):
            raise _Unstable(f"the filter random stands in line {found.lineno}")


def _refuse(what: str) -> Any:
    def refuse(*_: object, **__: object) -> NoReturn:
        raise _Unstable(f"{what} changes what is rendered")

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
    """The value as JSON for a model, not for a web page: nothing is escaped for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _find_line(error: Exception) -> str:
    if isinstance(error, jinja2.TemplateSyntaxError):
        return f"line {error.lineno} of the chat template: "
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == "<template>"]
    return f"line {lines[-1]} of the chat template: " if lines else "the chat template: "
