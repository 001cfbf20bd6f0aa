"""The replay's section: its peers compute what the engine computes."""

import pytest
import torch

from benchmarks.gpu import replay_speed
from benchmarks.gpu.random_models import SMALL, build_model, draw_requests, open_engine
from benchmarks.gpu.replay_speed import generate_plainly, score_plainly
from benchmarks.gpu.section_run import SectionRun
from covey.engines.base import ReplayRequest

pytestmark = pytest.mark.unit


def test_score_plainly__a_completion__has_the_log_probabilities_of_a_replay(
    run: SectionRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay_speed, "CHUNK", 4)
    model, prompt, tokens = build_model(run, SMALL), (5, 6, 7), tuple(range(20, 31))
    (replay,) = open_engine(model, 1).replay([ReplayRequest(prompt=prompt, tokens=tokens, seed=1)], temperature=1.0)
    found = score_plainly(model, prompt, tokens)
    torch.testing.assert_close(found, torch.from_numpy(replay.logprobs), atol=1e-5, rtol=0)


def test_generate_plainly__requests__have_their_length(run: SectionRun) -> None:
    requests = draw_requests([6] * 3, prompt=4, vocabulary=1000)
    made = generate_plainly(build_model(run, SMALL), requests)
    assert made.shape == (3, 10)
    assert made[:, :4].tolist() == [list(each.prompt) for each in requests]
