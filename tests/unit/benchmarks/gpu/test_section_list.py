"""The list of sections: their order, and that each module has the function that measures."""

from importlib import import_module

import pytest

from benchmarks.gpu.section_list import SECTIONS

pytestmark = pytest.mark.unit


def test_sections__names__are_in_the_order_of_what_matters_first() -> None:
    names = ["tests", "sampler", "trainer", "replay", "export", "honest", "engine", "exact"]
    assert [each.name for each in SECTIONS] == names
    assert all(0 < each.least < each.most for each in SECTIONS)


@pytest.mark.parametrize("module", [each.module for each in SECTIONS if each.module])
def test_module__of_a_section__measures_a_run(module: str) -> None:
    assert import_module(module).measure.__code__.co_varnames[0] == "run"
