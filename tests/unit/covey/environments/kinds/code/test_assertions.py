"""Checks of assertions before any program runs: which names they call, and what no or every program would pass."""

import pytest

from covey.environments.kinds.code.assertions import read_assertions

pytestmark = pytest.mark.unit

CHECK = "def check(candidate):\n    assert candidate(2) == 4"
CASE = "import unittest\nclass Test(unittest.TestCase):\n    def test_f(self):\n        self.assertEqual(f(2), 4)\n"
MAIN = "if __name__ == '__main__':\n    unittest.main()\n"


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("assert f(2) == 4", ["f"]),
        ("assert set(f((1, 2))) == set((1, 2))", ["f"]),
        ("import math\nassert math.isclose(f(2), 4.0)", ["f"]),
        ("assert f('aa') == Counter('aa')", ["f"]),
        ("assert longest([Pair(1, 2)]) == 1", ["Pair", "longest"]),
        ("root = Node(1)\nassert height(root) == 1", ["Node", "height"]),
        ("assert all(f(x) == x for x in range(3))", ["f"]),
        ("expected = [f(x) for x in 'ab']\nassert expected == ['a', 'b']", ["f"]),
        ("assert gcd(12, 18) == 6", ["gcd"]),  # the only name, so it is the program's
        ("assert sum(10, 15) == 6", ["sum"]),
        ("from solution import f\ndef test_f():\n    assert f(2) == 4", ["f"]),
        ("import solution\ndef test_f():\n    assert solution.f(2) == 4", ["f"]),
        (CASE, ["f"]),
        (CASE + MAIN, ["f"]),
        ("assert f([1, 'a'], int) == [1]", ["f"]),
        ("x = [3, 1]\ny = f(x)\nassert x == [3, 1] and y == [1, 3]", ["f"]),
        ("x = [3, 1]\nx = f(x)\nassert x == [1, 3]", ["f"]),
        ("root = [Node(1)]\nassert f(root) == 1", ["Node", "f"]),
        ("nodes = [Node(1)]\nlink(nodes)\nassert nodes[0].next == 1", ["Node", "link"]),
        ("assert Find_Max([1, 2]) == 2 and Find_Max([1]) + 1 == 2", ["Find_Max"]),
        ("assert P(1).x == 1 and P(1) is not None", ["P"]),
        (
            f"import unittest\nclass Base(unittest.TestCase):\n    pass\n{CASE.replace('unittest.TestCase', 'Base')}",
            ["f"],
        ),
        (
            CASE.replace("import unittest", "from unittest import TestCase as Base").replace(
                "unittest.TestCase", "Base"
            ),
            ["f"],
        ),
        (CASE.replace("TestCase", "IsolatedAsyncioTestCase").replace("def", "async def"), ["f"]),
        ("import solution\nassert getattr(solution, 'f')(2) == 4", ["f"]),
        ("from typing import *\ndef helper(x: List[int]): return x\nassert f(helper([1])) == 1", ["f"]),
        ("try:\n    f(0)\nexcept ValueError as error:\n    assert str(error)", ["f"]),
        ("if f(2) != 4:\n    raise AssertionError", ["f"]),
        ("def verify(x):\n    assert x == 4\ndef run():\n    verify(f(2))\nrun()", ["f"]),
        ("def verify(x):\n    assert x == 4\nfor run in [verify]:\n    run(f(2))", ["f"]),
        ("try:\n    f(0)\n    assert False\nexcept ValueError:\n    pass", ["f"]),
        (
            CASE.replace("self.assertEqual(f(2), 4)", "self.verify()\n    def verify(self):\n        assert f(2) == 4"),
            ["f"],
        ),
        ("class Test:\n    def verify(self):\n        assert f(2) == 4\nTest().verify()", ["f"]),
    ],
)
def test_read_assertions__names_that_nothing_defines__are_the_programs(source, names):
    read = read_assertions(source)
    assert read == {"assertions": source, "names": names, "prelude": ""}
    assert read_assertions(source, names=names) == read


@pytest.mark.parametrize("module", ["math", "sys"])
def test_read_assertions__module_that_only_the_program_imports__is_imported(module):
    source = f"assert {module}.x(f(2)) == 4"
    read = read_assertions(source)
    assert read == {"assertions": f"import {module}\n{source}", "names": ["f"], "prelude": ""}
    assert read_assertions(read["assertions"], names=read["names"]) == read
    assert read_assertions(f"assert {module}(2) == 4")["names"] == [module]


def test_read_assertions__check__is_called_with_the_entry_point():
    assert read_assertions(CHECK, entry_point="f")["assertions"] == f"{CHECK}\n\ncheck(f)\n"
    called = f"{CHECK}\ncheck(f)"
    assert read_assertions(called, entry_point="f")["assertions"] == called


