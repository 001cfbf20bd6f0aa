"""Runs a program as a module inside the process of a test: either to its end, or to call one of its functions.

The program runner imports this module, so it uses only the standard library.
"""

from __future__ import annotations

import sys
from types import CodeType, ModuleType

_USUAL = {
    "bisect": ("bisect", "bisect_left", "bisect_right", "insort"),
    "collections": ("Counter", "OrderedDict", "defaultdict", "deque", "namedtuple"),
    "functools": ("cache", "cmp_to_key", "lru_cache", "reduce"),
    "heapq": ("heapify", "heappop", "heappush", "heappushpop", "heapreplace", "nlargest", "nsmallest"),
    "itertools": ("accumulate", "chain", "combinations", "groupby", "pairwise", "permutations", "product"),
    "math": ("ceil", "comb", "factorial", "floor", "gcd", "inf", "isqrt", "lcm", "log2", "sqrt"),
    "random": ("randint",),
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
    """A compiled program that is ready to run."""

    def __init__(self, source: str, function: str) -> None:
        """Compile the source. `function` names the function to call, or is empty for a program that prints.

        Raises SyntaxError, ValueError, RecursionError or MemoryError if the source does not compile.
        """
        self.function = function
        self.code: CodeType = compile(source, "<program>", "exec", dont_inherit=True)
        self._usual = find_usual(self.code)
        if function:
            import json  # noqa: F401

    def call(self, given: bytes) -> bytes:
        """Call the function with arguments given as a JSON list, and return its result as JSON."""
        import json

        arguments = json.loads(given)
        module = self._start("solution")
        module.__dict__.update(self._usual)
        exec(self.code, module.__dict__)  # noqa: S102
        owner = module if hasattr(module, self.function) else module.Solution()
        result = getattr(owner, self.function)(*arguments)
        return json.dumps(convert_plain(result), allow_nan=False).encode()

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
        if "random" in self._usual:
            self._usual["random"].seed(0)  # type: ignore[attr-defined]  # a grade must be the same on every machine
        module = sys.modules[name] = ModuleType(name)
        return module


def find_usual(code: CodeType) -> dict[str, object]:
    """Return the objects that a program uses under names in `_USUAL`, by name. No other module is imported."""
    used, left = set(code.co_names), [code]
    while left:
        nested = [value for value in left.pop().co_consts if isinstance(value, CodeType)]
        used.update(name for block in nested for name in block.co_names)
        left += nested
    values: dict[str, object] = {}
    for module, names in _USUAL.items():
        if module in used:
            values[module] = __import__(module)
        values |= {name: getattr(__import__(module), name) for name in used.intersection(names) - {module}}
    return values


def convert_plain(value: object) -> object:
    """Convert a value to plain JSON types. Tuples become lists.

    Raises TypeError for any other type, including subclasses of the JSON types.
    """
    kind = type(value)
    if value is None or kind in {bool, int, float, str}:
        return value
    if kind is list or kind is tuple:
        return [convert_plain(item) for item in value]  # type: ignore[attr-defined]
    if kind is not dict:
        raise TypeError(kind)
    converted: dict[str, object] = {}
    for key, item in value.items():  # type: ignore[attr-defined]
        if type(key) is not str and type(key) is not int:
            raise TypeError(type(key))
        if str(key) in converted:
            raise TypeError("an object has two keys that are equal in JSON")
        converted[str(key)] = convert_plain(item)
    return converted


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
