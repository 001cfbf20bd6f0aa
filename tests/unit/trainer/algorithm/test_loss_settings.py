"""Presets, what overrides them, and combinations that are refused."""

from typing import Any

import pytest
from pydantic import ValidationError

from trainer.algorithm.loss_settings import PRESETS, LossSettings

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("name", PRESETS)
def test_preset__each__has_a_version_and_is_accepted_again_from_its_dump(name: str) -> None:
    settings = LossSettings(preset=name)
    assert name.rpartition("@")[2].isdigit()
    assert LossSettings.model_validate(settings.model_dump()) == settings


def test_preset__default__is_the_first_one() -> None:
    assert LossSettings(preset="covey@1").model_copy(update={"preset": None}) == LossSettings()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "intellect-2@1",
            {"epsilon": 0.2, "delta": 4.0, "beta": 0.001, "kl_estimator": "k3", "old_policy": "recompute"},
        ),
        ("dapo@1", {"epsilon": 0.2, "epsilon_high": 0.28, "delta": None, "mask_truncated_completions": True}),
        ("dr-grpo@1", {"scale_rewards": "none", "loss_type": "dr_grpo", "beta": 0.0}),
        (
            "gspo@1",
            {"importance_sampling_level": "sequence", "epsilon": 3e-4, "epsilon_high": 4e-4, "loss_type": "grpo"},
        ),
        ("cispo@1", {"loss_type": "cispo", "epsilon_high": 5.0}),
        ("maxrl@1", {"scale_rewards": "mean"}),
        ("prime-rl@1", {"mask": "ipo", "mask_threshold": 0.1, "kl_tau": 1e-3, "loss_type": "policy_gradient"}),
        ("trl@1", {"importance_sampling_mode": "sequence_mask", "importance_sampling_clip_max": 3.0, "delta": None}),
    ],
)
def test_preset__published_objective__has_its_values(name: str, expected: dict[str, Any]) -> None:
    settings = LossSettings(preset=name)
    assert {field: getattr(settings, field) for field in expected} == expected


def test_preset__explicit_value__overrides_it() -> None:
    settings = LossSettings(preset="dapo@1", epsilon_high=0.3, mask_truncated_completions=False)
    assert (settings.epsilon_high, settings.mask_truncated_completions, settings.delta) == (0.3, False, None)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"preset": "dapo@9"}, "preset dapo@9 is unknown; known are covey@1, intellect-2@1"),
        ({"preset": "dapo"}, "preset dapo is unknown"),
        ({"delta": 1.2}, "delta does not exceed 1 \\+ epsilon_high"),
        ({"epsilon_high": 3.5}, "delta does not exceed 1 \\+ epsilon_high"),
        ({"loss_type": "cispo"}, "cispo requires epsilon_high"),
        ({"importance_sampling_mode": "icepop"}, "icepop requires importance_sampling_clip_min"),
        ({"mask": "ipo"}, "mask ipo requires mask_threshold"),
        ({"mask": "geometric", "mask_threshold": 0.9}, "requires a mask_threshold above 1"),
        ({"importance_sampling_clip_max": 0.5}, "greater than or equal to 1"),
        ({"custom_loss": "losses.py"}, "String should match pattern"),
        ({"kl_coef": 0.1}, "Extra inputs are not permitted"),
    ],
)
def test_loss_settings__wrong_values__are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        LossSettings.model_validate(values)


@pytest.mark.parametrize(
    ("values", "normaliser", "highest", "drops", "needs_all"),
    [
        ({}, "tokens", 1.2, False, False),
        ({"loss_type": "grpo", "beta": 0.1}, "sequence", 1.2, False, True),
        ({"loss_type": "dr_grpo", "epsilon_high": 0.5}, "constant", 1.5, False, False),
        ({"loss_type": "cispo", "epsilon_high": 5.0}, "tokens", 5.0, False, False),
        ({"mask": "k3", "mask_threshold": 0.1}, "tokens", 1.2, True, True),
        ({"mask": "k3", "mask_threshold": 0.1, "masked_tokens": "count"}, "tokens", 1.2, False, False),
        ({"mask": "ipo", "mask_threshold": 0.1}, "tokens", 1.2, False, False),
        ({"mask": "ipo", "mask_threshold": 0.1, "masked_tokens": "drop"}, "tokens", 1.2, True, True),
        ({"custom_loss": "a.b:c"}, "tokens", 1.2, False, True),
    ],
)
def test_properties__each_setting__follow_from_it(
    values: dict[str, Any], normaliser: str, highest: float, drops: bool, needs_all: bool
) -> None:
    settings = LossSettings.model_validate(values)
    assert (settings.normaliser, settings.highest_ratio) == (normaliser, highest)
    assert (settings.drops_masked, settings.needs_all_samples) == (drops, needs_all)
