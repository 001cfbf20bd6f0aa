"""What the process of a test runs: a program as a module, to its end or to the call of one function.

This module is loaded by the runner of programs and needs the standard library alone.
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
"""Names by module that functions may use without an import, as on the sites whose tasks they solve; so are the modules.
They are loaded once, before the first test, where a program uses them."""


class Program:
    """A program that is ready to run."""

    def __init__(self, source: str, function: str) -> None:
        """Raises SyntaxError, ValueError, RecursionError or MemoryError if the source does not compile."""
        self.function = function
        self.code: CodeType = compile(source, "<program>", "exec", dont_inherit=True)
        self._usual = find_usual(self.code)
        if function:
            import json  # noqa: F401

    def call(self, given: bytes) -> bytes:
        """What the function returns for arguments in JSON, in JSON."""
        import json

        arguments = json.loads(given)
        module = self._start("solution")
        module.__dict__.update(self._usual)
        exec(self.code, module.__dict__)  # noqa: S102
        owner = module if hasattr(module, self.function) else module.Solution()
        result = getattr(owner, self.function)(*arguments)
        return json.dumps(convert_plain(result), allow_nan=False).encode()

    def print(self) -> int:
        """Run the program to its end; its exit status."""
        module = self._start("__main__")
        status = 0
        try:
            exec(self.code, module.__dict__)  # noqa: S102
        except SystemExit as end:
            # As the interpreter does: None is 0, an integer is itself, anything else 1.
            status = 0 if end.code is None else end.code & 0xFF if type(end.code) is int else 1
        _leave(module)
        return status

    def _start(self, name: str) -> ModuleType:
        import builtins

        builtins.exit = builtins.quit = sys.exit  # type: ignore[assignment]  # which the module site would add
        if "random" in self._usual:
            self._usual["random"].seed(0)  # type: ignore[attr-defined]  # a grade is the same on every machine
        module = sys.modules[name] = ModuleType(name)
        return module


def find_usual(code: CodeType) -> dict[str, object]:
    """What `_USUAL` has of the names that a program uses; nothing else is imported."""
    used, left = set(code.co_names), [code]
    while left:
        inner = [value for value in left.pop().co_consts if isinstance(value, CodeType)]
        used.update(name for each in inner for name in each.co_names)
        left += inner
    values: dict[str, object] = {}
    for module, names in _USUAL.items():
        if module in used:
            values[module] = __import__(module)
        values |= {name: getattr(__import__(module), name) for name in used.intersection(names) - {module}}
    return values


def convert_plain(value: object) -> object:
    """The value in exactly the types of JSON, tuples as lists; raise TypeError for any other type, subclasses too."""
    kind = type(value)
    if value is None or kind in {bool, int, float, str}:
        return value
    if kind is list or kind is tuple:
        return [convert_plain(each) for each in value]  # type: ignore[attr-defined]
    if kind is not dict:
        raise TypeError(kind)
    converted: dict[str, object] = {}
    for key, each in value.items():  # type: ignore[attr-defined]
        if type(key) is not str and type(key) is not int:
            raise TypeError(type(key))
        if str(key) in converted:
            raise TypeError("two keys that are the same in JSON")
        converted[str(key)] = convert_plain(each)
    return converted


def _leave(module: ModuleType) -> None:
    """End a program as the interpreter does: its threads, its exit handlers, its files."""
    import atexit

    if "threading" in sys.modules:
        sys.modules["threading"]._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.__stdout__):
        if stream is not None and not stream.closed:
            stream.flush()
    module.__dict__.clear()  # closes files that it has left open
