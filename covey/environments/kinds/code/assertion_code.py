"""Runs assertions about a program that is in a different process, and answers for the program in that process.

`run_assertions` executes the tests, which find a `RemoteObject` under each name that the program must define.
`serve_program` answers what these objects ask. Data crosses the border (`program_values`), and nothing else. Arguments
are copies, so a program cannot change a value of the tests. Answers agree with each other: an object that can be
iterated is copied once, and its length, items and truth are those of the copy. If the program ends or sends anything
but an answer, the process of the tests fails at once, so that no `except` in a test hides it.

The program runner imports this module, so it uses only the standard library.
"""

from __future__ import annotations

import builtins
import json
import os
import sys
from types import ModuleType

from covey.environments.kinds.code.program_frames import FRAME, read_frame, write_all
from covey.environments.kinds.code.program_values import decode, encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any


class ProgramError(Exception):
    """An exception of the program whose class is not a builtin one."""


class RemoteObject:
    """An object of the program, as the tests see it.

    It has the attributes of that object. Of the special methods it has only those that return what the program could
    have returned as data. With comparison, arithmetic, `in` or `with`, the program would decide whether a test passes.
    """

    _program: RemoteProgram
    _number: int

    def __init__(self, program: RemoteProgram, number: int) -> None:
        object.__setattr__(self, "_program", program)
        object.__setattr__(self, "_number", number)

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._program.ask("get", self, name)

    def __setattr__(self, name: str, value: object) -> None:
        self._program.ask("set", self, name, value)


def _forward(operation: str) -> Callable[..., object]:
    def ask(self: RemoteObject, /, *arguments: object, **named: object) -> object:
        return self._program.ask(operation, self, *arguments, **named)

    return ask


def _read(operation: str) -> Callable[..., object]:
    def read(self: RemoteObject, /, *arguments: object) -> object:
        return self._program.read(operation, self, *arguments)

    return read


_CHANGING = {"call", "delitem", "next", "set", "setitem"}
"""Operations after which an object may answer otherwise than before."""
for _operation in ("call", "delitem", "next", "repr", "setitem", "str"):
    setattr(RemoteObject, f"__{_operation}__", _forward(_operation))
for _operation in ("bool", "getitem", "iter", "len"):
    setattr(RemoteObject, f"__{_operation}__", _read(_operation))


