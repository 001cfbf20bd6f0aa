"""Conversion of results in a program's process, and the names that it brings into scope."""

import collections
import typing

import pytest

from covey.environments.kinds.code.program_code import convert_plain, find_usual

pytestmark = pytest.mark.unit


class Text(str):
    __slots__ = ()


class Number(int):
    pass


def test_convert_plain__plain_values__become_json_values():
    assert convert_plain((1, [2.5, (None, True)], {"a": (1,), 2: "b"})) == [
        1,
        [2.5, [None, True]],
        {"a": [1], "2": "b"},
    ]


@pytest.mark.parametrize(
    "value",
    [
        Text("x"),
        Number(1),
        {1},
        b"x",
        1j,
        object(),
        collections.Counter("a"),
        collections.namedtuple("Pair", "a b")(1, 2),
        {1.5: 1},
        {True: 1},
        {Text("x"): 1},
        {1: 1, "1": 2},
        [[Text("x")]],
        range(3),
    ],
)
def test_convert_plain__any_other_type__raises(value):
    with pytest.raises(TypeError):
        convert_plain(value)


def test_find_usual__program__gets_only_the_names_that_it_uses():
    code = compile("def f(a: List[int]):\n    def g(): return math.gcd(*a)\n    return deque(a)", "x", "exec")
    names = find_usual(code)
    assert names["List"] is typing.List  # noqa: UP006
    assert names["deque"] is collections.deque
    assert set(names) == {"List", "math", "gcd", "deque"}
    assert find_usual(compile("print(input())", "x", "exec")) == {}
