"""Runs a program, or assertions about one, as a module inside the process of a test.

The program runner imports this module, so it uses only the standard library.
"""

from __future__ import annotations

import sys
from types import CodeType, ModuleType

from covey.environments.kinds.code.program_frames import write_all

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

USUAL = {
    "bisect": ("bisect", "bisect_left", "bisect_right", "insort"),
    "collections": ("Counter", "OrderedDict", "defaultdict", "deque", "namedtuple"),
    "functools": ("cache", "cmp_to_key", "lru_cache", "reduce"),
    "heapq": ("heapify", "heappop", "heappush", "heappushpop", "heapreplace", "nlargest", "nsmallest"),
    "itertools": ("accumulate", "chain", "combinations", "groupby", "pairwise", "permutations", "product"),
    "math": ("ceil", "comb", "factorial", "floor", "gcd", "inf", "isqrt", "lcm", "log2", "sqrt"),
    "random": ("randint",),
    "covey.environments.kinds.code.program_values": ("ListNode", "TreeNode"),
    "re": (),
    "string": ("ascii_lowercase", "ascii_uppercase"),
    "typing": (
        "Any",
        "Callable",
        "DefaultDict",
        "Deque",
        "Dict",
        "Iterable",
        "List",
        "Optional",
        "Set",
        "Tuple",
        "Union",
    ),
}
"""Names, by module, that a called function may use without an import, as on the websites that the tasks come
from. The module itself may also be used. Those that a program uses are imported once, before the first
test.
"""


class Program:
    """A compiled program, or compiled assertions about one, ready to run."""

    def __init__(self, source: str, how: str) -> None:
        """Compile the source. `how` says how to run it, by one word:

        - "print": as a program, which reads standard input and prints.
        - "call NAME": to call one function.
        - "serve": as a program, whose functions assertions in a different process call.
        - "assert": as these assertions.

        Raises SyntaxError, ValueError, RecursionError or MemoryError if the source does not compile.
        """
        self._source = source
        self._how, _, self._function = how.partition(" ")
        self.prints = self._how == "print"
        self.code: CodeType = compile(source, "<program>", "exec", dont_inherit=True)
        self._usual = find_usual(self.code)
        if not self.prints:
            import json  # noqa: F401

            from covey.environments.kinds.code import program_values  # noqa: F401
        if self._how in {"serve", "assert"}:
            from covey.environments.kinds.code import assertion_code  # noqa: F401

    def run(self, given: bytes, descriptor: int, *, max_bytes: int) -> int:
        """Run one test with its input. Results and questions go through `descriptor`. Return the exit status.

        `max_bytes` limits one answer to an assertion. Any exception means that the test has failed.
        """
        if self.prints:
            return self.print()
        if self._how == "call":
            write_all(descriptor, self.call(given))
        elif self._how == "serve":
            self.serve(given, descriptor)
        else:
            self.check(given, descriptor, max_bytes=max_bytes)
        return 0

    def call(self, given: bytes) -> bytes:
        """Call the function with arguments given as a JSON list, and return its result as JSON."""
        import json

        from covey.environments.kinds.code.program_values import convert_plain

        arguments = json.loads(given)
        module = self._start("solution")
        module.__dict__.update(self._usual)
        exec(self.code, module.__dict__)  # noqa: S102
        function = find_defined(module, self._function, self._source)
        types = find_node_types(function)
        result = function(*convert_arguments(arguments, types, vars(module)))
        if result is None and types.get("return"):
            result = []  # the empty list or tree
        return json.dumps(convert_plain(result), allow_nan=False).encode()

    def serve(self, prelude: bytes, channel: int) -> None:
        """Run the program after a prelude, and answer its assertions. Names that the prelude defines are no answer."""
        from covey.environments.kinds.code.assertion_code import serve_program

        before = ModuleType("prelude")
        exec(compile(prelude, "<prelude>", "exec", dont_inherit=True), before.__dict__)  # noqa: S102
        module = self._start("solution")
        inherited = {name: value for name, value in vars(before).items() if not name.startswith("__")}
        module.__dict__.update(self._usual | inherited)
        exec(self.code, module.__dict__)  # noqa: S102
        serve_program(module, lambda name: find_defined(module, name, self._source, allows_class=True), channel)

    def check(self, given: bytes, channel: int, *, max_bytes: int) -> None:
        """Run the assertions. `given` is JSON with the prelude and the names that the program must define."""
        import json

        from covey.environments.kinds.code.assertion_code import RemoteProgram, run_assertions

        row = json.loads(given)
        module = self._start("tests")
        module.__dict__.update(self._usual)
        exec(compile(row["prelude"], "<prelude>", "exec", dont_inherit=True), module.__dict__)  # noqa: S102
        _seed_random()
        program = RemoteProgram(channel, vars(module), max_bytes=max_bytes)
        run_assertions(lambda: exec(self.code, module.__dict__), module, program, row["names"])  # noqa: S102

    def print(self) -> int:
        """Run the program to its end, and return its exit status."""
        module = self._start("__main__")
        status = 0
        try:
            exec(self.code, module.__dict__)  # noqa: S102
        except SystemExit as end:
            # As in the interpreter: None means 0, an integer means itself, anything else means 1.
            status = 0 if end.code is None else end.code & 0xFF if type(end.code) is int else 1
        _leave(module)
        return status

    def _start(self, name: str) -> ModuleType:
        import builtins

        builtins.exit = builtins.quit = sys.exit  # type: ignore[assignment]  # usually added by the module site
        _seed_random()
        module = sys.modules[name] = ModuleType(name)
        return module


