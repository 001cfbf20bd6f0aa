"""Random models: parameters of the published shapes, and requests."""

from dataclasses import replace

import pytest
import torch

from benchmarks.gpu.random_models import (
    LARGE,
    SMALL,
    build_claims,
    build_model,
    build_peaked,
    count_tokens,
    draw_requests,
    open_engine,
)
from benchmarks.gpu.section_run import SectionRun
from covey.model.policy_files import get_head

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(("shape", "parameters"), [(SMALL, 596_049_920), (LARGE, 1_543_714_304)])
def test_build_model__shapes__have_the_parameters_of_qwen(run: SectionRun, shape: str, parameters: int) -> None:
    model = build_model(replace(run, is_tiny=False, device="meta"), shape)
    assert model.num_parameters() == parameters


def test_build_model__equal_calls__have_equal_weights(run: SectionRun) -> None:
    first, second = build_model(run, SMALL), build_model(run, LARGE)
    assert torch.equal(get_head(first).weight, get_head(second).weight)
    assert first.dtype is torch.float32
    assert get_head(first).weight is first.get_input_embeddings().weight


def test_build_peaked__head__is_its_own_and_eight_times_as_large(run: SectionRun) -> None:
    model = build_peaked(run, SMALL)
    assert model.dtype is torch.bfloat16
    deviations = [float(each.weight.detach().float().std()) for each in (get_head(model), model.get_input_embeddings())]
    assert deviations[0] / deviations[1] == pytest.approx(8, rel=0.05)


def test_draw_requests__siblings__share_a_prompt_and_not_a_seed() -> None:
    requests = draw_requests([3, 4, 5, 6, 7], prompt=6, vocabulary=50, siblings=2)
    assert [each.max_tokens for each in requests] == [3, 4, 5, 6, 7]
    prompts = [each.prompt for each in requests]
    assert prompts[0] == prompts[1] != prompts[2] == prompts[3] != prompts[4]
    assert all(3 <= token < 50 for prompt in prompts for token in prompt)
    assert len({each.seed for each in requests}) == 5
    assert requests != draw_requests([3, 4, 5, 6, 7], prompt=6, vocabulary=50, siblings=2, seed=1)


def test_build_claims__of_an_engine__are_replayed_without_a_margin(run: SectionRun) -> None:
    engine = open_engine(build_model(run, SMALL), 4)
    requests = draw_requests([4, 4, 4], prompt=5, vocabulary=engine.vocabulary_size)
    made = engine.generate(requests, temperature=1.0)
    assert count_tokens(made) == sum(len(each.tokens) for each in made) > 3
    for replay in engine.replay(build_claims(requests, made), temperature=1.0):
        assert float(replay.margins.max()) < 1e-4