class RemoteProgram:
    """The program in the process at the other end of `channel`."""

    def __init__(self, channel: int, names: Mapping[str, object], *, max_bytes: int) -> None:
        self._channel, self._names, self._max_bytes = channel, names, max_bytes
        self._objects: dict[int, RemoteObject] = {}
        self._answers: dict[bytes, bytes] = {}
        self._copies: dict[int, object] = {}
        self._uncopied: dict[int, str] = {}

    def read(self, operation: str, target: RemoteObject, /, *arguments: object) -> object:
        """Return the length, an item, an iterator or the truth of an object, such that all of them agree.

        They are those of one copy, which is kept until the tests call or change anything. An object of which there is
        no copy, such as a generator, has items in order or a length, but not both: TypeError is raised.
        """
        number = target._number
        copy = self._copies.get(number)
        if copy is None:
            copy = self.ask("copy", target, operation == "iter")
        if not isinstance(copy, list | dict):
            if copy is not None:
                raise TypeError("a copy is neither a list nor a dictionary")
            if operation != "bool":
                kind = "iter" if operation == "iter" else "len"
                if self._uncopied.setdefault(number, kind) != kind:
                    raise TypeError("the length and the items of an object of the program may differ")
            return self.ask(operation, target, *arguments)
        if self._uncopied.get(number) == "len" and len(copy) != self.ask("len", target):
            raise TypeError("the length and the items of an object of the program differ")
        self._copies[number] = copy
        if operation == "getitem":
            (key,) = arguments
            if isinstance(copy, list) and not isinstance(key, int | slice):
                return self.ask(operation, target, key)  # such as the row and column of a matrix
            return copy[key]  # type: ignore[call-overload]
        return iter(copy) if operation == "iter" else len(copy) if operation == "len" else bool(copy)

    def ask(self, operation: str, target: RemoteObject | None, /, *arguments: object, **named: object) -> object:
        """Let the program's process run an operation, and return its result.

        Raises the builtin exception that the program raised, or ProgramError if that is not a builtin one. Ends this
        process if there is no valid answer. Repeated questions have the same answer until the tests call or change
        anything.
        """
        is_answered = False
        try:
            question = {
                "do": operation,
                "on": None if target is None else self._find_number(target),
                "with": [encode(argument, self._find_number) for argument in arguments],
                "named": {name: encode(value, self._find_number) for name, value in named.items()},
            }
            data = json.dumps(question).encode()
            self._forget_after(operation)
            if data not in self._answers:
                write_all(self._channel, FRAME.pack(len(data)) + data)
                self._answers[data] = read_frame(self._channel, max_bytes=self._max_bytes) or b""
            answer = json.loads(self._answers[data])
            self._forget_after(operation)
            result, error = None, None
            if "error" in answer:
                name, text, *details = answer["error"]
                details = [decode(detail, self._find_object, self._names) for detail in details]
                error = _build_error(operation, name, text, *details)
            else:
                result = decode(answer["value"], self._find_object, self._names)
            is_answered = True
        finally:
            if not is_answered:
                os._exit(1)  # as tests that have failed
        if error is not None:
            raise error
        return result

    def _forget_after(self, operation: str) -> None:
        if operation in _CHANGING:
            self._answers.clear()
            self._copies.clear()

    def _find_number(self, value: object) -> int:
        if type(value) is not RemoteObject:
            raise TypeError("only data can be passed to a program")
        return value._number

    def _find_object(self, number: object) -> RemoteObject:
        if type(number) is not int:
            raise TypeError("the program's object has no number")
        return self._objects.setdefault(number, RemoteObject(self, number))


def _build_error(operation: str, name: str, text: str, arguments: object, filename: object) -> Exception:
    """Build an exception of the program, with its arguments if its class makes the same text of them.

    The end of an iteration is one only where it is asked for. In a `map` of the tests it would end the tests early.
    """
    kind = getattr(builtins, name)
    is_end = issubclass(kind, StopIteration | StopAsyncIteration) and operation != "next"
    if not _is_ordinary(kind) or is_end or not isinstance(arguments, tuple):
        return ProgramError(text)
    if issubclass(kind, OSError) and len(arguments) == 2 and isinstance(filename, str):
        arguments = (*arguments, filename)
    try:
        error: Exception = kind(*arguments)
        return error if str(error) == text else kind(text)
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError):
        return ProgramError(text)


def _is_ordinary(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, Exception) and not issubclass(kind, MemoryError)


def run_assertions(run: Callable[[], None], module: ModuleType, program: RemoteProgram, names: Iterable[str]) -> None:
    """Bind the names that the program defines in the module of the tests, then run all tests of the module.

    `run` executes the module. Its test cases, and functions whose names start with `test_`, run afterwards. Raises any
    exception if a test fails.
    """
    solution = sys.modules["solution"] = ModuleType("solution")
    for name in names:
        value = program.ask("find", None, name)
        if type(value) is not RemoteObject:
            raise TypeError(name)  # forged: what a program defines is no data
        setattr(solution, name, value)
        setattr(module, name, value)
    run()
    for value in [*vars(module).values()]:
        if getattr(value, "__module__", None) != module.__name__:
            continue
        if isinstance(value, type):
            _run_case(value)
        elif type(value).__name__ == "function" and value.__name__.startswith("test_"):
            value()


def _run_case(kind: type) -> None:
    unittest = sys.modules.get("unittest")
    if unittest is None or not issubclass(kind, unittest.TestCase):
        return
    result = unittest.TestResult()
    result.failfast = True
    unittest.defaultTestLoader.loadTestsFromTestCase(kind).run(result)
    if not result.wasSuccessful() or result.skipped:
        raise AssertionError(kind.__name__)