def _seed_random() -> None:
    """Seed the module random if it is loaded, because a grade must be the same on every machine."""
    if "random" in sys.modules:
        sys.modules["random"].seed(0)


def find_usual(code: CodeType) -> dict[str, object]:
    """Return the objects that a program uses under names in `USUAL`, by name. No other module is imported."""
    used, left = set(code.co_names), [code]
    while left:
        nested = [value for value in left.pop().co_consts if isinstance(value, CodeType)]
        used.update(name for block in nested for name in block.co_names)
        left += nested
    values: dict[str, object] = {}
    for module, names in USUAL.items():
        if used.isdisjoint({module, *names}):
            continue
        __import__(module)
        loaded = sys.modules[module]
        values |= {name: getattr(loaded, name) for name in used.intersection(names) - {module}}
        if module in used:
            values[module] = loaded
    return values


def find_defined(module: ModuleType, name: str, source: str, *, allows_class: bool = False) -> Callable[..., object]:
    """Return the method of class Solution, or else the function, that the program itself defines under a name.

    Imported names, and aliases of what is builtin or preloaded under the same name, do not count, because the program
    has not written them. `source` is the program. With `allows_class`, a class counts too. Raises LookupError if the
    program defines no such thing.
    """
    solution, value = vars(module).get("Solution"), vars(module).get(name)
    is_class = isinstance(solution, type)
    if is_defined(solution, module) and (hasattr(solution, name) if is_class else not is_defined(value, module)):
        method = getattr(solution(), name, None)  # type: ignore[misc]
        if is_defined(method, module) or _is_alias(method, name, source):
            return method  # type: ignore[return-value]
    if not (is_defined(value, module) or _is_alias(value, name, source)) or (
        isinstance(value, type) and not allows_class
    ):
        raise LookupError(name)
    return value  # type: ignore[return-value]


def is_defined(value: object, module: ModuleType) -> bool:
    """Return whether a program's module has defined this function, class or callable object.

    A decorated or partial function counts as the function that it wraps.
    """
    if type(value).__name__ == "partial":
        value = getattr(value, "func", None)
    return callable(value) and getattr(value, "__module__", None) == module.__name__


def _is_alias(value: object, name: str, source: str) -> bool:
    """Return whether a program has chosen a function of the library for a name, as in `total = sum`.

    A name that the function has itself must be assigned, and must not be builtin, preloaded or from the prelude.
    """
    if not callable(value) or isinstance(value, type):
        return False
    function = getattr(value, "func", value) if type(value).__name__ == "partial" else value
    if getattr(function, "__name__", name) != name:
        return True
    is_given = getattr(function, "__module__", None) == "prelude" or name in vars(sys.modules["builtins"])
    if is_given or any(name in names for names in USUAL.values()):
        return False
    import ast

    assigned = [node.targets for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Assign)]
    return any(isinstance(target, ast.Name) and target.id == name for targets in assigned for target in targets)


def find_node_types(function: Callable[..., object]) -> dict[str, str]:
    """Return the annotations that name ListNode or TreeNode, by parameter in order. Others are empty strings.

    The key "return" has the annotation of the result.
    """
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    inner = getattr(function, "__func__", function)
    annotations = getattr(inner, "__annotations__", {})
    code = getattr(inner, "__code__", None)
    names = code.co_varnames[: code.co_argcount] if code is not None else ()
    skipped = 1 if getattr(function, "__self__", None) is not None else 0
    texts = {name: str(annotations.get(name, "")) for name in (*names[skipped:], "return")}
    return {name: text if "ListNode" in text or "TreeNode" in text else "" for name, text in texts.items()}


def convert_arguments(arguments: list[object], types: dict[str, str], names: dict[str, object]) -> list[object]:
    """Build linked lists and trees from lists, for parameters whose annotations in `types` ask for them.

    `names` may contain the program's own classes ListNode and TreeNode.
    """
    if not any(types.values()):
        return arguments
    wanted = [text for name, text in types.items() if name != "return"]
    wanted += [""] * (len(arguments) - len(wanted))
    return [_convert_nodes(value, text, names) for value, text in zip(arguments, wanted, strict=False)]


def _convert_nodes(value: object, text: str, names: dict[str, object]) -> object:
    from covey.environments.kinds.code.program_values import build_list, build_tree

    if not text or not isinstance(value, list):
        return value
    if "list[" in text.lower():
        return [_convert_nodes(item, text[text.lower().index("list[") + 5 :], names) for item in value]
    return (build_list if "ListNode" in text else build_tree)(value, names)


def _leave(module: ModuleType) -> None:
    """Shut a program down as the interpreter does: wait for threads, run exit handlers, flush and close files."""
    import atexit

    if "threading" in sys.modules:
        sys.modules["threading"]._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.__stdout__):
        if stream is not None and not stream.closed:
            stream.flush()
    module.__dict__.clear()  # closes files that the program has left open
