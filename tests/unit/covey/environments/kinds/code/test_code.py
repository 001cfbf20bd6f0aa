"""What the source of programming tasks passes on to the processes that run programs."""

import pytest

from covey.environments.base import GradeLimit, refuse_data_sets
from covey.environments.kinds.code import programs
from covey.environments.kinds.code.code import CodeSource

pytestmark = pytest.mark.unit

STDIN = {"inputs": ["1\n2", "3"], "outputs": ["3\n", "4"], "fn_name": None}


def test_source__requires_isolation_and_extracts_the_last_code_block():
    source = CodeSource({"dataset": "0x" + "00" * 32}, refuse_data_sets)
    assert source.requires_isolation
    assert source.extraction == "last_code_block"


def test_grade__many_tests__are_all_passed_on(monkeypatch):
    calls = []
    monkeypatch.setattr(programs, "run_tests", lambda program, tests, limits: calls.append((program, tests)) or True)
    source = CodeSource({"dataset": "0x" + "00" * 32}, refuse_data_sets)
    many = {"inputs": [str(n) for n in range(40)], "outputs": [str(n) for n in range(40)], "fn_name": None}
    assert source.grade(many, "print(1)") == 1.0
    assert calls == [("print(1)", programs.ProgramTests(inputs=many["inputs"], outputs=many["outputs"], function=""))]


def test_grade__assertions__are_passed_on(monkeypatch):
    calls = []
    monkeypatch.setattr(
        programs, "run_assertions", lambda program, tests, _: calls.append((program, tests)) is not None
    )
    source = CodeSource({"dataset": "0x" + "00" * 32}, refuse_data_sets)
    assert source.grade({"assertions": "assert f(1)", "names": ["f"], "prelude": "x = 1"}, "y") == 0.0
    assert calls == [("y", programs.AssertionTests(source="assert f(1)", names=["f"], prelude="x = 1"))]


def test_grade__limit__is_raised(monkeypatch):
    def reach(*_):
        raise GradeLimit("sandbox_cpu")

    monkeypatch.setattr(programs, "run_tests", reach)
    with pytest.raises(GradeLimit) as reached:
        CodeSource({"dataset": "0x" + "00" * 32}, refuse_data_sets).grade(STDIN, "x")
    assert reached.value.code == "sandbox_cpu"
