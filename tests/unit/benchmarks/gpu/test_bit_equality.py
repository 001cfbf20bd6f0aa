"""The section on exactness: what counts as different."""

from collections.abc import Callable
from typing import cast

import numpy as np
import pytest

from benchmarks.gpu.bit_equality import is_same, record_equality
from benchmarks.gpu.random_models import CAPTURE, SMALL, build_model, draw_requests, open_engine
from benchmarks.gpu.section_rows import SectionRow
from benchmarks.gpu.section_run import SectionRun
from covey.engines.base import Completion
from covey.engines.vllm.engine import VllmEngine

pytestmark = pytest.mark.unit


def build_completion(tokens: tuple[int, ...], logprobs: tuple[float, ...]) -> Completion:
    return Completion(policy_version=0, tokens=tokens, logprobs=logprobs, tops=(), finished=False)


def test_is_same__tokens_and_log_probabilities__count_to_the_bit() -> None:
    one = build_completion((1, 2), (-0.5, -1.0))
    assert is_same(one, build_completion((1, 2), (-0.5, -1.0)))
    assert not is_same(one, build_completion((1, 3), (-0.5, -1.0)))
    assert not is_same(one, build_completion((1, 2), (-0.5, float(np.nextafter(np.float32(-1), np.float32(0))))))


def test_record_equality__claims_of_another_model__are_different(
    run: SectionRun, rows: Callable[[], dict[str, SectionRow]]
) -> None:
    engine = open_engine(build_model(run, SMALL), 8)
    requests = draw_requests([6] * 4, prompt=5, vocabulary=engine.vocabulary_size)
    made = engine.generate(requests, temperature=0.5, capture=CAPTURE)
    record_equality(run, cast(VllmEngine, engine), requests, made)
    row = rows()["batch 4, windows as replayed"]
    assert row.n == 4
    assert "of 24 tokens" in row.note
    assert not row.note.endswith(" 0 lose the argmax")  # they were sampled at another temperature