@pytest.mark.parametrize("source", ["twice = lambda x: 2 * x", "from helpers import *"])
def test_read_assertions__helper_of_the_tests__is_defined_by_the_prelude_or_refused(source):
    tests = "def check(candidate):\n    assert candidate(2) == twice(2)"
    with pytest.raises(ValueError, match="'twice', which nothing defines"):
        read_assertions(tests, entry_point="f")
    if source.startswith("from"):
        with pytest.raises(ValueError, match="helpers"):
            read_assertions(tests, entry_point="f", prelude=source)
    else:
        assert read_assertions(tests, entry_point="f", prelude=source)["names"] == ["f"]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("", "assert nothing"),
        ("f(2)", "assert nothing"),
        ("def check(x):\n    assert x", "no entry_point"),
        ("def t():\n    assert f(2) == 4\nprint(1)", "assert nothing"),
        ("def check(x):\n    x(2)\ndef verify():\n    assert f(2) == 4\ncheck(f)", "assert nothing"),
        ("def check(x):\n    assert True\ncheck(f)", "assert nothing"),
        ("def check(x):\n    def verify():\n        assert x(2) == 4\ncheck(f)", "assert nothing"),
        ("assert (f(2) == 4, 'message')", "assert nothing"),
        ("f(2)\nassert 1 == 1", "assert nothing"),
        ("if False:\n    assert f(2) == 4", "assert nothing"),
        (CASE.replace("self.assertEqual(f(2), 4)", "self.assertTrue(True)"), "assert nothing"),
        (CASE.replace("self.assertEqual(f(2), 4)", "self.assertEqual"), "assert nothing"),
        ("def verify():\n    assert f(2) == 4", "assert nothing"),
        ("if __name__ == '__main__':\n    assert f(2) == 4", "assert nothing"),
        ("x = 1\nassert x == 1", "call nothing"),
        ("assert max(min(1, 2), 3) == 3", "call nothing"),
        ("assert f(2) ==", "cannot be compiled"),
        ("assert f('\ud800')", "cannot be compiled"),
        ("(" * 300, "cannot be compiled"),
        ("import numpy as np\nassert np.allclose(f(2), 4)", "import 'numpy'"),
        ("from your_module import f\nassert f(2) == 4", "import 'your_module'"),
        ("from . import f\nassert f(2) == 4", "import '.'"),
        ("from solution import *\nassert f(2) == 4", "does not name"),
        ("from os import *\nassert f(2) == 4", r"import \* from 'os'"),
        ("import unittest.mock\nassert f(2) == 4", "use 'mock'"),
        ("from unittest.mock import patch\nassert f(2) == 4", "use '"),
        ("import sys\nf(2)\nassert sys.stdout.getvalue() == '4'", "use 'stdout'"),
        ("from contextlib import redirect_stdout\nassert f(2) == 4", "use 'redirect_stdout'"),
        ("def test_f(value):\n    assert f(value) == 4", "parameters or decorators"),
        ("class TestF:\n    def test_f(self):\n        assert f(2) == 4", "not a unittest.TestCase"),
        (CASE.replace("def", "async def"), "is asynchronous"),
        ("assert f(1) == 1\nasync def test_f():\n    assert f(2) == 4", "is asynchronous"),
        (CASE.replace("unittest.TestCase", "Base") + "class Base: pass", "not a unittest.TestCase"),
        ("class Test(Test):\n    def test_f(self):\n        assert f(2) == 4", "not a unittest.TestCase"),
        ("assert f(lambda x: x, 2) == 4", "only data"),
        ("assert f(len, 'ab') == 2", "only data"),
        ("assert f(key=len) == 2", "only data"),
        ("def g(x): return x\nassert f(g) == 4", "only data"),
        ("def check(candidate):\n    assert candidate(lambda x: x) == 4\ncheck(f)", "only data"),
        (CASE.replace("self.assertEqual(f(2), 4)", "self.assertRaises(Bad, f, 2)"), "use 'Bad'"),
        (CASE.replace("self.assertEqual(f(2), 4)", "with self.assertRaises(SystemExit): f(2)"), "use 'SystemExit'"),
        ("try:\n    f(2)\nexcept Bad:\n    pass\nelse:\n    raise AssertionError", "use 'Bad'"),
        ("try:\n    f(2)\nexcept SystemExit as e:\n    assert e.code == 1", "use 'SystemExit'"),
        ("assert isinstance(P(1), P)", "use 'P'"),
        ("@f\ndef g(x): return x\nassert g(2) == 4", "use 'f'"),
        ("@f(3)\ndef g(x): return x\nassert g(2) == 4", r"use 'f\(3\)'"),
        ("import asyncio\nassert asyncio.run(f(2)) == 4", r"use 'f\(2\)'"),
        ("assert f.__name__ == 'f'", "use 'f.__name__'"),
        ("with Ctx() as c:\n    assert c == 1", "use 'Ctx"),
        ("assert V(1) < V(2)", r"use 'V\(1\)'"),
        ("assert P(1, 2) == P(1, 2)", "use 'P"),
        ("assert (V(1) + V(2)).x == 3", "use 'V"),
        ("x = [3, 1]\nf(x)\nassert x == [1, 3]", "read 'x' after a call"),
        ("def test_f():\n    x = {}\n    f(x)\n    assert len(x) == 1", "read 'x' after a call"),
        (CASE + "unittest.main()", "outside a block"),
    ],
)
def test_read_assertions__what_no_or_every_program_passes__is_refused(source, message):
    with pytest.raises(ValueError, match=message):
        read_assertions(source)


@pytest.mark.parametrize("names", [["f", "g()"], [5]])
def test_read_assertions__names_that_are_no_names__are_refused(names):
    with pytest.raises(ValueError, match="names contains"):
        read_assertions("assert f(2) == 4", names=names)
