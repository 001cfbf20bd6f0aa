"""Conversion of results in a program's process, and the names that it brings into scope."""

import collections
import decimal
import enum
import fractions
import json
import typing

import pytest

from covey.environments.kinds.code.program_code import Program, find_usual
from covey.environments.kinds.code.program_values import convert_plain

pytestmark = pytest.mark.unit


class Liar:
    """Methods that a subclass of a JSON type may override to seem equal to everything."""

    def __eq__(self, other):
        return True

    def __hash__(self):
        return 0

    def __iter__(self):
        return iter([9])

    def __str__(self):
        return "9"

    def __int__(self):
        return 9

    def __index__(self):
        return 9

    def __float__(self):
        return 9.0

    def __len__(self):
        return 9

    def items(self):
        return [("a", 9)]


class Text(Liar, str):
    __slots__ = ()


class Number(Liar, int):
    pass


class Fraction(Liar, float):
    pass


class Row(Liar, list):
    pass


class Pair(Liar, tuple):
    __slots__ = ()


class Table(Liar, dict):
    pass


class Color(enum.IntEnum):
    RED = 1


class Name(enum.StrEnum):
    RED = "red"


def test_convert_plain__plain_values__become_json_values():
    assert convert_plain((1, [2.5, (None, True)], {"a": (1,), 2: "b"})) == [
        1,
        [2.5, [None, True]],
        {"a": [1], "2": "b"},
    ]


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (collections.Counter("aab"), {"a": 2, "b": 1}),
        (collections.defaultdict(int, {1: 2}), {"1": 2}),
        (collections.OrderedDict(a=1), {"a": 1}),
        (collections.namedtuple("Pair", "a b")(1, 2), [1, 2]),
        ([decimal.Decimal("3.0"), fractions.Fraction(1, 4)], [3, 0.25]),
        ([Color.RED, Name.RED], [1, "red"]),
        ({Color.RED: Name.RED}, {"1": "red"}),
        ({Text("x"): Text("x")}, {"x": "x"}),
        ([Text("x"), Number(1), Fraction(1.5), Row([1]), Pair((1,)), Table(b=1)], ["x", 1, 1.5, [1], [1], {"b": 1}]),
    ],
)
def test_convert_plain__subclass__gives_what_it_holds_and_not_what_it_claims(value, plain):
    converted = convert_plain(value)
    assert converted == plain
    assert json.loads(json.dumps(converted)) == plain


