"""docs/reference/python.md: its examples run as written, and it names everything public."""

import inspect
from pathlib import Path

import pytest

import covey
from covey import python
from tests.e2e.fences import read_fences

pytestmark = pytest.mark.integration
PAGE = Path(__file__).resolve().parents[3] / "docs" / "reference" / "python.md"


def test_examples__in_order__run_as_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    fences = [fence for fence in read_fences(PAGE) if fence.language == "python"]
    assert len([fence for fence in fences if not fence.reason]) == 4
    for fence in fences:
        if not fence.reason:
            exec(compile(fence.body, str(PAGE), "exec"), names)
    assert sorted(covey.LocalRun("run").evaluations) == [0, 2]
    assert type(names["model"]).__name__ == "Qwen2ForCausalLM"
    assert capsys.readouterr().out.splitlines()[-1].endswith(" 1.0")


def test_page__public_names__are_all_there():
    text = PAGE.read_text()
    for name in python.__all__:
        assert f"\n## covey.{name}\n" in text
    for kind in (covey.LocalRun, covey.Environment, covey.Pool):
        for name, _ in inspect.getmembers(kind, lambda each: inspect.isfunction(each) or isinstance(each, property)):
            assert name.startswith("_") or f"`{name}" in text, f"{kind.__name__}.{name}"
    for name in inspect.signature(covey.train).parameters:
        assert name == "settings" or f"`{name}`" in text, name
