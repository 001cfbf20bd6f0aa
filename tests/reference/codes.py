"""Every error code that the sources raise, found in their syntax trees, with the templates of its message and fix.

If a code, message or fix is a variable, the search follows it to its assignments in the function and to the
function's callers.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("covey", "coordinator", "worker", "validator", "trainer")
CLASSES = {
    "TransientError": "wait",
    "ProtocolError": "refused",
    "SandboxError": "refused",
    "ErrorBody": "refused",
    "OperatorError": "operator",
    "BadRowError": "operator",
}
"""Who acts on an error, by its class; see `covey.errors`.

ErrorBody is a response of the coordinator's API. An import raises BadRowError again as an OperatorError that adds the
row's position.
"""

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Raise:
    """One way in which a code is raised. Placeholders of message and fix are in braces."""

    code: str
    kind: str
    message: str
    fix: str = ""
    status: int = 0
    """HTTP status that the call specifies. 0 if none."""

    @property
    def is_quoted(self) -> bool:
        """Whether the message consists of a single value."""
        return self.message.startswith("{") and self.message.find("}") == len(self.message) - 1


@dataclass(frozen=True, slots=True)
class Place:
    """A node of a module's syntax tree, with the functions around it, innermost first."""

    module: ast.Module
    functions: tuple[Function, ...]


@cache
def find_raises() -> tuple[tuple[Raise, ...], tuple[str, ...]]:
    """Return every raise, and the files that pass on codes raised elsewhere."""
    raises: set[Raise] = set()
    passing: list[str] = []
    for path in sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        module = ast.parse(path.read_text())
        for node, place in _list_nodes(module):
            found = _read(node, place)
            if found is not None:
                raises.update(found)
                passing += [] if found else [str(path.relative_to(ROOT))]
    return tuple(sorted(raises)), tuple(passing)


@cache
def _list_nodes(module: ast.Module) -> tuple[tuple[ast.AST, Place], ...]:
    return tuple(_walk(module, Place(module, ())))


def _walk(node: ast.AST, place: Place, base: str = "") -> Iterator[tuple[ast.AST, Place]]:
    """Yield every node with its place. `super().__init__` of a subclass is yielded as a call of its base."""
    if isinstance(node, ast.ClassDef):
        base = next((_spell(each) for each in node.bases if _spell(each) in CLASSES), "")
    if base and isinstance(node, ast.Call) and ast.unparse(node.func) == "super().__init__":
        node.func = ast.Name(base)
    yield node, place
    inner = Place(place.module, (node, *place.functions)) if isinstance(node, Function) else place
    for child in ast.iter_child_nodes(node):
        yield from _walk(child, inner, base)


def _read(node: ast.AST, place: Place) -> list[Raise] | None:
    """Return the errors that a node creates. None if it creates no error; an empty list if it passes on a code."""
    match node:
        case ast.Call(func=func, args=args, keywords=keywords) if _spell(func) in CLASSES:
            values = dict(zip(("code", "message"), args, strict=False)) | {k.arg: k.value for k in keywords if k.arg}
            kind = CLASSES[_spell(func)]
        case ast.Call(args=[ast.Dict(keys=[ast.Constant(value="code"), *_]) as body, *rest], keywords=keywords):
            # The body of an HTTP error: JSONResponse({"code": ..., "message": ...}, status_code=503), or
            # json.dumps({"code": code, "message": message}) in a function with the parameter status.
            values = {key.value: value for key, value in zip(body.keys, body.values, strict=True)}
            statuses = [keyword.value for keyword in keywords if keyword.arg == "status_code"]
            values["status"] = next(iter([*statuses, *rest]), ast.Name("status"))
            kind = ""
        case _:
            return None
    return [
        Raise(
            code=code,
            kind=kind or ("wait" if status == 503 else "refused"),
            message=message,
            fix=fix.removesuffix("."),
            status=status,
        )
        for call in _list_calls({name: (value, place) for name, value in values.items()})
        for status in [_get_number(call["status"][0]) if "status" in call else 0]
        for code in _resolve(*call["code"])
        if "{" not in code
        for message in _resolve(*call["message"])
        for fix in (_resolve(*call["fix"]) if "fix" in call else [""])
    ]


