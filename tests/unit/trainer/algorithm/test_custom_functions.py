"""Functions by their names, and names that lead nowhere."""

import math
from importlib.metadata import EntryPoint

import pytest

from covey.errors import OperatorError
from trainer.algorithm import custom_functions
from trainer.algorithm.custom_functions import load_function

pytestmark = pytest.mark.unit


def test_load_function__function_of_a_module__is_returned() -> None:
    assert load_function("math:hypot", "loss.custom_loss") is math.hypot


@pytest.mark.parametrize(
    ("setting", "group"), [("loss.custom_loss", "covey.losses"), ("loss.custom_advantage", "covey.advantages")]
)
def test_load_function__entry_point__is_that_of_the_settings_group(
    monkeypatch: pytest.MonkeyPatch, setting: str, group: str
) -> None:
    def list_entries(*, group: str) -> list[EntryPoint]:
        value = {"covey.losses": "math:hypot", "covey.advantages": "math:dist"}[group]
        return [EntryPoint(name="soft-clip", value=value, group=group)]

    monkeypatch.setattr(custom_functions, "entry_points", list_entries)
    assert load_function("soft-clip", setting) is {"covey.losses": math.hypot, "covey.advantages": math.dist}[group]
    with pytest.raises(OperatorError, match=f"{setting} is hard-clip, .* the entry points {group} are soft-clip"):
        load_function("hard-clip", setting)


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("soft-clip", "cannot be imported: the entry points covey.losses are none"),
        ("no_such_package.x:y", "loss.custom_loss is no_such_package.x:y, which cannot be imported: No module named"),
        ("math:no_such_function", "cannot be imported: module 'math' has no attribute 'no_such_function'"),
        ("math:pi", "which is a float and not a function"),
    ],
)
def test_load_function__name_that_leads_nowhere__is_refused(reference: str, message: str) -> None:
    with pytest.raises(OperatorError, match=f"bad_settings: .*{message}"):
        load_function(reference, "loss.custom_loss")
