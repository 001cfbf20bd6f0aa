"""One engine for several pools."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from covey.engines import factory
from covey.engines.factory import EnginePlan
from covey.engines.vllm.vllm_options import VllmOptions
from worker.kept_engine import KeptEngine

pytestmark = pytest.mark.unit

PLAN = EnginePlan(
    name="hf", dtype="float32", batch=4, device="cpu", threads=1, vllm=VllmOptions(max_model_len=64), contract=None
)


def test_open__next_pool__gets_the_same_engine_if_it_fits_and_never_a_second_one(monkeypatch: pytest.MonkeyPatch):
    alive: list[str] = []

    def build(name: str, *, dtype: str, **_: object) -> SimpleNamespace:
        alive.append(dtype)
        return SimpleNamespace(close=lambda: alive.remove(dtype))

    monkeypatch.setattr(factory, "build_engine", build)
    kept = KeptEngine()
    first = kept.open(PLAN)
    assert kept.open(replace(PLAN, vllm=VllmOptions(max_model_len=32))) is first
    other = kept.open(replace(PLAN, dtype="bfloat16"))
    assert other is not first
    assert alive == ["bfloat16"]
    kept.close()
    kept.close()
    assert alive == []
