"""Recognition of a sandbox's processes."""

import sys
from importlib.machinery import ModuleSpec

import pytest

from covey.sandbox import is_inside

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(("name", "inside"), [("covey.sandbox.zygote", True), ("covey.cli", False)])
def test_is_inside__main_module__decides(monkeypatch: pytest.MonkeyPatch, name: str, inside: bool):
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", ModuleSpec(name, None))
    assert is_inside() is inside


def test_is_inside__script__is_not(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", None)
    assert not is_inside()
