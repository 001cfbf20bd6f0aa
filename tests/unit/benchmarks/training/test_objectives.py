"""Every objective against the float64 reference; the full version against TRL, too."""

from pathlib import Path

import pytest

from benchmarks import harness
from benchmarks.training import objective_reference, objectives
from benchmarks.training.objective_cases import REFERENCE, TRL, build_batches, draw_batch, enumerate_batch
from benchmarks.training.objectives import compare, compute_ours, compute_reference, measure
from trainer.algorithm.loss_settings import LossSettings

pytestmark = pytest.mark.unit

ALL = {**TRL, **REFERENCE}
MASKS = {name for name, settings in REFERENCE.items() if settings.mask != "none"}


@pytest.mark.parametrize("name", ALL)
def test_compute_ours__enumerated_batch__has_the_loss_of_the_reference(name: str) -> None:
    batch, settings = enumerate_batch(), ALL[name]
    expected = objective_reference.compute_loss(batch, settings, [each.current for each in batch])
    assert compute_ours(batch, settings)[0] == pytest.approx(expected, rel=1e-12, abs=1e-14)


@pytest.mark.parametrize("name", ALL)
def test_compute_ours__random_batch__has_the_gradient_of_the_reference(name: str) -> None:
    batch, settings = draw_batch(seed=1, groups=2), ALL[name]
    assert max(compare([compute_ours(batch, settings)], [compute_reference(batch, settings)])) < 1e-8


@pytest.mark.parametrize("name", sorted(MASKS))
def test_build_batches__each_mask__masks_some_tokens_and_keeps_others(name: str) -> None:
    settings = REFERENCE[name]
    kept = [
        keep
        for batch in build_batches()
        for i, each in enumerate(batch)
        for keep in objective_reference.find_kept(each, (-1.0, 1.0)[i % 2], settings)
    ]
    assert 0.05 < sum(kept) / len(kept) < 0.99


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("dapo", {"epsilon": 0.25}),
        ("epsilon_high", {"epsilon_high": None}),
        ("two_sided", {"delta": None}),
        ("gspo", {"importance_sampling_level": "token"}),
        ("token_mask", {"importance_sampling_mode": "sequence_mask"}),
        ("icepop", {"importance_sampling_clip_min": 0.05}),
        ("ipo", {"mask": "dppo"}),
        ("k3", {"masked_tokens": "count"}),
        ("kl_decoupled", {"kl_estimator": "k3_ratio"}),
        ("scale_rewards_batch", {"scale_rewards": "group"}),
    ],
)
def test_compare__another_setting__exceeds_the_bar(name: str, change: dict[str, object]) -> None:
    batch = draw_batch(seed=2)
    other = LossSettings.model_validate(ALL[name].model_dump() | change)
    pairs = [compute_ours(batch, settings) for settings in (ALL[name], other)]
    assert max(compare(pairs[:1], pairs[1:])) > 1e-4


def test_measure__differences__is_the_larger_one() -> None:
    measurement = measure("x", [(1.0, [0.5, 2.0])], [(1.25, [0.5, 1.5])], "peer")
    assert (measurement.name, measurement.value, measurement.n) == ("objective_difference.x", 0.5, 2)


@pytest.mark.full
def test_main__all_objectives__agree_with_trl_and_the_reference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(harness, "OUTPUT", tmp_path)
    assert objectives.main([]) == 0
