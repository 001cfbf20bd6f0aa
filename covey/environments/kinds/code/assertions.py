"""Checks tests by assertion before a program runs: what they call, and whether a program could ever pass them.

Nothing is executed here. Tests that would fail every program are refused, such as those with a name that nothing
defines. So are those that would pass every program, because nothing in them is ever asserted.
"""

import ast
import builtins
import importlib
import symtable
import sys
from collections.abc import Iterator, Sequence
from typing import TypeGuard

from covey.environments.base import JsonObject
from covey.environments.kinds.code.program_code import USUAL
from covey.environments.kinds.code.program_values import TYPES

SOLUTION = "solution"
"""Module from which tests may import what the program defines."""
_GIVEN = {*dir(builtins), "__name__", "__file__", "__doc__"}
_PRELOADED = {name for names in USUAL.values() for name in names}
_SPREAD = {
    *USUAL,
    "copy",
    "dataclasses",
    "datetime",
    "decimal",
    "enum",
    "fractions",
    "operator",
    "statistics",
    "unittest",
}
"""Modules of which tests may import all names."""
_HIDDEN = {"mock", "redirect_stdout", "redirect_stderr", "stdout", "stderr", "stdin", "patch", "getsource"}
"""Names with which tests look into the program's process, where they cannot reach."""

_FUNCTIONS = {name for name, value in vars(builtins).items() if callable(value)} - {*TYPES}
"""Builtins that cannot be passed to a program."""
_FATAL = {"SystemExit", "KeyboardInterrupt", "GeneratorExit", "MemoryError"}
"""Exceptions that end a program, so its tests cannot see them."""
_DISPLAYS = (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp)


def read_assertions(source: str, *, entry_point: str = "", names: Sequence[str] = (), prelude: str = "") -> JsonObject:
    """Check tests, and return {"assertions": source, "names": [...], "prelude": prelude}.

    `entry_point` names the function that the tests call, also as the parameter of their function `check`. Without it
    and `names`, the program must define every name that the tests use and do not define. Raises ValueError if no
    program or every program would pass.
    """
    trees = {"prelude": _parse("the prelude", prelude), "tests": _parse("the tests", source)}
    tests = trees["tests"]
    if any(not isinstance(name, str) or not name.isidentifier() for name in names):
        raise ValueError("names contains a string that is not a valid function name")
    if _defines(tests, "check") and not _calls(tests, "check"):
        if not entry_point:
            raise ValueError("the tests define check(candidate), but there is no entry_point")
        source = f"{source}\n\ncheck({entry_point})\n"
        tests = _parse("the tests", source)
    _require_reachable([trees["prelude"], tests])
    _require_asserting(tests)
    wanted = {*names, *([entry_point] if entry_point else []), *_list_imported(tests)}
    missing = _list_undefined(prelude, source, tests) - wanted
    modules = _list_modules(tests, missing)
    if modules:  # some tests rely on the program's imports
        source = "\n".join([*(f"import {name}" for name in sorted(modules)), source])
        missing = missing - modules
    if not wanted:
        wanted = _choose_names(tests, missing)
    missing = missing - wanted - _PRELOADED
    if missing:
        raise ValueError(f"the tests use the name {min(missing)!r:.60}, which nothing defines")
    if not wanted:
        raise ValueError("the tests call nothing that the program defines")
    _require_data(tests, wanted)
    return {"assertions": source, "names": [*sorted(wanted)], "prelude": prelude}


def _choose_names(tests: ast.Module, missing: set[str]) -> set[str]:
    """Return the names that the program must define, of those that tests use and nothing defines.

    Names that are preloaded, or builtin, are meant to be the program's only if there are no others.
    """
    if missing:
        return missing if missing <= _PRELOADED else missing - _PRELOADED
    calls = [node.func for node in ast.walk(tests) if isinstance(node, ast.Call)]
    called = {function.id for function in calls if isinstance(function, ast.Name)}
    return called if len(called) == 1 and called <= _GIVEN else set()


def _list_modules(tests: ast.Module, missing: set[str]) -> set[str]:
    """Return those undefined names that tests use as a module of the standard library, such as `sys` in `sys.x`."""
    names = [node for node in ast.walk(tests) if isinstance(node, ast.Name)]
    owners = [node.value for node in ast.walk(tests) if isinstance(node, ast.Attribute)]
    used_alone = {node.id for node in names if node not in owners}
    return missing.intersection(sys.stdlib_module_names) - used_alone