def serve_program(module: ModuleType, find: Callable[[str], object], channel: int) -> None:
    """Answer questions about a program until the channel is closed.

    `find` returns what the program defines under a name. If it raises, so does this function.
    """
    kept: list[object] = []
    numbers: dict[int, int] = {}

    def keep(value: object) -> int:
        if id(value) not in numbers:
            numbers[id(value)] = len(kept)
            kept.append(value)
        return numbers[id(value)]

    while (question := read_frame(channel)) is not None:
        asked = json.loads(question)
        with _Attempt(is_final=asked["do"] == "find") as attempt:
            arguments = [decode(item, kept.__getitem__, vars(module)) for item in asked["with"]]
            named = {name: decode(item, kept.__getitem__, vars(module)) for name, item in asked["named"].items()}
            if asked["do"] == "find":
                value = find(*arguments)
            else:
                value = _OPERATIONS[asked["do"]](kept[asked["on"]], *arguments, **named)
            answer = json.dumps({"value": encode(value, keep)})
        if attempt.error is not None:
            answer = json.dumps({"error": _describe(attempt.error, keep)})
        data = answer.encode()
        write_all(channel, FRAME.pack(len(data)) + data)


class _Attempt:
    """A block whose exception is kept in `error` and not raised, unless the block is final or the memory is used up."""

    def __init__(self, *, is_final: bool) -> None:
        self._is_final = is_final
        self.error: BaseException | None = None

    def __enter__(self) -> _Attempt:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> bool:
        if not self._is_final and _is_ordinary(kind):
            self.error = error
        return self.error is not None


def _describe(error: BaseException, keep: Callable[[object], int]) -> list[object]:
    """Return the name of the nearest builtin class of an exception, its text, its arguments and its file."""
    classes = [kind.__name__ for kind in type(error).__mro__ if getattr(builtins, kind.__name__, None) is kind]
    filename = error.filename if isinstance(error, OSError) else None
    return [classes[0], str(error), encode(error.args, keep), encode(filename, keep)]


def _copy(target: Any, is_iterated: bool) -> object:
    """Return the items of an object as a list, or as a dictionary if its items are the keys of others.

    The result is None if it is an iterator without length, has no items in order, or has more than `_MAX_UNSIZED` and
    no length. `is_iterated` says that the tests iterate. Only then are copied an iterator with a length, and what has
    only `__getitem__`, whose keys may be anything. Raises TypeError if the items
    are more or fewer than the length.
    """
    kind = type(target)
    if not hasattr(kind, "__iter__") and not (is_iterated and hasattr(kind, "__getitem__")):
        return None
    iterator = iter(target)
    if iterator is target and not (is_iterated and hasattr(kind, "__len__")):
        return None
    length = len(target) if hasattr(kind, "__len__") else None
    limit = _MAX_UNSIZED if length is None else length
    items = [item for item, _ in zip(iterator, range(limit + 1), strict=False)]
    if length is None and len(items) > limit:
        return None
    if length is not None and len(items) != length:
        raise TypeError(f"the object has length {length}, but its iteration has another number of items")
    return _copy_mapping(target, items) or items


def _copy_mapping(target: Any, items: list[Any]) -> dict[Any, Any] | None:
    """Return the values by key of an object whose items are keys, and None for an empty object or any other."""
    try:
        if not hasattr(target, "keys") and all(target[index] == item for index, item in enumerate(items)):
            return None
    except Exception:  # noqa: S110  # the program's own class may raise anything for an index
        pass
    try:
        return {item: target[item] for item in items}
    except Exception:
        return None


_MAX_UNSIZED = 1000
"""Maximum number of items that are copied of an object without length, which may be endless."""

_OPERATIONS: Mapping[str, Callable[..., object]] = {
    "bool": bool,
    "call": lambda target, /, *arguments, **named: target(*arguments, **named),
    "copy": _copy,
    "delitem": lambda target, key: target.__delitem__(key),
    "get": getattr,
    "getitem": lambda target, key: target[key],
    "iter": iter,
    "len": len,
    "next": next,
    "repr": repr,
    "set": setattr,
    "setitem": lambda target, key, value: target.__setitem__(key, value),
    "str": str,
}
"""Operations on an object of the program, by name. The object is the first argument."""
