"""Honest work and cheats: what each cheat changes, and how submissions are cut."""

import pytest
import torch

from benchmarks.gpu.honest_work import build_cheats, cut_submissions, draw_work
from benchmarks.gpu.random_models import SMALL, build_peaked
from benchmarks.gpu.section_run import SectionRun
from covey.model.policy_files import get_weights

pytestmark = pytest.mark.unit


def test_build_cheats__a_model__change_what_they_name(run: SectionRun) -> None:
    model = build_peaked(run, SMALL)
    before, cheats = {name: each.clone() for name, each in get_weights(model).items()}, build_cheats()
    changed = {}
    for name, cheat in cheats.items():
        other, temperature = cheat(model)
        weights = get_weights(other)
        changed[name] = ({each for each in weights if not torch.equal(weights[each], before[each])}, temperature)
    matrices = {name for name, each in before.items() if each.ndim == 2}
    of_layers = {name for name in matrices if ".layers." in name}
    assert changed == {
        "int8 weights": (of_layers, 1.0),
        "last two layers in int8": ({name for name in of_layers if ".layers.0." not in name}, 1.0),
        "temperature 0.9": (set(), 0.9),
        "temperature 1.02": (set(), 1.02),
        "1 percent noise": (matrices, 1.0),
    }
    assert all(torch.equal(each, before[name]) for name, each in get_weights(model).items())


def test_draw_work__prompts__differ_in_length() -> None:
    requests = draw_work(32, 12, 8, 1000, seed=0)
    assert [len(each.prompt) for each in requests[::4]] == [12, 11, 10, 9, 8, 7, 6, 12]
    assert len({each.prompt for each in requests}) == 8


def test_cut_submissions__a_rest__does_not_count() -> None:
    assert cut_submissions(range(7), 3) == [range(3), range(3, 6)]  # type: ignore[arg-type]