def is_source(text: str) -> bool:
    """Return whether a string is the source of a Python module."""
    try:
        _parse("the string", text)
    except ValueError:
        return False
    return True


def _parse(name: str, source: str) -> ast.Module:
    try:
        source.encode()
        return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"{name} cannot be compiled: {error!s:.100}") from error


def _defines(tests: ast.Module, name: str) -> bool:
    return any(isinstance(node, ast.FunctionDef) and node.name == name for node in tests.body)


def _calls(tests: ast.Module, name: str) -> bool:
    calls = [node for part in tests.body if _runs(part) for node in ast.walk(part) if isinstance(node, ast.Call)]
    return any(isinstance(call.func, ast.Name) and call.func.id == name for call in calls)


def _runs(statement: ast.stmt) -> bool:
    """Return whether a statement of a module runs when the module does, and not only what it defines."""
    return not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and not _is_main(statement)


def _is_main(statement: ast.stmt) -> bool:
    """Return whether this is a block `if __name__ == "__main__"`, which does not run in tests."""
    return isinstance(statement, ast.If) and "__name__" in ast.unparse(statement.test)


def _list_cases(tests: ast.Module) -> Iterator[ast.AST]:
    """Yield the test methods of test cases, and functions called `test_...`.

    Raises ValueError for tests that would not run.
    """
    bases = {part.name: [ast.unparse(base) for base in part.bases] for part in tests.body if _is_class(part)}
    for node in ast.walk(tests):
        if isinstance(node, ast.ImportFrom) and node.module == "unittest":
            bases |= {name.asname: [name.name] for name in node.names if name.asname is not None}
    for part in tests.body:
        if isinstance(part, ast.FunctionDef) and part.name.startswith("test_"):
            if part.args.args or part.args.kwonlyargs or part.decorator_list:
                raise ValueError(f"the test {part.name} has parameters or decorators, which only pytest would fill")
            yield part
        elif isinstance(part, ast.AsyncFunctionDef) and part.name.startswith("test"):
            raise ValueError(f"the test {part.name} is asynchronous, which only a plugin of pytest would run")
        elif isinstance(part, ast.ClassDef):
            kinds, left = set[str](), [part.name]
            while left:
                kinds.add(left[-1])
                left += [base for base in bases.get(left.pop(), []) if base not in kinds]
            methods = [node for node in part.body if _is_function(node) and node.name.startswith("test")]
            if methods and not any("TestCase" in kind for kind in kinds - {part.name}):
                raise ValueError(f"the test class {part.name} is not a unittest.TestCase")
            if not any("Async" in kind for kind in kinds):
                for method in methods:
                    if isinstance(method, ast.AsyncFunctionDef):
                        raise ValueError(f"the test {method.name} is asynchronous, but {part.name} would not run it")
            yield from methods


def _is_class(node: ast.AST) -> TypeGuard[ast.ClassDef]:
    return isinstance(node, ast.ClassDef)


def _is_function(node: ast.AST) -> TypeGuard[ast.FunctionDef | ast.AsyncFunctionDef]:
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)


def _require_asserting(tests: ast.Module) -> None:
    """Raise ValueError unless something that runs asserts what a program could fail."""
    left: list[ast.AST] = [*_list_cases(tests), *(part for part in tests.body if _runs(part))]
    functions: dict[str, list[ast.AST]] = {}
    for node in ast.walk(tests):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            functions.setdefault(node.name, []).append(node)
    while left:
        for node in _walk_run(left.pop()):
            if _asserts(node):
                return
            if isinstance(node, ast.Name | ast.Attribute):
                left += functions.pop(node.id if isinstance(node, ast.Name) else node.attr, [])
    raise ValueError("the tests assert nothing")


