"""Whether layers are compiled follows the setting. tests/integration/trainer/test_compile_layers.py compiles them."""

from collections.abc import Callable
from typing import Any

import pytest

from trainer.factories import build_learner

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(("is_set", "expected"), [(None, False), (False, False), (True, True)])
def test_build_learner__compile__follows_the_setting_and_is_off_on_a_cpu(
    build_harness: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, is_set: bool | None, expected: bool
) -> None:
    compiled: list[Any] = []
    monkeypatch.setattr("trainer.factories.compile_layers", compiled.append)
    harness = build_harness(model={"compile": is_set}, threads=1)
    build_learner(harness.config, harness.params)
    assert len(compiled) == (2 if expected else 0)  # the model that learns, and the scratch model
