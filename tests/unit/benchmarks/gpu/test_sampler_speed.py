"""The sampler's section: its peer, and the comparison of bits, which must find a difference."""

from collections.abc import Callable

import pytest
import torch

from benchmarks.gpu import sampler_speed
from benchmarks.gpu.section_rows import SectionRow
from benchmarks.gpu.section_run import SectionRun

pytestmark = pytest.mark.unit

Rows = Callable[[], dict[str, SectionRow]]


def test_race_exponentially__two_tokens__are_drawn_by_their_probability() -> None:
    torch.manual_seed(0)
    logits = torch.tensor([[0.0, 1.0, -1e9]]).expand(4000, 3)
    counts = torch.bincount(sampler_speed.race_exponentially(logits), minlength=3)
    assert counts[2] == 0
    assert counts[1] / 4000 == pytest.approx(0.7311, abs=0.03)  # e / (1 + e)


def test_draw_rows__keys__give_other_rows(run: SectionRun) -> None:
    first, second, again = (sampler_speed.draw_rows(run, 4, key=key) for key in (0, 1, 0))
    for one, other, same in zip(first, second, again, strict=True):
        assert torch.equal(one, same)
        assert not torch.equal(one, other)
    assert [each.shape for each in first] == [(4, 1000), (4,), (4,)]


def test_compare_bits__equal_samplers__differ_nowhere(run: SectionRun, rows: Rows) -> None:
    sampler_speed.compare_bits(run)
    assert (rows()["bits"].value, rows()["bits"].n, rows()["bits"].is_met) == (0, 24_000, True)


def test_compare_bits__a_sampler_that_rounds__is_found(
    run: SectionRun, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = sampler_speed.find_scores

    def find_rounded(*given: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        tokens, margins = find(*given)
        margins[0] = torch.nextafter(margins[0], torch.tensor(100.0))
        return tokens, margins

    monkeypatch.setattr(sampler_speed, "find_scores", find_rounded)
    sampler_speed.compare_bits(run)
    assert (rows()["bits"].value, rows()["bits"].is_met) == (3, False)  # one in each of three parts


def test_measure_sample__a_batch__has_an_aim_if_it_is_large(run: SectionRun, rows: Rows) -> None:
    for count in (1, 64):
        sampler_speed.measure_sample(run, count)
    assert [row.aim is not None for row in rows().values()] == [False, True]
    assert all(row.unit == "us" and row.value and row.peer_value for row in rows().values())