def _get_number(node: ast.expr) -> int:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, int) else 0


Values = dict[str, tuple[ast.expr, Place]]
"""Expressions by the name of an error's parameter, each with the place whose variables it uses."""


def _list_calls(values: Values) -> Iterator[Values]:
    """Return one error per caller if the code is a parameter of a function, each with the caller's values."""
    code, place = values["code"]
    for function in place.functions:
        if isinstance(code, ast.Name) and code.id in _list_parameters(function):
            for given, around in _find_callers(function, place.module):
                if code.id in given:
                    called = {
                        name: (given[value.id], around)
                        if isinstance(value, ast.Name) and value.id in given
                        else (value, inner)
                        for name, (value, inner) in values.items()
                    }
                    yield from _list_calls(called)
            return
    yield values


def _resolve(node: ast.expr, place: Place) -> list[str]:
    """Return every string that an expression can evaluate to, as templates."""
    match node:
        case ast.Constant(value=str(text)):
            return [text]
        case ast.JoinedStr(values=parts):
            return ["".join(p.value if isinstance(p, ast.Constant) else f"{{{_name(p.value)}}}" for p in parts)]
        case ast.IfExp(body=body, orelse=other):
            return [*_resolve(body, place), *_resolve(other, place)]
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return [a + b for a in _resolve(left, place) for b in _resolve(right, place)]
        case ast.Dict(values=values):
            return [text for value in values for text in _resolve(value, place)]
        case ast.Call(func=ast.Attribute(value=table, attr="get"), args=[_, default]):
            return [*_resolve(table, place), *_resolve(default, place)]
        case ast.Name(id=name):
            return list(dict.fromkeys(_resolve_name(name, place))) or [f"{{{name}}}"]
    return [f"{{{_name(node)}}}"]


def _resolve_name(name: str, place: Place) -> Iterator[str]:
    for depth, function in enumerate(place.functions):
        around = Place(place.module, place.functions[depth:])
        for node in ast.walk(function):
            match node:
                case ast.Assign(targets=[ast.Name(id=target)], value=value) if target == name:
                    yield from _resolve(value, around)
        if name in _list_parameters(function):
            for given, caller in _find_callers(function, place.module):
                if name in given:
                    yield from _resolve(given[name], caller)
            return


def _list_parameters(function: Function) -> list[str]:
    arguments = function.args
    return [each.arg for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]


def _find_callers(function: Function, module: ast.Module) -> Iterator[tuple[dict[str, ast.expr], Place]]:
    """Return the arguments of every call in the same module, by name."""
    names = [name for name in _list_parameters(function) if name != "self"]
    for node, place in _list_nodes(module):
        if isinstance(node, ast.Call) and _spell(node.func) == function.name and function not in place.functions:
            given = dict(zip(names, node.args, strict=False))
            yield given | {keyword.arg: keyword.value for keyword in node.keywords if keyword.arg}, place


def _spell(node: ast.expr) -> str:
    """Return the last component of a dotted name."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _name(node: ast.AST) -> str:
    """Return one word for a value in a message."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name.strip("_").lower()
        case ast.Call(args=[*_, last]):
            return _name(last)
        case ast.Call(func=inner) | ast.Subscript(value=inner) | ast.IfExp(body=inner) | ast.UnaryOp(operand=inner):
            return _name(inner)
        case ast.BinOp(left=ast.Constant(), right=inner) | ast.BinOp(left=inner):
            return _name(inner)
        case ast.GeneratorExp(generators=[ast.comprehension(iter=inner), *_]):
            return _name(inner)
    return "value"