@pytest.mark.parametrize(
    "value",
    [
        b"x",
        1j,
        object(),
        {1.5: 1},
        {True: 1},
        {1: 1, "1": 2},
        range(3),
        collections.deque([1]),
        {1},
        {Number(1): 1, "1": 2},
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


DEFINED = [
    ("def f(x): return x + 1", 2),
    ("async def g(): pass\nf = lambda x: x + 1", 2),
    ("@cache\ndef f(x): return x + 1", 2),
    ("import functools\ndef g(x, y): return x + y\nf = functools.partial(g, 1)", 2),
    ("class Adder:\n    def __call__(self, x): return x + 1\nf = Adder()", 2),
    ("class Solution:\n    def f(self, x): return x + 1", 2),
    ("class Solution:\n    @staticmethod\n    def f(x): return x + 1", 2),
    ("class Solution:\n    @lru_cache(None)\n    def f(self, x): return x + 1", 2),
    ("class Base:\n    def f(self, x): return x + 1\nclass Solution(Base): pass", 2),
    ("def f(x): return 7\nclass Solution:\n    def f(self, x): return x + 1", 2),
    ("def f(x): return x + 1\nclass Solution: pass", 2),
    ("class Solution:\n    def g(self, x): return x + 1\nf = Solution().g", 2),
    ("class Solution:\n    @property\n    def f(self): return lambda x: x + 1", 2),
    ("class Solution:\n    def __init__(self): pass\n    f = staticmethod(abs)", 1),
    ("class Table:\n    def f(self, x): return x + 1\ndef Solution(): return Table()", 2),
    ("def Solution(x): return x + 1\ndef f(x): return Solution(x)", 2),
    ("f = abs", 1),
    ("f = str.upper if 0 else int.bit_length", 1),
    ("from functools import partial\nf = partial(pow, exp=2)", 1),
    ("from math import factorial as f", 1),
    ("exec('def f(x): return x + 1')", 2),
]
NOT_DEFINED = [
    ("factorial", "factorial\n"),
    ("factorial", "from math import factorial"),
    ("factorial", "from math import *"),
    ("factorial", "import math\nfactorial = math.factorial"),
    ("factorial", "factorial = factorial"),
    ("hypot", "from math import hypot"),
    ("hypot", "from math import *"),
    ("ceil", "class Solution:\n    from math import ceil"),
    ("hypot", "class Solution:\n    from math import hypot"),
    ("factorial", "import functools, math\nfactorial = functools.partial(math.factorial)"),
    ("factorial", "class Solution:\n    from math import factorial"),
    ("count", "class Solution(list): pass"),
    ("max", "max"),
    ("max", "import builtins\nmax = builtins.max"),
    ("Counter", "Counter"),
    ("List", "List"),
    ("ListNode", "ListNode"),
    ("f", "class f:\n    def __new__(cls, x): return x + 1"),
    ("f", "f = 5"),
    ("f", "from collections import Counter as f"),
    ("math", "import math"),
]


@pytest.mark.parametrize(("source", "result"), DEFINED)
def test_call__what_the_program_defines__is_called(source, result):
    assert json.loads(Program(source, "call f").call(b"[1]")) == result


def test_call__alias_of_a_function_that_nothing_preloads__is_called():
    assert json.loads(Program("import operator\nadd = operator.add", "call add").call(b"[1, 2]")) == 3
    assert json.loads(Program("findMax = max", "call findMax").call(b"[[1, 2]]")) == 2


@pytest.mark.parametrize(("name", "source"), NOT_DEFINED)
def test_call__what_the_program_only_names__is_not_its_answer(name, source):
    with pytest.raises(LookupError):
        Program(source, f"call {name}").call(b"[1]")


NODES = [
    (
        "def f(head: Optional[ListNode]) -> Optional[ListNode]:\n    head.next.next.val = 9\n    return head.next",
        [[1, 2, 3]],
        [2, 9],
    ),
    (
        "class Solution:\n    def f(self, head: Optional[ListNode], n: int) -> Optional[ListNode]: return head",
        [[], 1],
        [],
    ),
    (
        "class Solution:\n    def f(self, lists: List[Optional[ListNode]]) -> Optional[ListNode]: return lists[1]",
        [[[1], [4, 5]]],
        [4, 5],
    ),
    (
        "def f(root: 'TreeNode') -> int:\n    return [root.left.val, root.right.left, root.right.right.val]",
        [[1, 2, 3, None, None, None, 4]],
        [2, None, 4],
    ),
    (
        "def f(root: TreeNode) -> TreeNode:\n    root.left, root.right = root.right, root.left\n    return root",
        [[1, 2, 3, 4]],
        [1, 3, 2, None, None, 4],
    ),
    (
        "class ListNode:\n    def __init__(self, x): self.val = x * 2\ndef f(head: ListNode): return head",
        [[1, 2]],
        [2, 4],
    ),
    ("def f(head): return head[::-1]", [[1, 2]], [2, 1]),
    ("def f(values: List[int]) -> List[int]: return values", [[1, None]], [1, None]),
]


@pytest.mark.parametrize(("source", "arguments", "result"), NODES)
def test_call__annotations_of_linked_lists_and_trees__convert_lists(source, arguments, result):
    given = json.dumps(arguments).encode()
    assert json.loads(Program(source, "call f").call(given)) == result


def test_call__linked_list_that_contains_itself__raises():
    with pytest.raises(ValueError, match="contains itself"):
        Program("def f(head: ListNode):\n    head.next = head\n    return head", "call f").call(b"[[1]]")
