"""Values that travel between a program and its tests, as plain data.

A program is called in one process, and its tests compare results in a different one. Only data crosses the border, so
an object of the program cannot decide what a comparison returns. `convert_plain` converts a result to JSON types, as
tests with an expected output compare them. `encode` and `decode` also keep the types that JSON lacks, for assertions.

The program runner imports this module, so it uses only the standard library.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

TYPES: dict[str, Callable[..., Any]] = {
    kind.__name__: kind for kind in (bool, int, float, complex, str, bytes, list, tuple, set, frozenset, dict)
}
"""Types that may be passed as values themselves, by name."""
_COPIES: tuple[tuple[type, Callable[..., Any]], ...] = (
    (int, int.__int__),
    (float, float.__float__),
    (str, str.__str__),
    (list, lambda value: [*list.__iter__(value)]),
    (tuple, lambda value: (*tuple.__iter__(value),)),
    (dict, lambda value: dict(dict.items(value))),
    (set, lambda value: {*set.__iter__(value)}),
    (frozenset, lambda value: frozenset(frozenset.__iter__(value))),
)
"""Functions that copy a subclass of a builtin type to that type. Each reads by a method of the base."""
_TEXTS = {"Decimal": "decimal", "Fraction": "fractions"}
"""Modules of number types that travel as strings, by type."""
_TIMES = {"date", "datetime", "time"}
"""Types of the module datetime that travel in ISO 8601 format."""
_MAX_NODES = 1_000_000
"""Maximum number of nodes of a linked list or tree. One that contains itself has more."""


class ListNode:
    """Node of a linked list, as on the website that such tasks come from."""

    def __init__(self, val: object = 0, next: Any = None) -> None:
        self.val, self.next = val, next


class TreeNode:
    """Node of a binary tree, as on the website that such tasks come from."""

    def __init__(self, val: object = 0, left: Any = None, right: Any = None) -> None:
        self.val, self.left, self.right = val, left, right


def strip_subclass(value: Any) -> Any:
    """Return a value of a subclass of a builtin type as what it holds, and not as what its own methods claim.

    Any other value is returned unchanged.
    """
    kind = type(value)
    if value is None or kind is bool:
        return value
    for base, copy in _COPIES:
        if kind is not base and issubclass(kind, base):
            return copy(value)
    return value


def convert_plain(value: Any) -> Any:
    """Convert a result to JSON types. Tuples, linked lists and trees become lists, and fractions become numbers.

    Raises TypeError for any other type, and an ArithmeticError or ValueError for a decimal that is not finite.
    """
    value = strip_subclass(value)
    kind = type(value)
    if value is None or kind in {bool, int, float, str}:
        return value
    if _TEXTS.get(kind.__name__) == kind.__module__:
        return int(value) if value == int(value) else float(value)
    if kind.__name__ in _NODES:
        return convert_plain(_NODES[kind.__name__](value))
    if kind is list or kind is tuple:
        return [convert_plain(item) for item in value]
    if kind is not dict:
        raise TypeError(kind)
    converted: dict[str, Any] = {}
    for key, item in value.items():
        plain = convert_plain(key)
        if type(plain) is not str and type(plain) is not int:
            raise TypeError(type(key))
        if str(plain) in converted:
            raise TypeError("an object has two keys that are equal in JSON")
        converted[str(plain)] = convert_plain(item)
    return converted


def encode(value: Any, keep: Callable[[object], object]) -> Any:
    """Convert a value to JSON types, with a tag for each type that JSON lacks.

    A value of any other type stays where it is, and `keep` returns the number that represents it. It raises TypeError
    if it keeps none.
    """
    value = strip_subclass(value)
    kind = type(value)
    name = kind.__name__
    if value is None or kind in {bool, int, str}:
        return value
    if kind is float:
        return value if value - value == 0 else {"float": repr(value)}
    if kind is list:
        return [encode(item, keep) for item in value]
    if kind is dict:
        return {"dict": [[encode(key, keep), encode(item, keep)] for key, item in value.items()]}
    if kind in {tuple, set, frozenset}:
        return {name: [encode(item, keep) for item in value]}
    if kind is bytes or kind is bytearray:
        return {name: value.hex()}
    if kind is complex:
        return {"complex": [encode(value.real, keep), encode(value.imag, keep)]}
    if kind is range:
        return {"range": [value.start, value.stop, value.step]}
    if _TEXTS.get(name) == kind.__module__:
        return {name: str(value)}
    if kind.__module__ == "datetime" and name in {*_TIMES, "timedelta"}:
        is_time = name in _TIMES
        return {name: value.isoformat() if is_time else [value.days, value.seconds, value.microseconds]}
    if kind is type and value in TYPES.values():
        return {"type": value.__name__}
    if name in _NODES:
        return {name: [encode(item, keep) for item in _NODES[name](value)]}
    return {"object": keep(value)}


def decode(data: Any, find: Callable[[Any], object], names: Mapping[str, object]) -> Any:
    """Convert the result of `encode` back. `find` returns the object that a number represents.

    `names` may contain classes ListNode and TreeNode to use. Raises ValueError, TypeError, LookupError or
    ArithmeticError if `data` is anything else.
    """
    if data is None or isinstance(data, bool | int | float | str):
        return data
    if isinstance(data, list):
        return [decode(item, find, names) for item in data]
    if not isinstance(data, dict) or len(data) != 1:
        raise ValueError("the data is not an encoded value")
    ((tag, body),) = data.items()
    if tag == "object":
        return find(body)
    if tag == "dict":
        return {decode(key, find, names): decode(item, find, names) for key, item in body}
    if tag in {"tuple", "set", "frozenset"}:
        return TYPES[tag](decode(item, find, names) for item in body)
    if tag == "ListNode":
        return build_list([decode(item, find, names) for item in body], names)
    if tag == "TreeNode":
        return build_tree([decode(item, find, names) for item in body], names)
    return _decode_rare(tag, body)


def _decode_rare(tag: Any, body: Any) -> Any:
    if tag == "float":
        return {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf")}[body]
    if tag == "bytes":
        return bytes.fromhex(body)
    if tag == "bytearray":
        return bytearray.fromhex(body)
    if tag == "complex":
        real, imaginary = (decode(part, _find_nothing, {}) for part in body)
        if type(real) is not float or type(imaginary) is not float:
            raise TypeError("a part of a complex number is not a float")
        return complex(real, imaginary)
    if tag == "range":
        return range(*body)
    if tag == "type":
        return TYPES[body]
    if tag == "timedelta":
        days, seconds, microseconds = body
        return __import__("datetime").timedelta(days, seconds, microseconds)
    if tag in _TIMES:
        return getattr(__import__("datetime"), tag).fromisoformat(body)
    if isinstance(body, str) and isinstance(tag, str):
        return getattr(__import__(_TEXTS[tag]), tag)(body)
    raise ValueError("the data has an unknown tag")


def _find_nothing(number: object) -> object:
    raise LookupError(number)


def list_values(node: Any) -> list[object]:
    """Return the values of a linked list. Raises ValueError if it has more than `_MAX_NODES`."""
    values: list[object] = []
    while node is not None:
        values.append(node.val)
        node = node.next
        _require_few(values)
    return values


def list_levels(root: Any) -> list[object]:
    """Return the values of a tree from level to level, with None for a missing child, and no None at the end.

    Raises ValueError if it has more than `_MAX_NODES`.
    """
    values: list[object] = []
    level = [root]
    while level:
        values += [None if node is None else node.val for node in level]
        _require_few(values)
        nodes = [node for node in level if node is not None]
        level = [child for node in nodes for child in (node.left, node.right)]
    while values and values[-1] is None:
        values.pop()
    return values


def build_list(values: list[object], names: Mapping[str, object]) -> object:
    """Build a linked list, with the class ListNode of `names` if it has one. It is None if there are no values."""
    make = _find_class(names, ListNode)
    head = None
    for value in reversed(values):
        node = make(value)
        node.next = head
        head = node
    return head


def build_tree(values: list[object], names: Mapping[str, object]) -> object:
    """Build a tree from the result of `list_levels`, with the class TreeNode of `names` if it has one."""
    make = _find_class(names, TreeNode)
    if not values:
        return None
    rest = iter(values[1:])
    root = make(values[0])
    waiting = [root]
    for node in waiting:
        for side in ("left", "right"):
            value = next(rest, None)
            child = None if value is None else make(value)
            setattr(node, side, child)
            if child is not None:
                waiting.append(child)
    if next(rest, None) is not None:
        raise ValueError("a value of the tree has no parent")
    return root


def _find_class(names: Mapping[str, object], usual: type) -> Callable[[object], Any]:
    found = names.get(usual.__name__)
    return found if isinstance(found, type) else usual


def _require_few(values: list[object]) -> None:
    if len(values) > _MAX_NODES:
        raise ValueError(f"a list or tree has more than {_MAX_NODES} nodes, or contains itself")


_NODES: Mapping[str, Callable[[Any], list[object]]] = {"ListNode": list_values, "TreeNode": list_levels}
"""Functions that list the values of a linked list or a tree, by the name of the class of its nodes."""
