"""Defaults and refused values of the settings, and that the shipped files load."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

from covey.errors import OperatorError
from trainer.config import TrainerConfig

pytestmark = pytest.mark.unit

CONFIGS = Path(__file__).parents[3] / "configs"
PLACE = {"home": "h", "pool": 1, "deployment": "d.json", "key_file": "k", "origin_root": "o"}


def load(values: dict[str, Any]) -> TrainerConfig:
    return TrainerConfig.load(None, PLACE | values, {})


def test_defaults__optimizer_and_clipping__are_the_papers() -> None:
    config = load({})
    assert (config.learning_rate, config.betas, config.weight_decay) == (3e-7, (0.9, 0.99), 0.01)
    assert (config.warmup_steps, config.max_grad_norm) == (25, 0.1)
    assert (config.clip_epsilon, config.clip_delta) == (0.2, 4.0)
    assert (config.advantage, config.normaliser, config.old_policy) == ("grpo", "tokens", "behaviour")
    assert (config.objective, config.importance_cap) == ("decoupled", 5.0)
    assert (config.kl_coef, config.entropy_coef) == (0, 0)
    assert (config.evaluation_prompts, config.evaluation_samples) == (256, 2)
    assert config.steps is None


@pytest.mark.parametrize("name", ["trainer.toml", "intellect2.toml"])
def test_load__shipped_file__is_accepted(name: str) -> None:
    assert load(tomllib.loads((CONFIGS / name).read_text())).clip_delta == 4.0


def test_load__local_file__holds_the_demos_values() -> None:
    config = load(tomllib.loads((CONFIGS / "trainer.toml").read_text()))
    assert (config.learning_rate, config.betas, config.weight_decay) == (5e-4, (0.9, 0.99), 0.0)
    assert (config.max_grad_norm, config.warmup_steps) == (1.0, 0)
    assert (config.kl_coef, config.entropy_coef, config.updates_per_step) == (0, 0, 1)


@pytest.mark.parametrize(
    "wrong",
    [
        {"clip_delta": 1.2},
        {"clip_epsilon": 0.5, "clip_delta": 1.5},
        {"clip_epsilon": 0},
        {"betas": (0.9, 1.0)},
        {"learning_rate": 0},
        {"learning_rate": float("inf")},
        {"kl_coef": -1},
        {"normaliser": "rows"},
        {"objective": "one_sided"},
        {"importance_cap": 0.5},
        {"steps": -1},
        {"learning_rat": 1e-3},
    ],
)
def test_load__wrong_value__is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(OperatorError, match="bad_settings"):
        load(wrong)


def test_load__local_file__is_what_the_demo_trains_with() -> None:
    from covey.demo.demo_network import LEARNING

    values = tomllib.loads((CONFIGS / "trainer.toml").read_text())
    assert {name: values[name] for name in LEARNING} == LEARNING


@pytest.mark.parametrize(
    ("old", "new"), [("row_tokens", "seq_len"), ("gradient_clip", "max_grad_norm"), ("kl_coefficient", "kl_coef")]
)
def test_load__setting_by_its_old_name__is_refused_with_the_new_one(old: str, new: str) -> None:
    with pytest.raises(OperatorError, match=f"{old}: old name; use {new} instead"):
        TrainerConfig.load(
            None, {"home": "h", "pool": 1, "deployment": "d", "key_file": "k", "origin_root": "o", old: 1}
        )
    environment = {f"COVEY_{old.upper()}": "1"}
    values = {"home": "h", "pool": 1, "deployment": "d", "key_file": "k", "origin_root": "o"}
    with pytest.raises(OperatorError, match=f"{old}: old name; use {new} instead"):
        TrainerConfig.load(None, values, environment)