def _walk_run(part: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a function or statement, without the bodies of functions that are only defined in it."""
    left = [part]
    while left:
        node = left.pop()
        yield node
        if isinstance(node, ast.If | ast.While) and isinstance(node.test, ast.Constant) and not node.test.value:
            left += node.orelse
            continue
        children = [*ast.iter_child_nodes(node)]
        left += [child for child in children if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)]


def _asserts(node: ast.AST) -> bool:
    """Return whether a node asserts something that is not the same for every program."""
    if isinstance(node, ast.Assert):
        is_true = isinstance(node.test, ast.Tuple) and node.test.elts
        return not is_true and (_varies(node.test) or (isinstance(node.test, ast.Constant) and not node.test.value))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        is_checking = node.func.attr.startswith(("assert", "fail"))
        given = [*node.args, *(keyword.value for keyword in node.keywords)]
        return is_checking and (node.func.attr == "fail" or any(map(_varies, given)))
    return isinstance(node, ast.Raise) and "AssertionError" in ast.unparse(node)


def _varies(expression: ast.AST) -> bool:
    return any(isinstance(part, ast.Name) for part in ast.walk(expression))


def _require_reachable(trees: Sequence[ast.Module]) -> None:
    """Raise ValueError if the source needs what its process lacks, such as a package or the program's output."""
    for node in (node for tree in trees for node in ast.walk(tree)):
        modules = [name.name for name in node.names] if isinstance(node, ast.Import) else []
        modules += [node.module or "."] if isinstance(node, ast.ImportFrom) else []
        for module in modules:
            if module.partition(".")[0] not in {*sys.stdlib_module_names, SOLUTION}:
                raise ValueError(f"the tests import {module!r:.60}, but have only the standard library")
        named = [name.name for name in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
        named += [node.attr] if isinstance(node, ast.Attribute) else []
        for name in _HIDDEN.intersection(part for text in named + modules for part in text.split(".")):
            raise ValueError(f"the tests use {name!r}, but can only call the program and see what it returns")
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "unittest.main" and node in _list_unguarded(trees):
            raise ValueError('the tests call unittest.main() outside a block `if __name__ == "__main__"`')


def _require_data(tests: ast.Module, wanted: set[str]) -> None:
    """Raise ValueError if tests need more of the program than data, such as a function passed to it.

    `wanted` has the names that the program must define. Those in capitals are taken for classes.
    """
    ours = {node.name for node in ast.walk(tests) if _is_function(node) or _is_class(node)}
    called = wanted | {
        node.args.args[0].arg
        for node in tests.body
        if isinstance(node, ast.FunctionDef) and node.name == "check" and len(node.args.args) == 1
    }
    for node in ast.walk(tests):
        if isinstance(node, ast.Call) and _is_name(node.func, called):
            for given in [*node.args, *(keyword.value for keyword in node.keywords)]:
                if isinstance(given, ast.Lambda) or _is_name(given, (ours | _FUNCTIONS) - wanted):
                    raise ValueError(f"the tests pass {ast.unparse(given)!r:.60} to the program, but only data can be")
        for needed in _list_needed(node, called):
            raise ValueError(f"the tests use {ast.unparse(needed)!r:.60}, but see only data of the program")
    for scope in [tests, *filter(_is_function, ast.walk(tests))]:
        _require_no_change(scope.body, called)


def _list_needed(node: ast.AST, called: set[str]) -> Iterator[ast.AST]:
    """Yield the parts of a node that need the program's own classes, operators or coroutines in the tests' process."""
    classes = {name for name in called if name[:1].isupper()}
    if _is_function(node) or _is_class(node):
        yield from (part for part in node.decorator_list if _is_name(_strip_call(part), called))
    elif isinstance(node, ast.Await):
        yield from (part for part in [node.value] if _calls_any(part, called))
    elif isinstance(node, ast.With | ast.AsyncWith):
        yield from (item.context_expr for item in node.items if _calls_any(item.context_expr, called))
    elif isinstance(node, ast.Attribute) and node.attr.startswith("__") and _is_name(node.value, called):
        yield node
    elif isinstance(node, ast.ExceptHandler) and node.type is not None:
        kinds = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
        yield from (kind for kind in kinds if _is_name(kind, called) or ast.unparse(kind) in _FATAL)
    elif isinstance(node, ast.Compare) and not isinstance(node.ops[0], ast.Is | ast.IsNot):
        sides = [node.left, *node.comparators]
        yield from (sides if all(_calls_any(side, classes) for side in sides) else [])
    elif isinstance(node, ast.BinOp):
        sides = [node.left, node.right]
        yield from (sides if all(_calls_any(side, classes) for side in sides) else [])
    elif isinstance(node, ast.Call):
        function = ast.unparse(node.func)
        if function in {"asyncio.run", "asyncio.gather", "run_until_complete"}:
            yield from (given for given in node.args if _calls_any(given, called))
        elif function == "isinstance" or function.rpartition(".")[2] in {"assertIsInstance", "issubclass"}:
            yield from (given for given in node.args[1:2] if _is_name(given, called))
        elif function.rpartition(".")[2] in {"assertRaises", "assertRaisesRegex"}:
            yield from (kind for kind in node.args[:1] if _is_name(kind, called) or ast.unparse(kind) in _FATAL)


def _require_no_change(statements: list[ast.stmt], called: set[str]) -> None:
    """Raise ValueError if a call is only made for what it changes in a value of the tests, which is a copy."""
    made: dict[str, ast.AST] = {}
    changed: set[str] = set()
    for statement in statements:
        if isinstance(statement, ast.Assign):
            targets = {target.id for target in statement.targets if isinstance(target, ast.Name)}
            changed -= targets
            made |= dict.fromkeys(targets, statement.value)
        elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
            given = {node.id for node in statement.value.args if isinstance(node, ast.Name)}
            if _is_name(statement.value.func, called):
                changed |= {name for name in given if name in made and _is_plain(made[name], called)}
        if any(map(_asserts, ast.walk(statement))):
            for name in sorted(changed.intersection(n.id for n in ast.walk(statement) if isinstance(n, ast.Name))):
                raise ValueError(f"the tests read {name!r} after a call that changes it, but the program has a copy")


def _is_plain(value: ast.AST, called: set[str]) -> bool:
    """Return whether this is a new list, dictionary or set without objects of the program."""
    return isinstance(value, _DISPLAYS) and not any(_calls_any(part, called) for part in ast.walk(value))


def _is_name(node: ast.AST, names: set[str]) -> bool:
    return isinstance(node, ast.Name) and node.id in names


def _calls_any(node: ast.AST, names: set[str]) -> bool:
    return isinstance(node, ast.Call) and _is_name(node.func, names)


def _strip_call(node: ast.AST) -> ast.AST:
    return node.func if isinstance(node, ast.Call) else node


def _list_unguarded(trees: Sequence[ast.Module]) -> list[ast.AST]:
    return [node for tree in trees for part in tree.body if not _is_main(part) for node in ast.walk(part)]


def _list_imported(tests: ast.Module) -> set[str]:
    """Return the names that tests import from the program, or use of it as a module."""
    names = set()
    for node in ast.walk(tests):
        if isinstance(node, ast.ImportFrom) and node.module == SOLUTION:
            names |= {name.name for name in node.names}
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == SOLUTION:
            names.add(node.attr)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "getattr":
            match node.args:
                case [ast.Name(id=owner), ast.Constant(value=str(name)), *_] if owner == SOLUTION:
                    names.add(name)
    if "*" in names:
        raise ValueError(f"the tests import * from {SOLUTION}, which does not name what the program must define")
    return names


def _list_undefined(prelude: str, source: str, tests: ast.Module) -> set[str]:
    """Return the global names that the tests use and that neither they, the prelude nor Python define."""
    defined = set(_GIVEN)
    for text in (prelude, source):
        for table in _walk(symtable.symtable(text, "<tests>", "exec")):
            for symbol in table.get_symbols():
                is_bound = symbol.is_assigned() or symbol.is_imported() or symbol.is_namespace()
                if is_bound and (table.get_type() == "module" or symbol.is_declared_global()):
                    defined.add(symbol.get_name())
        defined |= _list_spread(text)
    used = {
        symbol.get_name()
        for table in _walk(symtable.symtable(source, "<tests>", "exec"))
        for symbol in table.get_symbols()
        if symbol.is_referenced() and (table.get_type() == "module" or symbol.is_global())
    }
    guarded = {
        node.id for part in tests.body if _is_main(part) for node in ast.walk(part) if isinstance(node, ast.Name)
    }
    outside = {
        node.id for part in tests.body if not _is_main(part) for node in ast.walk(part) if isinstance(node, ast.Name)
    }
    return used - defined - (guarded - outside)


def _walk(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    yield table
    for child in table.get_children():
        yield from _walk(child)


def _list_spread(source: str) -> set[str]:
    """Return the names that `from MODULE import *` defines. Raises ValueError unless the module is in `_SPREAD`."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and any(name.name == "*" for name in node.names):
            if node.module not in _SPREAD:
                raise ValueError(f"the tests import * from {node.module!r:.60}, so their names cannot be checked")
            module = importlib.import_module(node.module)
            names.update(getattr(module, "__all__", [name for name in dir(module) if not name.startswith("_")]))
    return names
